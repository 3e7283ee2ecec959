"""Rules of asynchronous copies: TMA, a box of rows and of the columns of one swizzle atom at a time; cp.async, 16 bytes of a lane."""

from typing import Any

from attn_mlir.backends.gpu.scalar_printer import float_literal
from attn_mlir.backends.gpu.structure import constant
from attn_mlir.backends.nvidia.warp.barriers import at, is_turn
from attn_mlir.backends.nvidia.warp.elements import element
from attn_mlir.backends.nvidia.warp.memory import HEADER, TILE_ROWS, columns_of, lane_here
from attn_mlir.backends.nvidia.warp.printer import Address, Rule, WarpPrinter, plain
from attn_mlir.dialects.warp.copies import SLOPE, TURNED
from attn_mlir.dialects.warp.kinds import swizzle_of
from attn_mlir.mlir import ir

_SCALED = "attn_scaled_rows.cuh"
"""Helpers of numbers that are computed with on their way to shared memory."""
_SUMS = "attn_row_sums.cuh"
"""The helper that adds numbers up across lanes."""


def atoms(tile: Address, type_: ir.MemRefType) -> list[tuple[str, int]]:
    """The address and the first column of each swizzle atom of a tile."""
    width = columns_of(type_)
    return [(f"{tile.address} + {n * tile.atom}" if n else tile.address, n * width) for n in range(max(1, -(-type_.shape[1] // width)))]


def descriptor(printer: WarpPrinter, tensor: ir.Value, type_: ir.MemRefType, rows: int = 0) -> str:
    """The address of the descriptor of boxes of a tile's rows, or so many, of a whole swizzle atom: columns past the last one are zeros."""
    return printer.arguments.descriptor(tensor, columns_of(type_), rows or type_.shape[0], swizzle_of(type_))


def _column(column: str, more: int) -> str:
    return str(int(column) + more) if column.isdigit() else f"{column} + {more}"


def _copy(printer: WarpPrinter, op: ir.Operation, *operands: Any) -> None:
    source, batch, head, row, column, tile, barrier, stage = operands
    type_ = op.operands[5].type
    if TURNED in op.attributes:  # bytes as they will lie there: nothing is swizzled any more
        boxes = printer.arguments.descriptor(source, type_.shape[0], type_.shape[1], 0)
        place = printer.arguments.copied_at(source, row, head, batch)
        printer.line(f"attn::tma_load({tile.address}, {boxes}, {at(barrier, stage)}, {column}, {place});")
        return
    for address, more in atoms(tile, type_):
        place = f"{_column(column, more)}, {printer.arguments.copied_at(source, row, head, batch)}"
        printer.line(f"attn::tma_load({address}, {descriptor(printer, source, type_)}, {at(barrier, stage)}, {place});")


def _store(printer: WarpPrinter, op: ir.Operation, *operands: Any) -> None:
    tile, target, batch, head, row, column = operands
    type_ = op.operands[0].type
    function = "tma_add" if op.name == "warp.add_async" else "tma_store"
    for address, more in atoms(tile, type_):
        place = f"{_column(column, more)}, {printer.arguments.copied_at(target, row, head, batch)}"
        printer.line(f"attn::{function}({descriptor(printer, target, type_)}, {address}, {place});")


def _commit(printer: WarpPrinter, op: ir.Operation) -> None:
    printer.line("attn::bulk_commit();")


def _wait(printer: WarpPrinter, op: ir.Operation) -> None:
    printer.line(f"attn::bulk_wait{'_read' if plain(op, 'read') else ''}<{plain(op, 'pending')}>();")


def _copy_rows(printer: WarpPrinter, op: ir.Operation, *operands: Any) -> None:
    source, batch, head, row, *slope, target, barrier, stage = operands
    columns, sizes = op.operands[len(operands) - 3].type.shape[1], printer.arguments
    place = sizes.element(source, [f"({batch})", f"({head})"])
    to = f"attn::shared_address({target} + {stage} * {columns})"
    values = f"{to}, &{place}, {sizes.stride(source, 2)}, {row}, {sizes.size(source, 2)}, {at(barrier, stage)}"
    if op.name == "warp.copy_rows_async":
        printer.line(f"if (warp == 0) attn::copy_rows<{columns}>({values});")
        return
    factor, most = (float_literal(plain(op, name)) for name in ("factor", "most"))
    printer.headers[_SCALED] = None
    if constant(op.operands[SLOPE]) == 0:
        printer.line(f"if (warp == 0) attn::scale_rows<{columns}>({values}, {factor}, {most});")
        return
    printer.line(f"if (warp == 0) attn::slope_rows<{columns}>({values}, {factor}, {slope[0]}, {most});")


def _make_rows(printer: WarpPrinter, op: ir.Operation, target: str, barrier: str, stage: str) -> None:
    """Neighbouring places are a lane's, so that it writes them at once."""
    count, block = op.operands[0].type.shape[1], op.regions[0].blocks[0]
    printer.headers[_SUMS] = None
    numbers, each = printer.names.fresh("numbers"), count // 32
    with printer.writer.block(f"if ({is_turn(op, stage)})"):
        printer.line(f"float {numbers}[{each}];")
        with printer.writer.unrolled("r", each):
            printer.line(f"const int {printer.name(block.arguments[0], 'place')} = lane * {each} + r;")
            printer.block(block, [f"{numbers}[r]"])
        helper = "attn::sum_rows" if plain(op, "summed") else "attn::write_rows"
        printer.line(f"{helper}(attn::shared_address({target} + {stage} * {count}), {numbers}, {at(barrier, stage)});")


def _copy_lanes(printer: WarpPrinter, op: ir.Operation, *operands: Any) -> None:
    source, batch, head, row, column, tile = operands
    type_, sizes = op.operands[5].type, printer.arguments
    printer.headers[HEADER] = None
    place = sizes.element(source, [f"({batch})", f"({head})", "0", f"({column})"], 16 // element(type_.element_type).bytes)
    kind, lane = f"{type_.shape[0]}, {type_.shape[1] // columns_of(type_)}", lane_here(printer)
    where = f"{sizes.stride(source, 2)}, {row}, {sizes.size(source, 2)}"
    printer.line(f"attn::copy_lanes<{kind}>({tile.tile}, &{place}, {where}, warp, {lane});")


def _store_lanes(printer: WarpPrinter, op: ir.Operation, *operands: Any) -> None:
    tile, target, batch, head, row, column, count = operands
    type_, sizes = op.operands[0].type, printer.arguments
    printer.headers[TILE_ROWS] = None
    place = sizes.element(target, [f"({batch})", f"({head})", f"({row})", f"({column})"], 16 // element(type_.element_type).bytes)
    where = f"{sizes.stride(target, 2)}, {count}, warp, {lane_here(printer)}"
    printer.line(f"attn::store_lanes<{type_.shape[0]}>({tile.address}, &{place}, {where});")


def _copy_rows_lanes(printer: WarpPrinter, op: ir.Operation, *operands: Any) -> None:
    source, batch, head, row, target, stage, place = operands
    sizes, columns = printer.arguments, op.operands[4].type.shape[1]
    printer.headers[HEADER] = None
    first = sizes.element(source, [f"({batch})", f"({head})"])
    to = f"attn::shared_address({target} + {stage} * {columns} + {place})"
    where = f"{sizes.stride(source, 2)}, {row}, {sizes.size(source, 2)}"
    printer.line(f"attn::copy_numbers<{plain(op, 'count')}>({to}, &{first}, {where}, warp, {lane_here(printer)});")


def _lanes_commit(printer: WarpPrinter, op: ir.Operation) -> None:
    printer.headers[HEADER] = None
    printer.line("attn::copy_commit();")


def _lanes_wait(printer: WarpPrinter, op: ir.Operation) -> None:
    printer.headers[HEADER] = None
    printer.line(f"attn::copy_wait<{plain(op, 'pending')}>();")


RULES: dict[str, Rule] = {
    "warp.add_async": _store,
    "warp.copy_async": _copy,
    "warp.copy_commit": _lanes_commit,
    "warp.copy_lanes_async": _copy_lanes,
    "warp.copy_rows_async": _copy_rows,
    "warp.copy_rows_lanes_async": _copy_rows_lanes,
    "warp.copy_rows_scaled": _copy_rows,
    "warp.copy_wait": _lanes_wait,
    "warp.store_async": _store,
    "warp.store_commit": _commit,
    "warp.store_lanes": _store_lanes,
    "warp.store_wait": _wait,
    "warp.make_rows": _make_rows,
}
