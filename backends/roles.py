"""Shapes of results from their roles, as `attn-outline` describes them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

Shape = Sequence[int]
STATES = re.compile(r"states\((\d+)\.(\d+)/(\d+)\*(\d+)(?:\+(\d+))?\)")

SEGMENTS = re.compile(r"(?:(\d+)\.(\d+)\*)?segments\((\d+)\.(\d+)/(\d+)\)")


def is_linear(role: str) -> bool:
    """Whether a linear attention makes the result; then a problem without positions has states."""
    return role.startswith(("shape:", "heads:"))


def is_same(role: str, operands: Sequence[Any]) -> int | None:
    """The number of the operand that the result of a call is: the sum over groups of one head each. Else None."""
    if not role.startswith("heads:"):
        return None
    x, like = map(int, role[6:].split(","))
    return x if operands[x].shape[1] == operands[like].shape[1] else None


def has_positions(role: str) -> bool:
    """Whether the third dimension counts positions, and not a state's rows."""
    return not role.startswith("shape:") or role.endswith(".2")


def shape_of(role: str, known: Shape, operands: Sequence[Shape], first: Mapping[str, Shape]) -> tuple[int, ...]:
    """The shape of a result of a call.

    `known` are the sizes of its type (-1: any), `operands` the shapes of the call's operands, `first` the first dimensions of the roles
    "query", "key" and "row".
    """
    if role.startswith("like:"):
        return tuple(operands[int(role[5:])][: len(known)])
    if role.startswith("heads:"):
        x, like = map(int, role[6:].split(","))
        return (operands[x][0], operands[like][1], *operands[x][2:])
    sizes = [_size(term, operands) for term in role[6:].split(",")] if role.startswith("shape:") else first[role]
    return (*sizes, *known[3:])


def _size(term: str, operands: Sequence[Shape]) -> int:
    if term.isdigit():
        return int(term)
    if term.startswith("sequences("):
        return operands[int(term[10:-1])][0] - 1
    segments = SEGMENTS.fullmatch(term)
    if segments is not None:
        operand, positions, length = map(int, segments.groups()[2:])
        batch = 1 if segments.group(1) is None else operands[int(segments.group(1))][int(segments.group(2))]
        return batch * -(-operands[operand][positions] // length)
    states = STATES.fullmatch(term)
    if states is None:
        operand, axis = map(int, term.split("."))
        return operands[operand][axis]
    operand, axis, interval, rows = map(int, states.groups()[:4])
    length, offsets = operands[operand][axis], states.group(5)
    count = -(-length // interval) if offsets is None else length // interval + operands[int(offsets)][0] - 1
    return count * rows
