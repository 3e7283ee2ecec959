"""Memory of tensors that kernels write: every tensor that comes without content, in the runtime and in the backends, is made here.

With `ATTN_MLIR_POISON=1` in the environment when this module is imported, it comes full of what no kernel computes: NaN, the most
negative integer, True. A result that was not written, or that was added to without being cleared, then shows in numbers. Without
it the functions are torch's own. `test/unit/test_poison.py` looks for others in the sources.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

POISONED = os.environ.get("ATTN_MLIR_POISON", "") not in ("", "0")


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, filled with what no kernel computes; bytes, of which workspaces consist, are NaN as numbers of any type."""
    if tensor.dtype == torch.bool:
        return tensor.fill_(True)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.fill_(torch.nan)
    return tensor.fill_(255 if tensor.dtype == torch.uint8 else torch.iinfo(tensor.dtype).min)


def poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The function, whose tensors come poisoned where that is asked for; else itself, which costs nothing."""
    if not POISONED:
        return make

    def made(*arguments: Any, **options: Any) -> torch.Tensor:
        return poison(make(*arguments, **options))

    return made


empty = poisoned(torch.empty)
"""`torch.empty`."""
empty_strided = poisoned(torch.empty_strided)
"""`torch.empty_strided`."""


def empty_heads(shape: Sequence[int], dtype: torch.dtype, order: str, device: str | torch.device) -> torch.Tensor:
    """A new tensor [B, H, S, D] whose memory has the `order` of these letters, such as "bshd"; any shape for "bhsd"."""
    if order == "bhsd":
        return empty(shape, dtype=dtype, device=device)
    return empty_strided(tuple(shape), strides_of(shape, order), dtype=dtype, device=device)


def strides_of(shape: Sequence[int], order: str) -> tuple[int, ...]:
    """The strides of a dense tensor [B, H, S, D] whose memory has an order."""
    batch, heads, length, columns = shape
    if order == "bshd":
        return heads * length * columns, columns, heads * columns, 1
    if order == "sbhd":
        return heads * columns, columns, batch * heads * columns, 1
    return heads * length * columns, length * columns, columns, 1


def in_order(tensor: torch.Tensor, order: str, first: int = 0) -> torch.Tensor:
    """The view [B, H, S, D] of a tensor whose dimensions, from the `first`, have an order."""
    places = [first + order.index(letter) for letter in "bhsd"]
    return tensor.permute(*range(first), *places)
