"""Attention of vision models with ReLU in place of softmax: p = max(s, 0), without a mask or a divisor."""

from collections.abc import Sequence
from typing import Any

import torch
from comparison import compare, dense, normal, options

import attn_mlir.compat  # noqa: F401
from attn_engine import AttentionEngine, OnlineFunc
from core import CustomIO, SymbolScalar, Var, meta_tensor

D = 64
softmax_scale = D**-0.5


def score_mod(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (score * softmax_scale).max(0)


class OnlineIdentity(OnlineFunc):
    """The scores are the weights."""

    def __init__(self) -> None:
        super().__init__({}, {}, CustomIO())

    @staticmethod
    def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        return scores, online_rowscales, SymbolScalar("o_scale", Var("1"))

    @staticmethod
    def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        return o, {}

    @staticmethod
    def forward(scores: Any, final_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return scores

    @staticmethod
    def backward(dp: Any, scores: Any, final_rowscales: Any, doosum_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return dp


def main(argv: Sequence[str] | None = None) -> int:
    found = options(argv, __doc__, batch=4, heads=6, length=512)
    B, H, S = found.batch, found.heads, found.length
    qkv_meta = tuple(meta_tensor(B, H, S, D, dtype=found.dtype) for _ in "qkv")
    mod = AttentionEngine(qkv_meta, CustomIO(), score_mod=score_mod, mask_mod=None, online_func=OnlineIdentity())

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return dense(q, k, v, lambda s: (s * softmax_scale).relu())

    return compare(mod, formula, {name: normal(found, B, S, H, D) for name in "qkv"})


if __name__ == "__main__":
    raise SystemExit(main())
