"""Ops on packed tensors (`attn.sequences`): each sequence by itself, as a batch of one."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import pieces
from attn_mlir.passes.sequences import Packing, packing_of, pages_of
from attn_mlir.reference.errors import OutOfBoundsError
from attn_mlir.reference.interpreter import EvaluationFrame
from attn_mlir.reference.pairs import Weights
from attn_mlir.reference.problem import Blocking, OpInputs, pairs_problem, problem
from attn_mlir.reference.scalar import Array

_SIDES = (("query", 0), ("key", 1))


@dataclasses.dataclass(frozen=True)
class PackedWeights:
    """The weights of an `attn.pairs` or `attn.elements`: those of each sequence, and its rows of queries and of keys."""

    parts: list[tuple[Weights, slice, slice]]

    def sums(self, like: Sequence[int], side: int, make: Callable[[Weights, list[Array]], Array], tensors: Sequence[Array]) -> Array:
        """What `make` gives of each sequence's weights and rows of `tensors`, in the rows of the side 0 (queries) or 1 (keys)."""
        total = np.zeros(tuple(like))
        for weights, *rows in self.parts:
            if 0 in weights.shape:  # nothing to add up
                continue
            total[:, :, rows[side]] = make(weights, [tensor[:, :, rows[1 - side]] for tensor in tensors])
        return total

    def added(self, make: Callable[[Weights], Array]) -> Array:
        """The sum of what `make` gives of all sequences."""
        return sum((make(weights) for weights, _, _ in self.parts), np.zeros(()))


def packed_attention(
    op: ir.Operation, frame: EvaluationFrame, args: list[Array], blocks: Blocking, run: Callable[[OpInputs], list[Array]]
) -> list[Array]:
    """The results of an `attn.attention` or `attn.online`, of which `run` computes one sequence; rows of none are 0, their lse -inf."""
    q, k, v = args
    names = [name.value for name in op.attributes["outputs"]]
    rows = q.shape[:3]
    results = [np.zeros((*rows, v.shape[3])), *(np.full(rows, -np.inf if name == "lse" else 0.0) for name in names)]
    more: list[Array] = []
    of_queries = packing_of(op, "query")
    by_heads = of_queries is not None and of_queries.by_heads
    for number, inner, of_q, of_k in _sequences(op, frame):
        at = (of_q,) if by_heads else (slice(None), slice(None), of_q)
        p = problem(op, inner, [q[at], *(_keys(op, frame, x, number, of_k) for x in (k, v))], blocks)
        made = run(dataclasses.replace(p, number=number))
        further = inner.outputs.get(op.results[0], [])
        more = more or [np.zeros((*rows, each.shape[3])) for each in further]
        for target, value in zip([*results, *more], [*made, *further], strict=True):
            target[at] = value
    frame.outputs[op.results[0]] = more
    return results


def packed_rows(
    op: ir.Operation, frame: EvaluationFrame, rows: Sequence[int], args: list[Array], run: Callable[[OpInputs], list[Array]]
) -> Array:
    """A truth of each row that `run` finds of one sequence; false for rows of none."""
    q, k, v = args
    found = np.zeros(tuple(rows), bool)
    for number, inner, of_q, of_k in _sequences(op, frame):
        p = problem(op, inner, [q[:, :, of_q], *(_keys(op, frame, x, number, of_k) for x in (k, v))], Blocking())
        (found[:, :, of_q],) = run(dataclasses.replace(p, number=number))
    return found


def packed_pairs(op: ir.Operation, frame: EvaluationFrame, blocks: Blocking, run: Callable[[OpInputs], Weights]) -> PackedWeights:
    """The weights of an `attn.pairs`, of which `run` computes one sequence."""
    parts = []
    for number, inner, of_q, of_k in _sequences(op, frame):
        made = run(dataclasses.replace(pairs_problem(op, inner, blocks), number=number))
        parts.append((dataclasses.replace(made, number=number), of_q, of_k))
    return PackedWeights(parts)


def packed_elements(op: ir.Operation, frame: EvaluationFrame, like: Array, run: Callable[[Array, int], Weights]) -> PackedWeights:
    """The weights of an `attn.elements`, of which `run` computes one sequence."""
    (packing,) = [found for side, _ in _SIDES if (found := packing_of(op, side)) is not None]
    parts = []
    for number, rows in enumerate(_rows(frame, packing)):
        made = run(like[:, :, rows], number)
        parts.append((dataclasses.replace(made, number=number), rows, rows))
    return PackedWeights(parts)


def _sequences(op: ir.Operation, frame: EvaluationFrame) -> Iterator[tuple[int, EvaluationFrame, slice, slice]]:
    """Each sequence: its number, a frame in which the op's own tensors are cut to it, and its rows."""
    sides = [packing_of(op, side) for side, _ in _SIDES]
    spans = [_rows(frame, packing) for packing in sides if packing is not None]
    products = [(product.operands, (0, 1)) for product in pieces(op, "attn.product")]
    terms = [(term.operands, (1,)) for term in pieces(op, "attn.term")]
    for number, rows in enumerate(zip(*spans, strict=True)):
        values = dict(frame.values)
        for operands, of in [*products, *terms]:
            for operand, side in zip(operands, of, strict=True):
                whole = frame.values[operand]
                values[operand] = _keys(op, frame, whole, number, rows[1]) if side else whole[:, :, rows[0]]
        yield number, dataclasses.replace(frame, values=values, outputs={}), *rows


def _keys(op: ir.Operation, frame: EvaluationFrame, tensor: Array, number: int, rows: slice) -> Array:
    """The rows of a sequence in a tensor of keys, through its pages where it has some: [1, H, rows, D]."""
    table = pages_of(op)
    if table is None:
        return tensor[:, :, rows]
    positions, size = np.arange(rows.start, rows.stop), tensor.shape[2]
    pages = frame.values[table][number, positions // size].astype(np.int64)
    if len(pages) and not (0 <= pages.min() and pages.max() < len(tensor)):
        raise OutOfBoundsError(f"'attn.pages' names pages from {pages.min()} to {pages.max()} of {len(tensor)}", op.location)
    return tensor[pages, :, positions % size].swapaxes(0, 1)[None]


def _rows(frame: EvaluationFrame, packing: Packing) -> list[slice]:
    begins, lengths = (frame.values[value].astype(np.int64) for value in (packing.begins, packing.lengths))
    if (begins < 0).any() or (lengths < 0).any():
        raise OutOfBoundsError("'attn.sequences' has a sequence that begins or ends before the tensor", ir.Location.unknown())
    return [slice(int(begin), int(begin + length)) for begin, length in zip(begins, lengths, strict=True)]
