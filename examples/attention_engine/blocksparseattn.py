"""Softmax attention to some blocks of 128 x 128: which ones is a tensor that comes with each call."""

from collections.abc import Sequence
from typing import Any

import torch
from comparison import compare, dense, normal, options
from mha import D, OnlineSoftmax, score_mod, softmax_scale

import attn_mlir.compat  # noqa: F401
from attn_engine import AttentionEngine
from core import CustomIO, create_block_mask, meta_tensor

BLOCK = 128


def two_blocks(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Its own block and the one before."""
    return torch.logical_and(q_idx // BLOCK >= kv_idx // BLOCK, q_idx // BLOCK < kv_idx // BLOCK + 2)


def main(argv: Sequence[str] | None = None) -> int:
    found = options(argv, __doc__, batch=1, heads=8, length=600)
    B, H, S = found.batch, found.heads, found.length
    qkv_meta = tuple(meta_tensor(B, H, S, D, dtype=found.dtype) for _ in "qkv")
    mod = AttentionEngine(qkv_meta, CustomIO(), score_mod=score_mod, mask_mod=None, online_func=OnlineSoftmax(), extern_block_mask=True)
    block_mask = create_block_mask(two_blocks, 1, 1, S, S, device=found.device).to_dense()
    keep = block_mask.repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)[:, :, :S, :S].bool()

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return dense(q, k, v, lambda s: (s * softmax_scale).softmax(-1), keep)

    inputs = {name: normal(found, B, S, H, D) for name in "qkv"}
    return compare(lambda q, k, v: mod(q, k, v, block_mask=block_mask), formula, inputs)


if __name__ == "__main__":
    raise SystemExit(main())
