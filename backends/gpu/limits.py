"""How large tensors may be: kernels count positions, heads and captured elements along a dimension in 32 bits, some in f32."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from attn_mlir.backends.gpu.scalar_bounds import HEADS, POSITIONS
from attn_mlir.backends.host import Argument
from attn_mlir.errors import ArgumentError

INT = (1 << 31) - 1


def check_sizes(types: Sequence[Argument], inputs: Sequence[Any]) -> None:
    """Raises ArgumentError for tensors that are larger than kernels can count; `types` are those of a program's arguments."""
    for position, (type_, value) in enumerate(zip(types, inputs, strict=True)):
        if not isinstance(value, torch.Tensor):
            continue
        for size, most, what in _limits(type_, value.shape):
            if size > most:
                raise ArgumentError(
                    f"argument {position} of this program, of shape {list(value.shape)}, has {size} {what}, and kernels for GPUs "
                    f"take up to {most}: call it for parts of the tensors"
                )


def _limits(type_: Argument, shape: Sequence[int]) -> Iterator[tuple[int, int, str]]:
    """Sizes, how large they may be, and what they count. Like q, k and v are tensors [B, H, S, D] whose D is fixed."""
    if type_.shape is not None and len(type_.shape) == len(shape) == 4 and type_.shape[3] != -1:
        yield from zip(shape[:3], (HEADS, HEADS, POSITIONS), ("batches", "heads", "positions"), strict=True)
    else:
        yield from ((size, INT, f"elements along dimension {dim}") for dim, size in enumerate(shape))
