"""The rule for `tile.accumulate`: rows of memory plus weighted sums of rows, vectorised along the head dimension.

Several rows of the target are in registers at a time, so that each vector of a source row is loaded once for all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.backends.cpu.lowering import emit, matrix_tiles
from attn_mlir.backends.cpu.lowering.blocks import blocked
from attn_mlir.backends.cpu.lowering.context import LanePairs, LaneTile, Lowered, Lowering, MemRef, RowPairs, RowTile
from attn_mlir.backends.cpu.lowering.packing import word_type
from attn_mlir.backends.cpu.lowering.pairs import dot_words, row_pairs
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import arith, ir, scf, vector

_PARTS = 4  # vectors of a row that are in registers at a time
_ACCUMULATORS = 16

Part = tuple[int, int]


def lower_accumulate(context: Lowering, op: ir.Operation) -> None:
    """`tile.accumulate`."""
    a, b, target, *place, count = op.operands
    weights, memory = context.get(a), context.get(target)
    if not isinstance(memory, MemRef):
        raise UnsupportedError("sums are added to an argument")
    base = emit.integer(0)
    for index, stride in zip(place, memory.strides, strict=False):
        base = emit.add(base, emit.mul(emit.to_i64(context.scalar(index)), stride))
    rows_of = RowTile(emit.element_pointer(memory.address, base, context.score), memory.strides[3])
    columns = ir.RankedTensorType(b.type).shape[1]
    maker = b.owner.operation
    terms = context.scalar(maker.operands[4] if maker.name in ("tile.load", "tile.gather") else maker.operands[0])
    operands = _pairs(context, weights, b, terms) if isinstance(weights, LanePairs) else _singles(context, weights, b, terms)
    width = context.target.vector_bytes // context.score_bytes
    step = min(_PARTS, max(1, columns // width)) * width
    whole = columns // step * step

    first_row = emit.index(0)
    if "tiles" in op.attributes:
        first_row = matrix_tiles.accumulate(context, *_packed(context, weights, b), rows_of, terms, context.scalar(count))

    def run(begin: ir.Value, parts: list[Part]) -> None:
        sums = _Sums(context, operands, rows_of, begin, parts)
        blocked(first_row, context.scalar(count), max(1, _ACCUMULATORS // len(parts)), sums.add)

    loop = scf.ForOp(emit.index(0), emit.index(whole), emit.index(step), [])
    with ir.InsertionPoint(loop.body):
        run(loop.induction_variable, [(offset, width) for offset in range(0, step, width)])
        scf.YieldOp([])
    rest = _parts(columns - whole, width)
    for first in range(0, len(rest), _PARTS):
        run(emit.index(whole), rest[first : first + _PARTS])


@dataclass(frozen=True)
class _Operands:
    """What is multiplied, in elements of one type: numbers, or words of two bf16. `weights` has `stride` of them for each column."""

    element: ir.Type
    weights: ir.Value
    stride: int
    rows: RowTile
    terms: ir.Value
    multiply: Callable[[ir.Value, ir.Value, ir.Value], ir.Value]


def _singles(context: Lowering, weights: Lowered, b: ir.Value, terms: ir.Value) -> _Operands:
    rows = context.get(b)
    if not isinstance(weights, LaneTile) or not isinstance(rows, RowTile):
        raise UnsupportedError("sums in memory multiply weights along lanes and rows")
    return _Operands(context.score, weights.address, context.lanes, rows, terms, lambda a, b, c: vector.FMAOp(a, b, c).result)


def _packed(context: Lowering, weights: Lowered, b: ir.Value) -> tuple[LanePairs, RowPairs]:
    rows = row_pairs(context.get(b))
    if not isinstance(weights, LanePairs) or not isinstance(rows, RowPairs):
        raise UnsupportedError("sums of pairs multiply weights of a map and packed rows")
    return weights, rows


def _pairs(context: Lowering, weights: LanePairs, b: ir.Value, terms: ir.Value) -> _Operands:
    _, rows = _packed(context, weights, b)
    if weights.columns is None:
        raise UnsupportedError("sums of pairs multiply the weights of a map")
    half = arith.DivUIOp(emit.add(terms, emit.index(1)), emit.index(2)).result
    packed = RowTile(rows.address, emit.integer(rows.columns))
    return _Operands(
        word_type(),
        weights.columns,
        context.lanes // 2,
        packed,
        half,
        lambda a, b, c: dot_words(c, b, a, context.target.executes("avx512_bf16")),
    )


def _parts(columns: int, width: int) -> list[Part]:
    """Cuts columns into vectors, ever narrower ones towards the end."""
    parts, offset = [], 0
    while columns - offset:
        while width > columns - offset:
            width //= 2
        parts.append((offset, width))
        offset += width
    return parts


class _Sums:
    """Sums for some columns of the target: those of `parts`, counted from `begin`."""

    def __init__(self, context: Lowering, operands: _Operands, target: RowTile, begin: ir.Value, parts: list[Part]) -> None:
        self._score, self._operands, self._target = context.score, operands, target
        self._begin, self._parts = emit.to_i64(begin), parts

    def add(self, first: ir.Value, rows: int) -> None:
        """Adds to `rows` rows from `first` on."""
        given, score = self._operands, self._score
        positions = [emit.add(emit.to_i64(first), emit.integer(r)) for r in range(rows)]
        places = [place for position in positions for place in self._places(self._target, position, score)]
        widths = [width for _, width in self._parts]
        initial = [emit.load(ir.VectorType.get([w], score), place) for w, place in zip(widths * rows, places, strict=True)]
        columns = [emit.element_pointer(given.weights, emit.mul(p, emit.integer(given.stride)), given.element) for p in positions]
        loop = scf.ForOp(emit.index(0), given.terms, emit.index(1), initial)
        with ir.InsertionPoint(loop.body):
            i = emit.to_i64(loop.induction_variable)
            sources = self._places(given.rows, i, given.element)
            row = [emit.load(ir.VectorType.get([w], given.element), place) for w, place in zip(widths, sources, strict=True)]
            totals = list(loop.inner_iter_args)
            for r, column in enumerate(columns):
                weight = emit.load(given.element, emit.element_pointer(column, i, given.element))
                for p, width in enumerate(widths):
                    n = r * len(widths) + p
                    totals[n] = given.multiply(emit.splat(weight, width), row[p], totals[n])
            scf.YieldOp(totals)
        for place, total in zip(places, loop.results, strict=True):
            emit.store(total, place)

    def _places(self, tile: RowTile, row: ir.Value, element: ir.Type) -> list[ir.Value]:
        base = emit.element_pointer(tile.address, emit.add(emit.mul(row, tile.stride), self._begin), element)
        return [emit.element_pointer(base, emit.integer(offset), element) for offset, _ in self._parts]
