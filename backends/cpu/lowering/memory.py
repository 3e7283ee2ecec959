"""Rules for loads, stores and fills."""

from collections.abc import Callable

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import ColumnPairs, LaneTile, Lowering, MemRef, RowTile
from attn_mlir.backends.cpu.lowering.packing import pack_lane_rows, pack_lanes, pack_row_columns, pack_rows
from attn_mlir.backends.cpu.lowering.transpose import load_squares, squares, store_squares
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import arith, ir, scf, vector

_CHUNK = 16


def memory_of(context: Lowering, value: ir.Value) -> MemRef:
    found = context.get(value)
    if not isinstance(found, MemRef):
        raise UnsupportedError(f"{value} is not a memref argument")
    return found


def row_address(memory: MemRef, b: ir.Value, h: ir.Value, row: ir.Value) -> ir.Value:
    """Address of memory[b, h, row, 0...]."""
    offset = emit.mul(emit.to_i64(b), memory.strides[0])
    offset = emit.add(offset, emit.mul(emit.to_i64(h), memory.strides[1]))
    offset = emit.add(offset, emit.mul(emit.to_i64(row), memory.strides[2]))
    return emit.element_pointer(memory.address, offset, memory.element)


def lower_gather(context: Lowering, op: ir.Operation) -> None:
    """`tile.gather`: rows are copied into a buffer, so that products read them behind one another."""
    source, b, h, rows, count, first = op.operands
    memory, numbers = memory_of(context, source), memory_of(context, rows)
    columns = ir.RankedTensorType(op.results[0].type).shape[1]
    address = row_address(memory, context.scalar(b), context.scalar(h), emit.index(0))
    begin = emit.to_i64(context.scalar(first))

    def place(row: ir.Value) -> ir.Value:
        number = emit.element_pointer(numbers.address, emit.mul(emit.add(begin, row), numbers.strides[0]), numbers.element)
        return arith.ExtSIOp(emit.i64(), emit.load(numbers.element, number)).result

    target = RowTile(context.buffer(op), emit.integer(columns))
    copy_rows((address, memory), (target.address, target.stride, context.score), context.scalar(count), columns, place)
    context.values[op.results[0]] = target


def lower_load(context: Lowering, op: ir.Operation) -> None:
    """`tile.load`: transposed into lanes, left in memory, or converted row by row."""
    source, b, h, row, count = op.operands
    memory = memory_of(context, source)
    place_tile(context, op, memory, row_address(memory, *(context.scalar(value) for value in (b, h, row))), context.scalar(count))


def place_tile(context: Lowering, op: ir.Operation, memory: MemRef, address: ir.Value, count: ir.Value) -> None:
    """Makes the tile of a load of `count` rows from an address on, in the layout that it was given."""
    columns = ir.RankedTensorType(op.results[0].type).shape[1]
    layout = context.layout(op)
    if layout == "memory":
        narrow = None if memory.element == context.score else memory.element
        context.values[op.results[0]] = RowTile(address, memory.strides[2], narrow=narrow)
    elif layout == "rows":
        target = RowTile(context.buffer(op), emit.integer(columns))
        copy_rows((address, memory), (target.address, target.stride, context.score), count, columns)
        context.values[op.results[0]] = target
    elif layout in ("row_pairs", "memory_pairs"):
        pairs = pack_rows(address, memory, context.buffer(op), count, columns)
        context.values[op.results[0]] = pairs if layout == "row_pairs" else RowTile(address, memory.strides[2], pairs)
    elif layout in ("column_pairs", "memory_column_pairs"):
        found = ColumnPairs(context.buffer(op), columns, ir.IntegerAttr(op.attributes["width"]).value)
        pack_row_columns(address, memory, found, count)
        context.values[op.results[0]] = found if layout == "column_pairs" else RowTile(address, memory.strides[2], found)
    elif layout == "lane_pairs" and context.tiles:
        context.values[op.results[0]] = pack_lane_rows(context, (address, memory), context.buffer(op), count, columns)
    else:
        tile = LaneTile(context.buffer(op))
        _transpose_in(context, address, memory, tile, count, columns)
        context.values[op.results[0]] = pack_lanes(context, tile, emit.index(columns)) if layout == "lane_pairs" else tile


def copy_rows(
    source: tuple[ir.Value, MemRef],
    target: tuple[ir.Value, ir.Value, ir.Type],
    count: ir.Value,
    columns: int,
    place: Callable[[ir.Value], ir.Value] = lambda row: row,
) -> None:
    """Copies `count` rows of `columns`, converting floats: row i is that at `place(i)` from an address on, in memory with these strides.

    `target`: an address, how far its rows are apart, and the type of its elements.
    """
    (begin_of, memory), (address, stride, element) = source, target
    whole = columns // _CHUNK * _CHUNK
    rows = scf.ForOp(emit.index(0), count, emit.index(1), [])
    with ir.InsertionPoint(rows.body):
        row = emit.to_i64(rows.induction_variable)
        read = emit.element_pointer(begin_of, emit.mul(place(row), memory.strides[2]), memory.element)
        written = emit.element_pointer(address, emit.mul(row, stride), element)
        for begin, end, width in ((0, whole, _CHUNK), (whole, columns, 1)):
            if begin == end:
                continue
            loop = scf.ForOp(emit.index(begin), emit.index(end), emit.index(width), [])
            with ir.InsertionPoint(loop.body):
                d = loop.induction_variable
                type_ = memory.element if width == 1 else ir.VectorType.get([width], memory.element)
                loaded = emit.load(type_, emit.element_pointer(read, d, memory.element))
                emit.store(emit.cast_float(loaded, element), emit.element_pointer(written, d, element))
                scf.YieldOp([])
        scf.YieldOp([])


