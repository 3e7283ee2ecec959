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


def empty_heads(shape: Sequence[int], dtype: torch.dtype, transposed: bool, device: str | torch.device) -> torch.Tensor:
    """A new tensor; `transposed`: one of [B, H, S, D] whose memory is [B, S, H, D]."""
    if not transposed:
        return empty(shape, dtype=dtype, device=device)
    _, heads, length, columns = shape
    return empty_strided(shape, (heads * length * columns, columns, heads * columns, 1), dtype=dtype, device=device)
