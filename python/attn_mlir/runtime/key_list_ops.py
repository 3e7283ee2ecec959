"""What the operator `attn_mlir::key_lists` does, which makes the lists in a graph of torch.compile or torch.export."""

from typing import Any

import torch

from attn_mlir.backends.allocation import empty
from attn_mlir.runtime.key_lists import form_of, lists_of


def run_key_lists(index: torch.Tensor, kv_len: int, keys: int, inverse: bool) -> list[torch.Tensor]:
    """The tensors of `frontend.given.LISTS` for blocks of so many keys."""
    return lists_of(index, kv_len, form_of(1, keys), inverse)


def fake_key_lists(index: torch.Tensor, kv_len: int, keys: int, inverse: bool) -> list[torch.Tensor]:
    """Tensors of the same sizes without data."""
    form = form_of(1, keys)
    batch, heads, lists, count = index.shape
    room = batch * heads * lists * count * form.parts(kv_len)
    back, tiles = (room * form.tiles(kv_len), -(-kv_len // form.tile)) if inverse else (0, 0)

    def made(*shape: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return empty(shape, dtype=dtype, device=index.device)

    ranges = made(batch, heads, lists, 2, dtype=torch.int64), made(batch, heads, tiles, 2, dtype=torch.int64)
    flat = [made(torch.sym_max(1, size)) for size in (room, back, back)]
    return [flat[0], ranges[0], flat[1], flat[2], ranges[1]]
