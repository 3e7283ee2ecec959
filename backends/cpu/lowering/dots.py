"""Rules for matrix products: outer products of broadcast elements with vectors of query rows."""

from attn_mlir.backends.cpu.lowering import emit, matrix_tiles, pairs, single_row
from attn_mlir.backends.cpu.lowering.blocks import blocked, overlapping
from attn_mlir.backends.cpu.lowering.context import LanePairs, LaneTile, Lowering, RowTile
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir, scf, vector


def _tiles(context: Lowering, a: ir.Value, b: ir.Value) -> tuple[LaneTile, RowTile]:
    left, right = context.get(a), context.get(b)
    if not isinstance(left, LaneTile) or not isinstance(right, RowTile):
        raise UnsupportedError("products take query rows on the left, keys or values on the right")
    return left, right


def lower_dot(context: Lowering, op: ir.Operation) -> None:
    """`tile.dot` with transposed b: scores of all query rows against `rows` keys at a time."""
    if isinstance(context.get(op.operands[0]), LanePairs):
        multiply = matrix_tiles.lower_dot if "tiles" in op.attributes else pairs.lower_dot
        multiply(context, op, _value(context.values[_extent_of(op.operands[1])]))
        return
    left, right = _tiles(context, op.operands[0], op.operands[1])
    depth = ir.RankedTensorType(op.operands[0].type).shape[1]
    target = LaneTile(context.buffer(op))
    count = context.values[_extent_of(op.operands[1])]
    context.values[op.results[0]] = target
    if context.lanes == 1:
        single_row.scores(context, left, right, target, depth, _value(count))
        return
    rows = context.target.rows_per_step(context.lanes, context.score_bytes)

    def block(first: ir.Value, rows: int) -> None:
        keys = []
        for r in range(rows):
            key = emit.add(emit.to_i64(first), emit.integer(r))
            keys.append(emit.element_pointer(right.address, emit.mul(key, right.stride), context.score))
        zero = emit.number(context.row_type, 0.0)
        loop = scf.ForOp(emit.index(0), emit.index(depth), emit.index(1), [zero] * rows)
        with ir.InsertionPoint(loop.body):
            d = loop.induction_variable
            query = context.load_column(left, d)
            sums = []
            for key, partial in zip(keys, loop.inner_iter_args, strict=True):
                element = emit.load(context.score, emit.element_pointer(key, d, context.score))
                sums.append(vector.FMAOp(emit.splat(element, context.lanes), query, partial).result)
            scf.YieldOp(sums)
        for r, total in enumerate(loop.results):
            context.store_column(total, target, emit.add(first, emit.index(r)))

    overlapping(_value(count), rows, block)


def lower_dot_accumulate(context: Lowering, op: ir.Operation) -> None:
    """`tile.dot_add` and `tile.dot_rescale`: `rows` columns of the output for all query rows at a time."""
    rescale = op.name == "tile.dot_rescale"
    accumulator = context.get(op.operands[0])
    scale = context.scalar(op.operands[1]) if rescale else None
    a, b = list(op.operands)[2:] if rescale else list(op.operands)[1:]
    if isinstance(context.get(a), LanePairs):
        add = matrix_tiles.lower_dot_accumulate if "tiles" in op.attributes else pairs.lower_dot_accumulate
        add(context, op, scale, a, b, _value(context.values[_extent_of(b)]))
        return
    left, right = _tiles(context, a, b)
    columns = ir.RankedTensorType(b.type).shape[1]
    count = _value(context.values[_extent_of(b)])
    rows = context.target.rows_per_step(context.lanes, context.score_bytes)
    if not isinstance(accumulator, LaneTile):
        raise UnsupportedError("products accumulate into query rows")
    context.values[op.results[0]] = accumulator
    if context.lanes == 1:
        single_row.accumulate(context, left, right, accumulator, scale, columns, count)
        return

    def block(first: ir.Value, rows: int) -> None:
        positions = [emit.add(first, emit.index(r)) for r in range(rows)]
        # A block's sum starts from zero: the longer a chain of additions, the more rounding errors it gathers.
        initial = [emit.number(context.row_type, 0.0)] * rows
        base = emit.element_pointer(right.address, first, context.score)
        loop = scf.ForOp(emit.index(0), count, emit.index(1), initial)
        with ir.InsertionPoint(loop.body):
            j = loop.induction_variable
            weight = context.load_column(left, j)
            value_row = emit.element_pointer(base, emit.mul(emit.to_i64(j), right.stride), context.score)
            sums = []
            for r, partial in enumerate(loop.inner_iter_args):
                element = emit.load(context.score, emit.element_pointer(value_row, emit.integer(r), context.score))
                sums.append(vector.FMAOp(emit.splat(element, context.lanes), weight, partial).result)
            scf.YieldOp(sums)
        for position, total in zip(positions, loop.results, strict=True):
            old = context.load_column(accumulator, position)
            context.store_column(pairs.add_scaled(old, scale, total), accumulator, position)

    blocked(emit.index(0), emit.index(columns), rows, block)


def _extent_of(tile: ir.Value) -> ir.Value:
    """The value that says how many rows a tile of keys or values has: the op that made it has it as an operand."""
    op = tile.owner.operation
    count = {"tile.load": 4, "tile.gather": 4, "tile.load_pages": 5}.get(op.name, 0)
    return op.operands[count]


def _value(lowered: object) -> ir.Value:
    if not isinstance(lowered, ir.Value):
        raise UnsupportedError("an extent is an index")
    return lowered
