"""Copies of q, k and v: kernels read most strides where they are, and what they cannot read is copied at every call, which is told here."""

from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir.performance import told

_NAMES = ("q", "k", "v")
_PAGE = "docs/layouts.md"
_ALIGNED = 16


class Copies:
    """What of its first three arguments a program copies: a note of each, and a warning where other memory would need no copy."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}
        """Why, by the names q, k and v."""

    def compare(self, given: Sequence[Any], read: Sequence[Any]) -> None:
        """Tells of the arguments that are not read where they were given."""
        for place, (tensor, copy) in enumerate(zip(given[:3], read[:3], strict=True)):
            if copy is not tensor:
                self.tell(place, tensor)

    def note(self, place: int, reason: str) -> None:
        """Notes one that is copied because it is faster."""
        self.notes[_NAMES[place]] = reason

    def tell(self, place: int, tensor: torch.Tensor) -> None:
        """Tells of one. Raises UnsupportedError where slow paths are refused."""
        name, (reason, avoidable) = _NAMES[place], _reason(tensor)
        if self.notes.get(name) != reason:
            if avoidable:
                told(f"{name} is copied at every call: {reason}", _PAGE)
            self.notes[name] = reason


def _reason(tensor: torch.Tensor) -> tuple[str, bool]:
    """Why a tensor is copied, and whether other memory would need no copy."""
    if tensor.is_neg():
        return "its memory holds the negatives of its elements, as of the imaginary part of a conjugate", True
    if tensor.stride(-1) != 1 and tensor.shape[-1] != 1:
        return "elements of one head are not side by side in memory, as of a transposed tensor", True
    if tensor.shape[-1] * tensor.element_size() % _ALIGNED:
        return f"its {tensor.shape[-1]} columns of {tensor.dtype} are no multiple of 16 bytes", False
    return "its address or a stride is no multiple of 16 bytes, or its rows share memory", True
