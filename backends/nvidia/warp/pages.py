"""Rules of rows that lie in pages: TMA copies them, a part of 16 rows and the columns of one swizzle atom at a time."""

from typing import Any

from attn_mlir.backends.nvidia.warp.barriers import at
from attn_mlir.backends.nvidia.warp.copies import atoms, descriptor
from attn_mlir.backends.nvidia.warp.memory import columns_of
from attn_mlir.backends.nvidia.warp.printer import Rule, WarpPrinter, plain
from attn_mlir.backends.nvidia.warp.scalars import operand
from attn_mlir.dialects.regions import around
from attn_mlir.dialects.warp.pages import PART_ROWS
from attn_mlir.mlir import ir

_HEADER = "attn_page_copies.cuh"
"""Helpers of copies of pages."""
_TALL = 64
"""Rows of boxes where pages have whole ones: `kTall`."""


def _find(printer: WarpPrinter, op: ir.Operation, table: ir.Value, *operands: str) -> None:
    """Lane l of every warp holds what is found of part l."""
    batch, size, row, end = operands
    printer.headers[_HEADER] = None
    page, place = (printer.name(result, hint) for result, hint in zip(op.results, ("page", "place"), strict=True))
    sizes, parts = printer.arguments, op.results[0].type.shape[0]
    values = [f"&{sizes.element(table, [operand(batch), '0'])}", sizes.stride(table, 1), size, row, end]
    printer.line(f"int {page}, {place};", f"attn::find_pages<{parts}>({', '.join(values)}, lane, {page}, {place});")


def _copy(printer: WarpPrinter, op: ir.Operation, source: ir.Value, *operands: Any) -> None:
    page, place, head, row, end, tile, barrier, stage = operands
    type_ = op.operands[6].type
    warps = plain(next(above for above in around(op) if above.name == "warp.role"), "warps")
    tall = PART_ROWS if type_.shape[0] % _TALL else _TALL
    maps = [descriptor(printer, source, type_, rows) for rows in (tall, PART_ROWS, 1)]
    kind = f"{type_.shape[0]}, {len(atoms(tile, type_))}, {columns_of(type_)}, {tile.row}, {warps}"
    left, size = f"{end} - {operand(row)}", printer.arguments.size(source, 2)
    values = [tile.address, *maps, size, page, place, head, left, at(barrier, stage), "warp"]
    printer.line(f"attn::copy_pages<{kind}>({', '.join(values)});")


RULES: dict[str, Rule] = {"warp.copy_pages_async": _copy, "warp.find_pages": _find}
