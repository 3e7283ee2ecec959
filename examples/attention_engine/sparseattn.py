"""Softmax attention to a sliding window: a query sees its own and the 255 keys before. Blocks outside of it are skipped."""

from collections.abc import Sequence
from typing import Any

import torch
from comparison import compare, dense, normal, options
from mha import D, OnlineSoftmax, score_mod, softmax_scale

import attn_mlir.compat  # noqa: F401
from attn_engine import AttentionEngine
from core import CustomIO, create_mask, meta_tensor

WINDOW = 256


def sliding_window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return torch.logical_and(q_idx >= kv_idx, q_idx < kv_idx + WINDOW)


def main(argv: Sequence[str] | None = None) -> int:
    found = options(argv, __doc__, batch=2, heads=4, length=600)
    B, H, S = found.batch, found.heads, found.length
    qkv_meta = tuple(meta_tensor(B, H, S, D, dtype=found.dtype) for _ in "qkv")
    mod = AttentionEngine(qkv_meta, CustomIO(), score_mod=score_mod, mask_mod=sliding_window, online_func=OnlineSoftmax())

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keep = create_mask(sliding_window, 1, 1, S, S, device=found.device)
        return dense(q, k, v, lambda s: (s * softmax_scale).softmax(-1), keep)

    return compare(mod, formula, {name: normal(found, B, S, H, D) for name in "qkv"})


if __name__ == "__main__":
    raise SystemExit(main())
