"""Products for a single query row, whose tiles are plain rows of numbers: vectors lie along the head dimension.

Keys and values of 16 bits are read where they lie, and widened in registers: each is read once, so that a copy would cost more.
"""

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.blocks import overlapping
from attn_mlir.backends.cpu.lowering.context import LaneTile, Lowering, RowTile
from attn_mlir.mlir import arith, ir, scf, vector

_KEYS, _VECTORS = 8, 8
"""Keys whose scores are summed up at a time, and vectors of an output's columns."""


def scores(context: Lowering, left: LaneTile, right: RowTile, target: LaneTile, depth: int, count: ir.Value) -> None:
    """The products of the row with `count` keys."""

    def block(first: ir.Value, keys: int) -> None:
        numbers = [emit.add(emit.to_i64(first), emit.integer(r)) for r in range(keys)]
        rows = [emit.element_pointer(right.address, emit.mul(number, right.stride), _element(context, right)) for number in numbers]
        totals = [emit.number(context.score, 0.0)] * keys
        for begin, end, width in _spans(context, depth):
            type_ = _vector(context, width)
            loop = scf.ForOp(emit.index(begin), emit.index(end), emit.index(width), [emit.number(type_, 0.0)] * keys)
            with ir.InsertionPoint(loop.body):
                d = loop.induction_variable
                query = _load(context, type_, left.address, d)
                sums = [
                    vector.FMAOp(_load_of(context, right, type_, row, d), query, part).result
                    for row, part in zip(rows, loop.inner_iter_args, strict=True)
                ]
                scf.YieldOp(sums)
            totals = [arith.AddFOp(total, _across(part)).result for total, part in zip(totals, loop.results, strict=True)]
        for number, total in zip(numbers, totals, strict=True):
            context.store_column(emit.splat(total, 1), target, emit.to_index(number))

    overlapping(count, _KEYS, block)


def accumulate(
    context: Lowering, weights: LaneTile, right: RowTile, target: LaneTile, scale: ir.Value | None, columns: int, count: ir.Value
) -> None:
    """Adds the sum of `count` values times their weights to `target`, which is multiplied by `scale` before."""
    factor = None if scale is None else vector.ExtractOp(scale, [], [0]).result

    def block(first: int, vectors: int, width: int) -> None:
        type_ = _vector(context, width)
        places = [emit.index(first + n * width) for n in range(vectors)]
        # A block's sum starts from zero: the longer a chain of additions, the more rounding errors it gathers.
        loop = scf.ForOp(emit.index(0), count, emit.index(1), [emit.number(type_, 0.0)] * vectors)
        with ir.InsertionPoint(loop.body):
            j = loop.induction_variable
            weight = emit.splat(emit.load(context.score, emit.element_pointer(weights.address, j, context.score)), width)
            row = emit.element_pointer(right.address, emit.mul(emit.to_i64(j), right.stride), _element(context, right))
            sums = [
                vector.FMAOp(_load_of(context, right, type_, row, place), weight, part).result
                for place, part in zip(places, loop.inner_iter_args, strict=True)
            ]
            scf.YieldOp(sums)
        for place, total in zip(places, loop.results, strict=True):
            old = _load(context, type_, target.address, place)
            whole = arith.AddFOp(old, total) if factor is None else vector.FMAOp(old, emit.splat(factor, width), total)
            emit.store(whole.result, emit.element_pointer(target.address, place, context.score), alignment=context.score_bytes)

    for begin, end, width in _spans(context, columns):
        for first in range(begin, end, _VECTORS * width):
            block(first, min(_VECTORS, (end - first) // width), width)


def _spans(context: Lowering, size: int) -> list[tuple[int, int, int]]:
    """[begin, end) and the width of vectors: whole ones, then single numbers."""
    lanes = context.target.vector_bytes // context.score_bytes
    whole = size // lanes * lanes
    return [span for span in ((0, whole, lanes), (whole, size, 1)) if span[0] < span[1]]


def _vector(context: Lowering, width: int) -> ir.VectorType:
    return ir.VectorType.get([width], context.score)


def _load(context: Lowering, type_: ir.Type, address: ir.Value, offset: ir.Value) -> ir.Value:
    return emit.load(type_, emit.element_pointer(address, offset, context.score), alignment=context.score_bytes)


def _element(context: Lowering, tile: RowTile) -> ir.Type:
    return tile.narrow or context.score


def _load_of(context: Lowering, tile: RowTile, type_: ir.VectorType, row: ir.Value, column: ir.Value) -> ir.Value:
    """Numbers of a row of keys or values, as scores."""
    element = _element(context, tile)
    return emit.cast_float(emit.load(ir.VectorType.get(type_.shape, element), emit.element_pointer(row, column, element)), context.score)


def _across(value: ir.Value) -> ir.Value:
    """The sum of a vector's elements."""
    fast = ir.Attribute.parse("#arith.fastmath<reassoc>")
    return vector.ReductionOp(value.type.element_type, vector.CombiningKind.ADD, value, fastmath=fast).result
