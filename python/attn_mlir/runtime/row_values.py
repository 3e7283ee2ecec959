"""Values of rows [B, H, S] that pieces of a program are given and give, on the device of the tensors that they go with."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def score_of(x: Any) -> torch.dtype:
    """The dtype of scores, row values, decays and states for inputs such as x."""
    return torch.float64 if isinstance(x, Tensor) and x.dtype == torch.float64 else torch.float32


def row_indices(rows: Sequence[int], device: torch.device) -> list[Tensor]:
    """b, h and the position of rows [B, H, S], each of three dimensions."""
    return [torch.arange(n, device=device).reshape([-1 if i == axis else 1 for i in range(3)]) for axis, n in enumerate(rows)]


def value_like(x: Any, like: Tensor) -> Tensor:
    """A tensor, or a number, of `like`'s type and on its device. Numbers are filled in: a copy waits for all that the device has to do."""
    if isinstance(x, Tensor) and (x.dim() or x.device == like.device):
        return x.to(like.device, like.dtype)
    return torch.full((), float(x), dtype=like.dtype, device=like.device)


def column_like(scale: Any, like: Tensor) -> Tensor:
    """The same as a factor of `like`'s rows, [B, H, S, 1], or one number."""
    scale = value_like(scale, like)
    return scale.unsqueeze(-1) if scale.dim() else scale
