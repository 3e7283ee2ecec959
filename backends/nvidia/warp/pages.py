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


def _find(printer: WarpPrinter, op: ir.Operation, table: ir.Value, *operands: str) -> None:
    """A warp holds what is found of the parts that it copies."""
    batch, size, row, end = operands
    printer.headers[_HEADER] = None
    pages, places = (printer.name(result, hint) for result, hint in zip(op.results, ("pages", "places"), strict=True))
    sizes, parts, warps = printer.arguments, op.results[0].type.shape[0], _warps(op)
    values = [f"&{sizes.element(table, [operand(batch), '0'])}", sizes.stride(table, 1), size, row, end]
    printer.line(f"int {pages}[{-(-parts // warps)}], {places}[{-(-parts // warps)}];")
    printer.line(f"attn::find_pages<{parts}, {warps}>({', '.join(values)}, warp, lane, {pages}, {places});")


def _copy(printer: WarpPrinter, op: ir.Operation, source: ir.Value, *operands: Any) -> None:
    pages, places, head, row, end, tile, barrier, stage = operands
    type_ = op.operands[6].type
    maps = [descriptor(printer, source, type_, rows) for rows in (PART_ROWS, 1)]
    kind = f"{type_.shape[0]}, {len(atoms(tile, type_))}, {columns_of(type_)}, {tile.row}, {_warps(op)}"
    values = [tile.address, *maps, pages, places, head, f"{end} - {operand(row)}", at(barrier, stage), "warp"]
    printer.line(f"attn::copy_pages<{kind}>({', '.join(values)});")


def _warps(op: ir.Operation) -> int:
    """Of the role."""
    return plain(next(above for above in around(op) if above.name == "warp.role"), "warps")


RULES: dict[str, Rule] = {"warp.copy_pages_async": _copy, "warp.find_pages": _find}
