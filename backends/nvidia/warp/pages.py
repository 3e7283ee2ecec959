"""The rule of copies of rows that lie in pages: TMA, a part of 16 rows and the columns of one swizzle atom at a time."""

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


def _copy(printer: WarpPrinter, op: ir.Operation, source: ir.Value, table: ir.Value, *operands: Any) -> None:
    batch, head, row, end, tile, barrier, stage = operands
    type_, sizes = op.operands[6].type, printer.arguments
    printer.headers[_HEADER] = None
    warps = plain(next(above for above in around(op) if above.name == "warp.role"), "warps")
    maps = [descriptor(printer, source, type_, rows) for rows in (PART_ROWS, 1)]
    pages = [f"&{sizes.element(table, [operand(batch), '0'])}", sizes.stride(table, 1), sizes.size(source, 2)]
    kind = f"{type_.shape[0]}, {len(atoms(tile, type_))}, {columns_of(type_)}, {tile.row}, {warps}"
    values = [tile.address, *maps, *pages, head, row, end, at(barrier, stage), "warp", "lane"]
    printer.line(f"attn::copy_pages<{kind}>({', '.join(values)});")


RULES: dict[str, Rule] = {"warp.copy_pages_async": _copy}
