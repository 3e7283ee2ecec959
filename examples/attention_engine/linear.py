"""What the programs of linear attention share: shapes, and the sum over all pairs of positions that they compute in chunks."""

from typing import Any

import torch

import attn_mlir.compat  # noqa: F401
from core import meta_tensor


def meta(found: Any, heads: int, key_dim: int, value_dim: int) -> tuple[Any, ...]:
    """The qkv_meta for q and k with `heads` heads, in the order [B, H, T, D], which is that of the tensors, too."""
    shapes = ((heads, key_dim), (heads, key_dim), (found.heads, value_dim))
    return tuple(meta_tensor(found.batch, h, found.length, dim, dtype=found.dtype) for h, dim in shapes)


def all_pairs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """o_t = sum over s <= t of exp(g_(s+1) + ... + g_t) (q_t . k_s) v_s."""
    total = g.cumsum(2)
    between = total.unsqueeze(3) - total.unsqueeze(2)
    past = torch.ones(between.shape[2:], dtype=torch.bool, device=g.device).tril()
    return ((q @ k.mT) * between.masked_fill(~past, -torch.inf).exp()) @ v
