"""Tiles that lie row by row in buffers: their shapes in memory, loads, stores and fills."""

from collections.abc import Callable
from dataclasses import replace

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import Lowering, MemRef, RowMajor
from attn_mlir.backends.cpu.lowering.prefetch import announce
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import arith, ir, scf

_BAND = 4
"""Vectors of a band of columns: as wide as blocks of sums are. Whole rows of 2 KB, say, would share a few sets of the L1 cache."""


def kept_type(element: ir.Type, score: ir.Type) -> ir.Type:
    """16-bit floats are kept as scores, already rounded; other types as they are."""
    return score if emit.bytes_of(element) < emit.bytes_of(score) else element


def padded(size: int, lanes: int) -> int:
    """Whole vectors."""
    return -(-size // lanes) * lanes


def elements_of(type_: ir.Type, lanes: int, score: ir.Type) -> int:
    """How many scores the buffer of a tile has room for."""
    tile = ir.RankedTensorType(type_)
    wide = emit.bytes_of(kept_type(tile.element_type, score)) // emit.bytes_of(score)
    rows = padded(tile.shape[0], lanes) if tile.rank == 2 else 1
    return max(1, wide) * rows * padded(tile.shape[-1], lanes)


def tile_in(context: Lowering, type_: ir.Type, address: ir.Value) -> RowMajor:
    """A tile of this type in a buffer."""
    tile = ir.RankedTensorType(type_)
    rows = tile.shape[0] if tile.rank == 2 else 1
    return in_buffer(address, kept_type(tile.element_type, context.score), rows, tile.shape[-1], context.lanes)


def in_buffer(address: ir.Value, kept: ir.Type, rows: int, columns: int, lanes: int) -> RowMajor:
    """A tile of so many rows and columns in a buffer: wide ones in bands, so that what a block of sums reads is without gaps."""
    width, band = padded(columns, lanes), _BAND * lanes
    banded = rows > 1 and width > band and width % band == 0
    return RowMajor(address, kept, rows, columns, width, band=band if banded else 0, height=padded(rows, lanes))


def get_tile(context: Lowering, value: ir.Value) -> RowMajor:
    """What a tile has become."""
    found = context.get(value)
    if not isinstance(found, RowMajor):
        raise UnsupportedError(f"{value} is not a tile in rows")
    return found


def memory_of(context: Lowering, value: ir.Value) -> MemRef:
    """What a memref has become."""
    found = context.get(value)
    if not isinstance(found, MemRef):
        raise UnsupportedError(f"{value} is not a memref")
    return found


def counted(end: ir.Value, step: int, body: Callable[[ir.Value], object], begin: int = 0) -> None:
    """`scf.for` from `begin` to `end`."""
    loop = scf.ForOp(emit.index(begin), end, emit.index(step), [])
    with ir.InsertionPoint(loop.body):
        body(loop.induction_variable)
        scf.YieldOp([])


def along(lanes: int, columns: int, body: Callable[[ir.Value, int], object]) -> None:
    """`body(column, width)` for whole vectors of columns, then for those that are left one at a time."""
    whole = columns // lanes * lanes
    if whole:
        counted(emit.index(whole), lanes, lambda column: body(column, lanes))
    if whole < columns:
        counted(emit.index(columns), 1, lambda column: body(column, 1), whole)


def vector_of(width: int, element: ir.Type) -> ir.Type:
    """A vector type, or the element's own for one element."""
    return element if width == 1 else ir.VectorType.get([width], element)


def lower_load(context: Lowering, op: ir.Operation) -> None:
    """`tile.load`: rows are copied, those past `count` from the last one; a tile of layout "memory" only where there are such rows."""
    source, b, h, row, count = op.operands
    memory, tile = memory_of(context, source), tile_in(context, op.results[0].type, context.buffer(op))
    address = _row(memory, *[context.scalar(value) for value in (b, h, row)])
    announce(context, op, memory, address, (tile.rows, tile.columns), row)
    if "layout" not in op.attributes:
        _copy_rows(context, memory, address, context.scalar(count), tile)
        context.values[op.results[0]] = tile
        return
    tile = replace(tile, band=0)
    whole = arith.CmpIOp(arith.CmpIPredicate.sge, context.scalar(count), emit.index(tile.rows)).result
    place = scf.IfOp(whole, [emit.pointer(), emit.i64()], has_else=True)
    with ir.InsertionPoint(place.then_block):
        scf.YieldOp([address, memory.strides[2]])
    with ir.InsertionPoint(place.else_block):
        _copy_rows(context, memory, address, context.scalar(count), tile)
        scf.YieldOp([tile.address, emit.integer(tile.width)])
    context.values[op.results[0]] = replace(tile, address=place.results[0], stride=place.results[1])


def _copy_rows(context: Lowering, memory: MemRef, address: ir.Value, count: ir.Value, tile: RowMajor) -> None:
    last = arith.SubIOp(count, emit.index(1)).result

    def one(i: ir.Value) -> None:
        start = emit.element_pointer(address, emit.mul(emit.to_i64(arith.MinSIOp(i, last).result), memory.strides[2]), memory.element)

        def part(d: ir.Value, width: int) -> None:
            loaded = emit.load(vector_of(width, memory.element), emit.element_pointer(start, d, memory.element))
            emit.store(emit.cast_float(loaded, tile.kept), tile.at(i, d))

        along(context.lanes, tile.columns, part)

    counted(emit.index(tile.rows), 1, one)


def lower_store(context: Lowering, op: ir.Operation) -> None:
    """`tile.store`."""
    source, target, b, h, row, count = op.operands
    memory, tile = memory_of(context, target), get_tile(context, source)
    address = _row(memory, *[context.scalar(value) for value in (b, h, row)])
    by_rows = ir.RankedTensorType(source.type).rank == 2
    if by_rows:
        announce(context, op, memory, address, (tile.rows, tile.columns), row)

    def one(i: ir.Value) -> None:
        start = emit.element_pointer(address, emit.mul(emit.to_i64(i), memory.strides[2]), memory.element)

        def part(d: ir.Value, width: int) -> None:
            value = emit.load(vector_of(width, tile.kept), tile.at(i, d))
            emit.store(emit.cast_float(value, memory.element), emit.element_pointer(start, d, memory.element))

        if by_rows:
            along(context.lanes, tile.columns, part)
        else:
            emit.store(emit.cast_float(emit.load(tile.kept, tile.at(None, i)), memory.element), start)

    counted(context.scalar(count), 1, one)


def _row(memory: MemRef, b: ir.Value, h: ir.Value, row: ir.Value) -> ir.Value:
    offset = emit.integer(0)
    for position, stride in zip((b, h, row), memory.strides, strict=False):
        offset = emit.add(offset, emit.mul(emit.to_i64(position), stride))
    return emit.element_pointer(memory.address, offset, memory.element)


def lower_fill(context: Lowering, op: ir.Operation) -> None:
    """`tile.fill`."""
    tile = tile_in(context, op.results[0].type, context.buffer(op))
    value = emit.cast_float(context.scalar(op.operands[0]), tile.kept)
    wide = emit.splat(value, context.lanes)
    counted(emit.index(tile.rows), 1, lambda i: counted(emit.index(tile.width), context.lanes, lambda d: emit.store(wide, tile.at(i, d))))
    context.values[op.results[0]] = tile


def copy_tile(context: Lowering, source: RowMajor, target: RowMajor) -> None:
    """Copies a tile, padding too."""
    type_ = ir.VectorType.get([context.lanes], source.kept)

    def row(i: ir.Value) -> None:
        counted(emit.index(source.width), context.lanes, lambda d: emit.store(emit.load(type_, source.at(i, d)), target.at(i, d)))

    counted(emit.index(source.rows), 1, row)


def lower_cumsum(context: Lowering, op: ir.Operation) -> None:
    """`tile.cumsum`: sums of rows run along; those of a tile of rank 1 number by number."""
    source, tile = get_tile(context, op.operands[0]), tile_in(context, op.results[0].type, context.buffer(op))
    backward = ir.BoolAttr(op.attributes["reverse"]).value
    rank = ir.RankedTensorType(op.results[0].type).rank

    def run(count: int, width: int, at: Callable[[RowMajor, ir.Value], ir.Value]) -> None:
        type_ = vector_of(width, tile.kept)
        loop = scf.ForOp(emit.index(0), emit.index(count), emit.index(1), [emit.number(type_, 0.0)])
        with ir.InsertionPoint(loop.body):
            n = loop.induction_variable
            position = arith.SubIOp(emit.index(count - 1), n).result if backward else n
            total = arith.AddFOp(loop.inner_iter_args[0], emit.load(type_, at(source, position))).result
            emit.store(total, at(tile, position))
            scf.YieldOp([total])

    if rank == 1:
        run(tile.columns, 1, lambda each, n: each.at(None, n))
    else:
        counted(emit.index(tile.width), context.lanes, lambda column: run(tile.rows, context.lanes, lambda each, n: each.at(n, column)))
    context.values[op.results[0]] = tile


def lower_subview(context: Lowering, op: ir.Operation) -> None:
    """`memref.subview` with steps of 1: another address, and sizes; leading dimensions of size 1 may go."""
    memory = memory_of(context, op.operands[0])
    dynamic = [context.scalar(value) for value in list(op.operands)[1:]]
    marker = ir.ShapedType.get_dynamic_size()

    def mixed(name: str) -> list[ir.Value]:
        return [
            emit.to_i64(dynamic.pop(0)) if number == marker else emit.integer(number)
            for number in ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"])
        ]

    offsets, sizes = mixed("offsets"), mixed("sizes")
    start = emit.integer(0)
    for offset, stride in zip(offsets, memory.strides, strict=True):
        start = emit.add(start, emit.mul(offset, stride))
    dropped = len(sizes) - ir.MemRefType(op.results[0].type).rank
    address = emit.element_pointer(memory.address, start, memory.element)
    context.values[op.results[0]] = MemRef(address, memory.element, tuple(sizes[dropped:]), memory.strides[dropped:])
