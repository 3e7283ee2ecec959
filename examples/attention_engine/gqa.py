"""Causal softmax attention in which groups of query heads share keys and values, forward and backward."""

from collections.abc import Sequence

import torch
from comparison import causal, compare, dense, normal, options
from mha import D, OnlineSoftmax, causal_mask, score_mod, softmax_scale

import attn_mlir.compat  # noqa: F401
from attn_engine import AttentionEngine
from core import CustomIO, meta_tensor


def main(argv: Sequence[str] | None = None) -> int:
    found = options(argv, __doc__, batch=1, heads=16, groups=2, length=512)
    B, H, G, S = found.batch, found.heads, found.groups, found.length
    q_meta, k_meta = (meta_tensor(B, heads, S, D, dtype=found.dtype) for heads in (H, G))
    mod = AttentionEngine((q_meta, k_meta, k_meta), CustomIO(), score_mod=score_mod, mask_mod=causal_mask, online_func=OnlineSoftmax())

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return dense(q, k, v, lambda s: (s * softmax_scale).softmax(-1), causal(S, q.device))

    return compare(mod, formula, {"q": normal(found, B, S, H, D), "k": normal(found, B, S, G, D), "v": normal(found, B, S, G, D)})


if __name__ == "__main__":
    raise SystemExit(main())