def _transpose_in(context: Lowering, address: ir.Value, memory: MemRef, tile: LaneTile, count: ir.Value, columns: int) -> None:
    """Loads rows into lanes; lanes past `count` repeat the last row."""
    last = arith.SubIOp(count, emit.index(1)).result
    whole = squares(context, columns, memory.element)
    if whole:
        load_squares(context, address, memory.strides[2], memory.element, tile, last, whole)
    if whole == columns:
        return
    lanes = scf.ForOp(emit.index(0), emit.index(context.lanes), emit.index(1), [])
    with ir.InsertionPoint(lanes.body):
        lane = lanes.induction_variable
        row = emit.to_i64(arith.MinSIOp(lane, last).result)
        source = emit.element_pointer(address, emit.mul(row, memory.strides[2]), memory.element)
        destination = emit.element_pointer(tile.address, lane, context.score)
        loop = scf.ForOp(emit.index(whole), emit.index(columns), emit.index(1), [])
        with ir.InsertionPoint(loop.body):
            d = loop.induction_variable
            loaded = emit.load(memory.element, emit.element_pointer(source, d, memory.element))
            offset = emit.mul(emit.to_i64(d), emit.integer(context.lanes))
            emit.store(emit.cast_float(loaded, context.score), emit.element_pointer(destination, offset, context.score))
            scf.YieldOp([])
        scf.YieldOp([])


def lower_store(context: Lowering, op: ir.Operation) -> None:
    """`tile.store`: rows back out of lanes."""
    source, target, b, h, row, count = op.operands
    memory = memory_of(context, target)
    tile = context.get(source)
    address = row_address(memory, context.scalar(b), context.scalar(h), context.scalar(row))
    columns = 1 if isinstance(tile, ir.Value) else ir.RankedTensorType(source.type).shape[1]
    if isinstance(tile, ir.Value):
        # A tile of rank 1 is a vector; the last buffer lets its lanes be read one at a time.
        emit.store(emit.cast_float(tile, context.score), context.buffers[-1])
        tile = LaneTile(context.buffers[-1])
    if not isinstance(tile, LaneTile):
        raise UnsupportedError(f"cannot store {source}")
    whole = squares(context, columns, memory.element)
    if not whole:
        _store_lanes(context, tile, address, memory, context.scalar(count), 0, columns)
        return
    every = arith.CmpIOp(arith.CmpIPredicate.eq, context.scalar(count), emit.index(context.lanes)).result
    branch = scf.IfOp(every, [], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        store_squares(context, tile, address, memory.strides[2], memory.element, whole)
        if whole < columns:
            _store_lanes(context, tile, address, memory, context.scalar(count), whole, columns)
        scf.YieldOp([])
    with ir.InsertionPoint(branch.else_block):
        _store_lanes(context, tile, address, memory, context.scalar(count), 0, columns)
        scf.YieldOp([])


def _store_lanes(context: Lowering, tile: LaneTile, address: ir.Value, memory: MemRef, count: ir.Value, begin: int, end: int) -> None:
    """Columns [begin, end) of the first `count` lanes, one number at a time."""
    lanes = scf.ForOp(emit.index(0), count, emit.index(1), [])
    with ir.InsertionPoint(lanes.body):
        lane = lanes.induction_variable
        origin = emit.element_pointer(tile.address, lane, context.score)
        destination = emit.element_pointer(address, emit.mul(emit.to_i64(lane), memory.strides[2]), memory.element)
        loop = scf.ForOp(emit.index(begin), emit.index(end), emit.index(1), [])
        with ir.InsertionPoint(loop.body):
            d = loop.induction_variable
            offset = emit.mul(emit.to_i64(d), emit.integer(context.lanes))
            value = emit.load(context.score, emit.element_pointer(origin, offset, context.score))
            emit.store(emit.cast_float(value, memory.element), emit.element_pointer(destination, d, memory.element))
            scf.YieldOp([])
        scf.YieldOp([])


def lower_fill(context: Lowering, op: ir.Operation) -> None:
    """`tile.fill`: a vector for a tile of rank 1, a loop over columns for one of rank 2."""
    type_ = ir.RankedTensorType(op.results[0].type)
    value = vector.BroadcastOp(context.row_type, context.scalar(op.operands[0])).result
    if type_.rank == 1:
        context.values[op.results[0]] = value
        return
    tile = LaneTile(context.buffer(op))
    loop = scf.ForOp(emit.index(0), emit.index(type_.shape[1]), emit.index(1), [])
    with ir.InsertionPoint(loop.body):
        context.store_column(value, tile, loop.induction_variable)
        scf.YieldOp([])
    context.values[op.results[0]] = tile
