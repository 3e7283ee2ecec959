"""The argument `scale` of attention: a constant of the program where it is the usual one, else an argument of it."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from attn_mlir.errors import ArgumentError, UnsupportedError


def scale_form(scale: float | None, head_dim: int) -> tuple[str | float, float]:
    """How the scale enters the program, and its value: the default and 1 are compiled in, others are arguments."""
    if scale is None:
        return 1.0 / math.sqrt(head_dim), 0.0
    if type(scale) is not float:
        scale = _number(scale)
    if not math.isfinite(scale):
        raise ArgumentError(f"scale must be finite, got {scale}")
    if scale in (1.0, 1.0 / math.sqrt(head_dim)):
        return float(scale), 0.0
    return "runtime", float(scale)


def _number(scale: Any) -> float:
    """The scale as a float; numpy scalars and tensors of one element are taken too."""
    if isinstance(scale, torch.Tensor) and scale.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(
            "scale requires a gradient, but it is taken as a number: pass scale=1.0 and multiply in score_mod, "
            "as in lambda score, b, h, q_idx, kv_idx: score * scale, or with linear attention in q_mod, as in lambda x: x * scale; "
            "or pass scale.detach()"
        )
    number = scale
    if not isinstance(scale, (int, float)):
        try:
            number = scale.item()
        except (AttributeError, RuntimeError, TypeError, ValueError):
            number = None
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        shape = getattr(scale, "shape", ())
        given = f"{type(scale).__name__} of shape {list(shape)}" if shape else type(scale).__name__
        if isinstance(scale, (torch.Tensor, np.generic, np.ndarray)):
            given += f" of dtype {scale.dtype}"
        if isinstance(scale, (torch.SymInt, torch.SymFloat)):
            given += ", which torch.export leaves open: pass scale=1.0 and multiply in score_mod"
        raise ArgumentError(f"scale must be a number or None, got {given}")
    try:
        return float(number)
    except OverflowError:
        raise ArgumentError("scale must be finite, got an integer that is too large for a float") from None


def forms(found: Sequence[tuple[str | float, Any]]) -> tuple[str | float, tuple[str | float, ...], Any]:
    """How the scale enters a program: for q k^T, for each additional product, and the value where it is an argument.

    `found` has what `scale_form` gives for each, since the default is that of each pair's own head dimension.
    """
    factor = next((value for form, value in found if form == "runtime"), 0.0)
    return found[0][0], tuple(form for form, _ in found[1:]), factor
