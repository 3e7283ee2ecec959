"""The rules for `tile.band` and `tile.add_band`: one number for each diagonal of a tile, in a row.

Diagonal n holds the elements (i, j) with i - j = n - (columns - 1). A column of a band so is a vector of lanes that begins one element
before that of the column to its left.
"""

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import ColumnTile, LaneTile, Lowering
from attn_mlir.backends.cpu.lowering.maps import lower_scalar
from attn_mlir.backends.cpu.lowering.memory import memory_of
from attn_mlir.backends.cpu.lowering.scatter import ScatterPlace
from attn_mlir.backends.cpu.lowering.windows import kept_type
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import arith, ir, llvm, scf, vector


def lower_band(context: Lowering, op: ir.Operation) -> None:
    """`tile.band`: the region on vectors of diagonals."""
    rows, columns = (context.scalar(value) for value in op.operands)
    element = ir.RankedTensorType(op.results[0].type).element_type
    kept, buffer = kept_type(element, context.score), context.buffer(op)
    lanes = context.lanes
    last = arith.SubIOp(columns, emit.index(1)).result
    loop = scf.ForOp(emit.index(0), emit.add(rows, last), emit.index(lanes), [])
    with ir.InsertionPoint(loop.body):
        (value,), _ = _on_diagonals(context, op, loop.induction_variable, emit.add(rows, last), last)
        place = emit.element_pointer(buffer, loop.induction_variable, kept)
        emit.store(_to_kept(emit.splat(value, lanes), kept), place)
        scf.YieldOp([])
    context.values[op.results[0]] = ColumnTile(emit.element_pointer(buffer, last, kept), emit.integer(-1), kept)


def _to_kept(value: ir.Value, kept: ir.Type) -> ir.Value:
    type_ = emit.element_of(value.type)
    if isinstance(type_, ir.FloatType):
        return emit.cast_float(value, kept)
    return value if type_ == kept else arith.ExtUIOp(ir.VectorType.get(value.type.shape, kept), value).result


def _on_diagonals(context: Lowering, op: ir.Operation, first: ir.Value, count: ir.Value, last: ir.Value) -> tuple[list[ir.Value], ir.Value]:
    """What the region yields for diagonals from `first` on, a vector of them, and which of these there are; others repeat the last."""
    lanes = context.lanes
    *inner, end = (view.operation for view in op.regions[0].blocks[0].operations)
    numbers = arith.AddIOp(emit.splat(first, lanes), emit.lane_numbers(lanes)).result
    there = arith.CmpIOp(arith.CmpIPredicate.slt, numbers, emit.splat(count, lanes)).result
    most = arith.SubIOp(count, emit.index(1)).result
    numbers = arith.MinSIOp(numbers, emit.splat(most, lanes)).result
    zero, middle = emit.splat(emit.index(0), lanes), emit.splat(last, lanes)
    i = arith.MaxSIOp(arith.SubIOp(numbers, middle).result, zero).result
    j = arith.MaxSIOp(arith.SubIOp(middle, numbers).result, zero).result
    context.values.update(zip(op.regions[0].blocks[0].arguments, (i, j), strict=True))
    for each in inner:
        lower_scalar(context, each)
    return [context.scalar(value) for value in end.operands], there


def lower_add_band(context: Lowering, op: ir.Operation) -> None:
    """`tile.add_band`: diagonals are summed in registers, which move by a lane from column to column, then added at their places."""
    tile, target, rows, columns = op.operands
    weights, memory = context.get(tile), memory_of(context, target)
    if not isinstance(weights, LaneTile):
        raise UnsupportedError("sums of diagonals are of a tile along lanes")
    count, last = context.scalar(rows), arith.SubIOp(context.scalar(columns), emit.index(1)).result
    sums = _sum_diagonals(context, weights, context.buffer(op), count, context.scalar(columns))
    diagonals = emit.add(count, last)
    loop = scf.ForOp(emit.index(0), diagonals, emit.index(context.lanes), [])
    with ir.InsertionPoint(loop.body):
        first = loop.induction_variable
        indices, there = _on_diagonals(context, op, first, diagonals, last)
        left = arith.MinSIOp(arith.SubIOp(diagonals, first).result, emit.index(context.lanes)).result
        value = emit.load(context.row_type, emit.element_pointer(sums, first, context.score))
        ScatterPlace(context, memory, left, there).add(value, indices)
        scf.YieldOp([])


def _sum_diagonals(context: Lowering, tile: LaneTile, buffer: ir.Value, rows: ir.Value, columns: ir.Value) -> ir.Value:
    """The address of the sums, in order; only those of the first `rows` + `columns` - 1 diagonals are written."""
    lanes, score = context.lanes, context.score
    sums = emit.element_pointer(buffer, emit.index(lanes), score)
    valid = arith.CmpIOp(arith.CmpIPredicate.slt, emit.lane_numbers(lanes), emit.splat(rows, lanes)).result
    zeros = emit.number(context.row_type, 0.0)
    up = ir.DenseI32ArrayAttr.get([2 * lanes - 1, *range(lanes - 1)])
    loop = scf.ForOp(emit.index(0), columns, emit.index(1), [zeros])
    with ir.InsertionPoint(loop.body):
        j = loop.induction_variable
        column = arith.SelectOp(valid, context.load_column(tile, j), zeros).result
        total = arith.AddFOp(loop.inner_iter_args[0], column).result
        # The uppermost lane's diagonal ends here: it has no element further to the right.
        number = arith.SubIOp(emit.add(columns, emit.index(lanes - 2)), j).result
        emit.store(vector.ExtractOp(total, [], [lanes - 1]).result, emit.element_pointer(sums, number, score))
        scf.YieldOp([llvm.ShuffleVectorOp(total.type, total, zeros, up).res])
    emit.store(loop.results[0], emit.element_pointer(sums, emit.integer(-1), score))
    return sums
