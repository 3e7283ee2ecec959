"""Additional pairs of q and k, `extra_qk=[(q2, k2)]`: the products of each are one more score for every pair of a query and a key."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from attn_mlir.api.inputs import (
    Layout,
    Problem,
    check_device,
    check_dtype,
    check_head_dim,
    check_tensor,
    dimensions,
    layout_of,
)
from attn_mlir.errors import ArgumentError
from attn_mlir.runtime.orders import heads_first, input_order

MAX_PAIRS = 7
_FORM = "extra_qk is a list of pairs of tensors, extra_qk=[(q2, k2)]"


class ExtraPairs(NamedTuple):
    """The tensors of a call as [B, H, S, D], by the names that programs give them, and the head dimension of each pair."""

    values: Mapping[str, torch.Tensor] = {}
    dims: tuple[int, ...] = ()


NONE = ExtraPairs()


def flat(pairs: Any) -> tuple[Any, ...]:
    """q2, k2, q3, k3... of a list of pairs; nothing where it is None. Raises ArgumentError for what is no such list."""
    if pairs is None:
        return ()
    if not isinstance(pairs, (tuple, list)):
        raise ArgumentError(f"{_FORM}; got {type(pairs).__name__}")
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            what = f"a {type(pair).__name__} of {len(pair)}" if isinstance(pair, (tuple, list)) else type(pair).__name__
            raise ArgumentError(f"{_FORM}; got a list with {what}")
    if len(pairs) > MAX_PAIRS:
        raise ArgumentError(f"extra_qk has {len(pairs)} pairs; there may be {MAX_PAIRS}")
    return tuple([tensor for pair in pairs for tensor in pair])


def pair_names(pairs: int) -> list[str]:
    """How messages and programs call the tensors that `flat` gives of so many pairs."""
    return [f"{role}{number}" for number in range(2, pairs + 2) for role in "qk"]


def check_count(count: Any) -> int:
    """How many pairs calls of an object give. Raises ArgumentError."""
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_PAIRS:
        raise ArgumentError(
            f"extra_qk of Attention(...) is the number of additional pairs of q and k that calls give, 0 to {MAX_PAIRS}, got {count!r}: "
            "the tensors are arguments of the call, Attention(row=f, extra_qk=1)(q, k, v, extra_qk=[(q2, k2)])"
        )
    return count


def check_given(given: int, wanted: int) -> None:
    """Checks how many pairs a call of an object gives. Raises ArgumentError."""
    if given != wanted:
        made = f"this Attention was made with extra_qk={wanted}" if wanted else "this Attention was made without extra_qk"
        raise ArgumentError(f"{made}, and the call gives {given} additional pair{'s' * (given != 1)} of q and k")


def extra_pairs(tensors: Sequence[Any], q: torch.Tensor, problem: Problem, layout: Layout) -> ExtraPairs:
    """The pairs of a call whose q, k and v are those of `problem`, of `layout`. Raises ArgumentError naming the tensor that is wrong."""
    if not tensors:
        return NONE
    order = input_order(layout_of(layout))
    values, sizes = {}, problem.sizes
    for i, (name, tensor) in enumerate(zip(pair_names(len(tensors) // 2), tensors, strict=True)):
        check_tensor(name, tensor, order)
        check_dtype(name, tensor, q)
        check_device(name, tensor, q.device)
        values[name] = turned = heads_first(tensor, order)
        wanted = (sizes["B"], sizes["Hkv"], sizes["Skv"]) if i % 2 else (sizes["B"], sizes["Hq"], sizes["Sq"])
        if tuple(turned.shape[:3]) != wanted:
            batch, heads, positions = wanted
            like = "k" if i % 2 else "q"
            raise ArgumentError(
                f"{name} has shape {list(tensor.shape)}, {dimensions(order)}; it must have batch {batch}, {heads} heads and {positions} "
                f"positions as {like} has: only its head dimension may be another one"
            )
    dims = []
    for number in range(2, len(tensors) // 2 + 2):
        a, b = (values[f"{role}{number}"].shape[3] for role in "qk")
        if a != b:
            raise ArgumentError(f"q{number} has head dimension {a} but k{number} has {b}: they must be equal")
        check_head_dim(f"q{number} has head dimension", a)
        dims.append(int(a))
    return ExtraPairs(values, tuple(dims))


def with_dims(problem: Problem, pairs: ExtraPairs) -> Problem:
    """The problem with the head dimensions of additional pairs."""
    return dataclasses.replace(problem, inputs=dataclasses.replace(problem.inputs, extra_dims=pairs.dims)) if pairs.dims else problem
