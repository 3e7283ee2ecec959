"""Orders of dimensions: a layout names that of q, k and v and that of o, as "bshd" (both) or "bhsd->bshd".

Operators and kernels take tensors [B, H, S, D]; the layout then says which order the memory of what they return has: o and its tangent
that of o, gradients of q, k and v that of these.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

REPEATED = ("bhsd", "bshd")
"""Layouts, the same for q, k, v and o, for which kernels know a short way; see `driver.Repeating`."""


def input_order(layout: str) -> str:
    """The order of q, k, v and of their gradients in a layout."""
    return layout[:4]


def output_order(layout: str) -> str:
    """The order of o and of its tangent in a layout."""
    return layout[-4:]


def heads_first(tensor: Tensor, order: str) -> Tensor:
    """A tensor of some order as [B, H, S, D]."""
    if order == "bhsd":
        return tensor
    return tensor.transpose(1, 2) if order == "bshd" else tensor.permute(1, 2, 0, 3)


def in_order(tensor: Tensor, order: str) -> Tensor:
    """A tensor [B, H, S, D] as one of some order: the inverse of `heads_first`."""
    if order == "bhsd":
        return tensor
    return tensor.transpose(1, 2) if order == "bshd" else tensor.permute(2, 0, 1, 3)


def all_heads_first(tensors: Sequence[Any], order: str, count: int) -> Sequence[Any]:
    """The tensors, of which the first ones, or None, become [B, H, S, D]."""
    if order == "bhsd":
        return tensors
    return [heads_first(tensor, order) if i < count and tensor is not None else tensor for i, tensor in enumerate(tensors)]


def all_in_order(tensors: Sequence[Any], order: str, count: int) -> Sequence[Any]:
    """The tensors, of which the first ones, or None, get an order."""
    if order == "bhsd":
        return tensors
    return [in_order(tensor, order) if i < count and tensor is not None else tensor for i, tensor in enumerate(tensors)]
