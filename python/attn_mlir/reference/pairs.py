"""`attn.pairs` and `attn.elements`: weights as dense arrays, and what is summed with them."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from attn_mlir.dialects.attn.pairs import residual_factor
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import block_of, piece
from attn_mlir.reference.errors import EvaluationError, OutOfBoundsError
from attn_mlir.reference.interpreter import EvaluationFrame
from attn_mlir.reference.presence import pairs_presence
from attn_mlir.reference.problem import OpInputs, further_products, grid, weighted_sum
from attn_mlir.reference.scalar import Array


@dataclasses.dataclass(frozen=True)
class Weights:
    """What the `none` of `attn.pairs` or `attn.elements` stands for: weights of every position, those of absent pairs are 0."""

    arrays: list[Array]
    present: Array
    group: int = 1
    """Query heads per key head, of pairs."""
    number: int = 0
    """That of the first batch entry."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.present.shape


def pairs(p: OpInputs) -> Weights:
    """The weights of an `attn.pairs`, each [B, Hq, Sq, Skv]."""
    present = pairs_presence(p)
    yielded = p.run(_piece(p.op, "attn.pair"), [*further_products(p), *p.indices()], present)
    return Weights([np.where(present, w, 0.0) for w in yielded], present, p.group)


def elements(op: ir.Operation, frame: EvaluationFrame, like: Array, number: int = 0) -> Weights:
    """The weights of an `attn.elements`, each shaped like `like`; `number` is that of the first batch entry."""
    yielded = frame.with_().run(block_of(_piece(op, "attn.element")), grid(like.shape, number))
    return Weights([np.array(np.broadcast_to(w, like.shape)) for w in yielded], np.ones(like.shape, bool))


def query_sum(op: ir.Operation, w: Weights, tensors: Sequence[Array]) -> Array:
    """For every query the sum over keys of weights times rows of key tensors."""
    b, hq, sq, skv = w.shape
    total = np.zeros((b, hq, sq, tensors[0].shape[3]))
    for number, rows in zip(op.attributes["weights"], tensors, strict=True):
        _check_rows(op, rows, (b, hq // w.group, skv))
        total += weighted_sum(w.arrays[number], np.repeat(rows, w.group, axis=1), w.present)
    return total


def key_sum(op: ir.Operation, w: Weights, tensors: Sequence[Array]) -> Array:
    """For every key the sum over queries, also of all heads of its group, of weights times rows of query tensors."""
    b, hq, sq, skv = w.shape
    total = np.zeros((b, hq, skv, tensors[0].shape[3]))
    for number, rows in zip(op.attributes["weights"], tensors, strict=True):
        _check_rows(op, rows, (b, hq, sq))
        total += weighted_sum(np.swapaxes(w.arrays[number], 2, 3), rows, np.swapaxes(w.present, 2, 3))
    return total.reshape(b, hq // w.group, w.group, skv, -1).sum(axis=2)


def scatter(op: ir.Operation, frame: EvaluationFrame, w: Weights, like: Array) -> Array:
    """The sum of the weights that belong at each element of `like`."""
    total = np.zeros(like.shape)
    places = frame.with_(live=w.present).run(block_of(op), grid(w.shape, w.number))
    indices = [np.broadcast_to(place, w.shape)[w.present] for place in places]
    for axis, (index, size) in enumerate(zip(indices, like.shape, strict=True)):
        outside = (index < 0) | (index >= size)
        if outside.any():
            worst = index[outside][0]
            raise OutOfBoundsError(f"'attn.scatter' adds at index {worst} of dimension {axis}, which has size {size}", op.location)
    added = w.arrays[op.attributes["weight"].value][w.present]
    if indices:
        np.add.at(total, tuple(indices), added)
    else:
        total += added.sum()
    return total


def collect(op: ir.Operation, w: Weights) -> Array:
    """One weight of every element."""
    return w.arrays[op.attributes["weight"].value]


def row_dot(op: ir.Operation, a: Array, b: Array, residual: Array | None = None) -> Array:
    """The products of the rows of two tensors, of the second one with its residual."""
    if any(x.shape != a.shape for x in (b, residual) if x is not None):
        raise EvaluationError(f"'attn.row_dot' multiplies tensors of shapes {list(a.shape)} and {list(b.shape)}", op.location)
    factor = residual_factor(ir.RankedTensorType(op.operands[1].type).element_type)
    return np.einsum("bhid,bhid->bhi", a, b if residual is None or factor is None else b + residual / factor)


def _check_rows(op: ir.Operation, rows: Array, wanted: tuple[int, ...]) -> None:
    if rows.shape[:3] != wanted:
        raise EvaluationError(f"'{op.name}' sums rows of a tensor {list(rows.shape)}; its weights are those of {list(wanted)}", op.location)


def _piece(op: ir.Operation, name: str) -> ir.Operation:
    found = piece(op, name)
    if found is None:
        raise EvaluationError(f"'{op.name}' has no '{name}'", op.location)
    return found
