"""The rule for loads through a table of pages: rows of one page stay where they are, those of several are copied beside each other."""

from dataclasses import replace

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import Lowering, MemRef
from attn_mlir.backends.cpu.lowering.memory import copy_rows, memory_of, place_tile, row_address
from attn_mlir.mlir import arith, ir, scf

ROWS = "rows_buffer"
"""The attribute of a load that numbers the buffer with room for its rows as they lie in memory."""


def lower_load_pages(context: Lowering, op: ir.Operation) -> None:
    """`tile.load_pages`; from the rows' address on it is as `tile.load`, so that the same numbers come out."""
    source, table, *rest = op.operands
    memory, pages = memory_of(context, source), memory_of(context, table)
    b, h, row, count = (emit.to_i64(context.scalar(value)) for value in rest)
    size = memory.sizes[2]
    last = emit.add(row, arith.SubIOp(count, emit.integer(1)).result)
    first_page, last_page = arith.DivUIOp(row, size).result, arith.DivUIOp(last, size).result
    buffer = context.buffers[ir.IntegerAttr(op.attributes[ROWS]).value]
    columns = ir.RankedTensorType(op.results[0].type).shape[1]
    one = arith.CmpIOp(arith.CmpIPredicate.uge, first_page, last_page).result  # no rows, too
    place = scf.IfOp(one, [emit.pointer(), emit.i64()], has_else=True)
    with ir.InsertionPoint(place.then_block):
        inside = arith.SubIOp(row, emit.mul(first_page, size)).result
        scf.YieldOp([row_address(memory, _page(memory, pages, b, first_page), h, inside), memory.strides[2]])
    with ir.InsertionPoint(place.else_block):
        loop = scf.ForOp(emit.to_index(first_page), emit.to_index(emit.add(last_page, emit.integer(1))), emit.index(1), [])
        with ir.InsertionPoint(loop.body):
            number = emit.to_i64(loop.induction_variable)
            start = emit.mul(number, size)
            begin = arith.MaxSIOp(row, start).result
            end = arith.MinSIOp(emit.add(row, count), emit.add(start, size)).result
            address = row_address(memory, _page(memory, pages, b, number), h, arith.SubIOp(begin, start).result)
            offset = emit.mul(arith.SubIOp(begin, row).result, emit.integer(columns))
            target = emit.element_pointer(buffer, offset, memory.element)
            length = emit.to_index(arith.SubIOp(end, begin).result)
            copy_rows((address, memory), (target, emit.integer(columns), memory.element), length, columns)
            scf.YieldOp([])
        scf.YieldOp([buffer, emit.integer(columns)])
    address, stride = place.results
    rows = replace(memory, strides=(*memory.strides[:2], stride, memory.strides[3]))
    place_tile(context, op, rows, address, context.scalar(rest[-1]))


def _page(memory: MemRef, table: MemRef, b: ir.Value, number: ir.Value) -> ir.Value:
    """A page of sequence b, always one that there is."""
    column = arith.MinUIOp(number, arith.SubIOp(table.sizes[1], emit.integer(1)).result).result
    offset = emit.add(emit.mul(b, table.strides[0]), emit.mul(column, table.strides[1]))
    found = emit.load(table.element, emit.element_pointer(table.address, offset, table.element))
    page = found if table.element == emit.i64() else arith.ExtSIOp(emit.i64(), found).result
    page = arith.MaxSIOp(page, emit.integer(0)).result
    return arith.MinSIOp(page, arith.SubIOp(memory.sizes[0], emit.integer(1)).result).result
