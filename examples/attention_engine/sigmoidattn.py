"""Causal sigmoid attention, p = sigmoid(s + bias), with the bias as a further input. There is no scale, and no divisor."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from comparison import causal, compare, dense, normal, options
from mha import causal_mask
from reluattn import OnlineIdentity

import attn_mlir.compat  # noqa: F401
from attn_engine import AttentionEngine
from core import CustomIO, meta_tensor

D = 128


def score_mod(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    score = score + custom_fwd_inputs.input_tensors["softmax_bias"]
    return ((score * 0.5).tanh() + 1) * 0.5


def main(argv: Sequence[str] | None = None) -> int:
    found = options(argv, __doc__, batch=1, heads=6, length=512)
    B, H, S = found.batch, found.heads, found.length
    qkv_meta = tuple(meta_tensor(B, H, S, D, dtype=found.dtype) for _ in "qkv")
    custom_fwd_inputs = CustomIO({"softmax_bias": (1,)})
    mod = AttentionEngine(qkv_meta, custom_fwd_inputs, score_mod=score_mod, mask_mod=causal_mask, online_func=OnlineIdentity())

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return dense(q, k, v, lambda s: (s + bias).sigmoid(), causal(S, q.device))

    inputs = {"q": normal(found, B, S, H, D) * D**-0.5, "k": normal(found, B, S, H, D), "v": normal(found, B, S, H, D)}
    bias = torch.tensor([-math.log(S)], device=found.device)
    return compare(mod, formula, inputs | {"bias": bias})


if __name__ == "__main__":
    raise SystemExit(main())
