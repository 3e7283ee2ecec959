"""Mask functions: `mask(b, h, q_idx, kv_idx)` is true where the key is present. Numbers in them may change without recompiling."""

from collections.abc import Callable
from numbers import Integral
from typing import Any, Literal

import torch

from attn_mlir.api.makers import maker
from attn_mlir.api.mask_strings import parse as parse
from attn_mlir.api.mask_strings import position, window
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.elementary import logical_not
from attn_mlir.frontend.sizes import kv_len, q_len
from attn_mlir.frontend.tensors import CapturedTensor
from attn_mlir.frontend.values import Value

Mask = Callable[[Any, Any, Any, Any], Any]
Size = int | torch.Tensor | None
Align = Literal["top_left", "bottom_right"]


def check_align(align: str) -> None:
    if align not in ("top_left", "bottom_right"):
        raise ArgumentError(
            f'align is "top_left" (query 0 meets key 0) or "bottom_right" (the last query meets the last key), got {align!r}'
        )


@maker
def causal(align: Align = "top_left") -> Mask:
    """A query sees the keys up to its own position.

    Where lengths differ, the position of query i is i with align="top_left" (as in FlexAttention and SDPA), and
    i + Skv - Sq with align="bottom_right" (as in FlashAttention, and as decoding needs it).
    """
    check_align(align)
    if align == "bottom_right":
        return lambda b, h, q_idx, kv_idx: q_idx + (kv_len() - q_len()) >= kv_idx
    return lambda b, h, q_idx, kv_idx: q_idx >= kv_idx


@maker
def sliding_window(left: Size, right: Size = 0, align: Align = "top_left") -> Mask:
    """A query at position i sees the keys i - left to i + right, both included; None or -1: all keys on that side.

    So (-1, 0) is `causal`, and (-1, -1) sees everything, as in FlashAttention and CK. A size may also be an integer tensor of one element,
    which is read at every call; what is negative in it is unlimited.
    """
    check_align(align)
    left, right = _size("left", left), _size("right", right)
    if left is None and isinstance(right, int) and right == 0:
        return causal(align)
    return window(left, right, align == "bottom_right", _within)


def _size(name: str, size: Any) -> Any:
    """The size of one side of a window, None where it has no limit. Raises ArgumentError for what is none."""
    if size is None:
        return None
    if isinstance(size, (torch.Tensor, Value, CapturedTensor)):
        if isinstance(size, torch.Tensor) and (size.dim() or size.is_floating_point() or size.is_complex() or size.dtype == torch.bool):
            raise ArgumentError(f"{name} as a tensor holds one integer and has no dimensions, got {list(size.shape)} of {size.dtype}")
        return size
    if isinstance(size, bool) or not isinstance(size, (int, torch.SymInt, Integral)):
        raise ArgumentError(f"{name} is how many keys a window has on that side: an integer, or None for all of them, got {size!r}")
    if size < -1:
        raise ArgumentError(
            f"{name} is at least 0, or -1 (or None) for all keys on that side, got {size}; a window that leaves out its own position is "
            "a mask of its own: lambda b, h, q_idx, kv_idx: (q_idx - kv_idx <= 8) & (q_idx - kv_idx >= 2)"
        )
    return None if size == -1 else size if isinstance(size, (int, torch.SymInt)) else int(size)


def _within(distance: Any, size: Any) -> Any:
    """Whether a key is no farther away than that; the sign of what is no Python number is known when the mask is computed."""
    if isinstance(size, (int, torch.SymInt)):
        return distance <= size
    zero = distance - distance  # of the program, so that the size is read in it
    return (size < zero) | (distance <= size)


@maker
def document(ids: torch.Tensor, kv_ids: torch.Tensor | None = None) -> Mask:
    """Positions see each other within one document. `ids` holds its number for each position, [S] or [B, S].

    `kv_ids` gives those of the keys, where keys and queries differ.
    """
    document_ids, document_kv_ids = ids, ids if kv_ids is None else kv_ids
    for name, tensor in (("ids", document_ids), ("kv_ids", document_kv_ids)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() not in (1, 2):
            raise ArgumentError(f"{name} must be an integer tensor of shape [positions] or [batch, positions]")
    q_batched, kv_batched = document_ids.dim() == 2, document_kv_ids.dim() == 2

    def same_document(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        mine = document_ids[b, q_idx] if q_batched else document_ids[q_idx]
        theirs = document_kv_ids[b, kv_idx] if kv_batched else document_kv_ids[kv_idx]
        return mine == theirs

    return same_document


@maker
def prefix_lm(prefix: Any) -> Mask:
    """The first `prefix` keys are seen by all, the others causally. `prefix` is a number, or an integer tensor [B]."""
    batched = isinstance(prefix, torch.Tensor) and prefix.dim() == 1
    return lambda b, h, q_idx, kv_idx: (kv_idx < (prefix[b] if batched else prefix)) | (q_idx >= kv_idx)


@maker
def dilated(step: int, align: Align = "top_left") -> Mask:
    """A query sees every `step`-th key, counted from its own position in both directions."""
    check_align(align)
    if isinstance(step, int) and step < 1:
        raise ArgumentError(f"step must be at least 1, got {step}")
    shift = align == "bottom_right"

    def every_nth(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (position(q_idx, shift) - kv_idx) % step == 0

    return every_nth


@maker
def and_(*masks: Mask | str) -> Mask:
    """Present where all masks say so, functions or strings as `parse` takes them."""
    return _combined("and_", masks, lambda x, y: x & y)


@maker
def or_(*masks: Mask | str) -> Mask:
    """Present where any mask says so; see `and_`."""
    return _combined("or_", masks, lambda x, y: x | y)


@maker
def not_(mask: Mask | str) -> Mask:
    """Present where the mask says it is not."""
    function = parse(mask) if isinstance(mask, str) else mask
    return lambda b, h, q_idx, kv_idx: logical_not(function(b, h, q_idx, kv_idx))


def _combined(name: str, given: tuple[Mask | str, ...], combine: Callable[[Any, Any], Any]) -> Mask:
    masks = tuple([parse(mask) if isinstance(mask, str) else mask for mask in given])
    if not masks or not all(callable(mask) for mask in masks):
        raise ArgumentError(f"{name} takes one or more mask functions")

    def combined(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        result = masks[0](b, h, q_idx, kv_idx)
        for mask in masks[1:]:
            result = combine(result, mask(b, h, q_idx, kv_idx))
        return result

    return combined
