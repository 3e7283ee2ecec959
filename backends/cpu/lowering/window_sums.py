"""The rule for `tile.add_window`: columns of a tile are added to a captured tensor's gradient as vectors where lanes follow each other."""

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import LaneTile, Lowering
from attn_mlir.backends.cpu.lowering.scatter import add_vector
from attn_mlir.backends.cpu.lowering.windows import WindowPlace, equal
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import arith, ir, scf


def lower_add_window(context: Lowering, op: ir.Operation) -> None:
    """`tile.add_window`."""
    source, target, rows, columns, *offsets = op.operands
    tile, place = context.get(source), WindowPlace(context, op, target, offsets)
    if not isinstance(tile, LaneTile):
        raise UnsupportedError("what is added to a window is a tile along lanes")
    count, extent, lanes = context.scalar(rows), context.scalar(columns), context.lanes
    full = arith.CmpIOp(arith.CmpIPredicate.eq, count, emit.index(lanes)).result
    branch = scf.IfOp(equal(place.row, 1), [], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        whole = scf.IfOp(full, [], has_else=True)
        with ir.InsertionPoint(whole.then_block):
            _each_column(extent, lambda j: _add_whole(context, tile, place, j))
            scf.YieldOp([])
        with ir.InsertionPoint(whole.else_block):
            mask = arith.CmpIOp(arith.CmpIPredicate.slt, emit.lane_numbers(lanes), emit.splat(count, lanes)).result
            _each_column(extent, lambda j: add_vector(context.load_column(tile, j), mask, place.at(j)))
            scf.YieldOp([])
        scf.YieldOp([])
    with ir.InsertionPoint(branch.else_block):
        _each_column(extent, lambda j: _add_in_turn(context, tile, place, j, count))
        scf.YieldOp([])


def _each_column(columns: ir.Value, body: object) -> None:
    loop = scf.ForOp(emit.index(0), columns, emit.index(1), [])
    with ir.InsertionPoint(loop.body):
        body(loop.induction_variable)  # type: ignore[operator]
        scf.YieldOp([])


def _add_whole(context: Lowering, tile: LaneTile, place: WindowPlace, column: ir.Value) -> None:
    address = place.at(column)
    old = emit.load(context.row_type, address)
    emit.store(arith.AddFOp(old, context.load_column(tile, column)).result, address)


def _add_in_turn(context: Lowering, tile: LaneTile, place: WindowPlace, column: ir.Value, rows: ir.Value) -> None:
    address, values = place.at(column), context.column(tile, column)
    loop = scf.ForOp(emit.index(0), rows, emit.index(1), [])
    with ir.InsertionPoint(loop.body):
        lane = loop.induction_variable
        at = emit.element_pointer(address, emit.mul(emit.to_i64(lane), place.row), place.element)
        value = emit.load(context.score, emit.element_pointer(values, lane, context.score))
        emit.store(arith.AddFOp(emit.load(context.score, at), value).result, at)
        scf.YieldOp([])
