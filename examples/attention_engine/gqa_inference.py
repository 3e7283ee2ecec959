"""Decoding with shared heads: one query of each head attends to all keys that were computed before."""

from collections.abc import Sequence

import torch
from comparison import compare, dense, normal, options
from mha import D, OnlineSoftmax, score_mod, softmax_scale

import attn_mlir.compat  # noqa: F401
from attn_engine import AttentionEngine
from core import CustomIO, meta_tensor


def main(argv: Sequence[str] | None = None) -> int:
    found = options(argv, __doc__, batch=1, heads=32, groups=4, length=2048)
    B, H, G, S = found.batch, found.heads, found.groups, found.length
    q_meta, k_meta = meta_tensor(B, H, 1, D, dtype=found.dtype), meta_tensor(B, G, S, D, dtype=found.dtype)
    mod = AttentionEngine((q_meta, k_meta, k_meta), CustomIO(), score_mod=score_mod, mask_mod=None, online_func=OnlineSoftmax())

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return dense(q, k, v, lambda s: (s * softmax_scale).softmax(-1))

    inputs = {"q": normal(found, B, 1, H, D), "k": normal(found, B, S, G, D), "v": normal(found, B, S, G, D)}
    return compare(mod, formula, inputs, backward=False)


if __name__ == "__main__":
    raise SystemExit(main())
