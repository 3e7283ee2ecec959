"""Rules of sums along columns, which lanes and warps share, and of diagonals."""

from typing import Any

from attn_mlir.backends.nvidia.warp.memory import lane_here
from attn_mlir.backends.nvidia.warp.printer import Rule, WarpPrinter
from attn_mlir.mlir import ir

HEADER = "attn_column_sums.cuh"
"""Helpers of sums along columns."""


def _sum_columns(printer: WarpPrinter, op: ir.Operation, tile: str, target: str, row: str) -> None:
    printer.headers[HEADER] = None
    printer.line(f"attn::sum_columns({tile}, {target} + ({row} + warp) * {op.operands[1].type.shape[1]}, {lane_here(printer)});")


def _store_sums(printer: WarpPrinter, op: ir.Operation, *operands: Any) -> None:
    source, target, slot, *place, count = operands
    printer.headers[HEADER] = None
    rank = op.operands[1].type.rank
    indices = [f"({each})" for each in ([slot, *place] if rank == len("SBHT") else place)]
    to, stride = printer.arguments.element(target, indices), printer.arguments.stride(target, rank - 1)
    kind = ", ".join(map(str, op.operands[0].type.shape))
    printer.line(f"attn::store_sums<{kind}>({source}, &{to}, {stride}, {count}, warp * 32 + lane);")


def _write_diagonal(printer: WarpPrinter, op: ir.Operation, tile: str, target: str, column: str) -> None:
    printer.headers[HEADER] = None
    printer.line(f"attn::write_diagonal<{op.operands[0].type.shape[1]}>({tile}, {target}, {column}, warp, {lane_here(printer)});")


RULES: dict[str, Rule] = {
    "warp.store_sums": _store_sums,
    "warp.sum_columns": _sum_columns,
    "warp.write_diagonal": _write_diagonal,
}
