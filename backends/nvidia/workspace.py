"""Memory that kernels of one program need besides inputs and results, as parts of one tensor."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from attn_mlir.backends.allocation import empty

ALIGNMENT = 512
"""Of parts, in bytes."""


@dataclass(frozen=True)
class WorkspacePart:
    """A part of a workspace: a dense tensor that begins `offset` bytes behind its start."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize

    def of(self, memory: torch.Tensor) -> torch.Tensor:
        """The part of a workspace (bytes)."""
        return memory[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)


@dataclass
class Workspace:
    """Parts that follow each other, `size` bytes in all; `zeros`: offset and bytes of what must be zero before the kernels run."""

    size: int = 0
    zeros: list[tuple[int, int]] = field(default_factory=list)

    def take(self, shape: Sequence[int], dtype: torch.dtype, zeros: float = 0) -> WorkspacePart:
        """A new part; `zeros`: the fraction of it that must be zero, from its start."""
        part = WorkspacePart(self.size, tuple(shape), dtype)
        size = math.prod(shape) * dtype.itemsize
        self.size += size + -size % ALIGNMENT
        if zeros:
            cleared = round(size * zeros)
            last = self.zeros[-1] if self.zeros else (0, 0)
            if self.zeros and last[1] + -last[1] % ALIGNMENT + last[0] == part.offset:  # with what lies between
                self.zeros[-1] = (last[0], part.offset + cleared - last[0])
            else:
                self.zeros.append((part.offset, cleared))
        return part

    def make(self, device: torch.device) -> torch.Tensor:
        """Its memory, with zeros where they must be."""
        memory = empty(self.size, dtype=torch.uint8, device=device)
        for offset, size in self.zeros:
            memory[offset : offset + size].zero_()
        return memory


def filled(arguments: Sequence[Any], memory: torch.Tensor) -> list[Any]:
    """The arguments, with tensors for parts."""
    return [value.of(memory) if isinstance(value, WorkspacePart) else value for value in arguments]
