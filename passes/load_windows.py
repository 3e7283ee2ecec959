"""Turns reads of captured tensors, element by element, into tiles: windows along rows and columns, and values along diagonals."""

from dataclasses import dataclass

from attn_mlir.dialects.tile import build_windows as build
from attn_mlir.mlir import ir, tensor
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import block_of, erase_unused, find_all
from attn_mlir.passes.tiling.positions import Positions, Window, over_pairs, reads_product, window_of


@dataclass(frozen=True)
class LoadWindows(Pass):
    """In every `tile.map` over pairs, makes tiles of what reads captured tensors with the row and the column.

    What depends on the difference of the positions alone, as tables of relative positions do, clamped, in buckets or read through each
    other, becomes a `tile.band`: computed once for each diagonal. Where indices grow with the row and the column by constant steps, as
    those of a dense bias do, a `tile.load_window` is read. What varies with rows alone, or with columns alone, stays a scalar of the map,
    which needs it once for a row or column.
    """

    name = "tile-load-windows"

    products: bool = False
    """Only in maps of products, and only of floats: bands of f32, and windows whose columns follow each other in the last dimension."""

    turned: bool = False
    """Of these windows, those whose rows follow each other in the last dimension."""

    def run(self, module: ir.Operation) -> bool:
        for op in find_all(module, "tile.map"):
            rows = over_pairs(op)
            if self.products and not reads_product(op):
                continue
            if rows is not None and find_all(op, "memref.load"):
                self._rewrite(op, rows)
        return True

    def _rewrite(self, op: ir.Operation, rows: int) -> None:
        positions = Positions(block_of(op))
        roots = [value for value in _roots(positions) if not self.products or isinstance(value.type, ir.F32Type)]
        bands = [_make_band(op, positions, value, rows) for value in roots]
        for value, band in zip(roots, bands, strict=True):
            _read(value, band)
        reads = [view.operation for view in positions.block.operations if view.operation.name == "memref.load"]
        found = [(read, self._window(positions, read)) for read in reads if not positions.along_diagonals(read.results[0])]
        windows = [(read, window) for read, window in found if window is not None]
        for read, window in windows:
            _make_window(op, positions, read, window, rows)
        if roots or windows:
            erase_unused(positions.block)

    def _window(self, positions: Positions, read: ir.Operation) -> Window | None:
        window = window_of(positions, list(read.operands)[1:])
        if window is None or not self.products:
            return window
        floats = isinstance(read.results[0].type, (ir.F32Type, ir.F16Type, ir.BF16Type))
        steps = window.row_steps if self.turned else window.column_steps
        return window if floats and steps[-1] == 1 else None


def _roots(positions: Positions) -> list[ir.Value]:
    """The values along diagonals that others use: as much as possible of what is made of reads along diagonals."""
    operations = [view.operation for view in positions.block.operations]
    reading: set[ir.Value] = set()
    for op in operations:
        own = op.name == "memref.load" and any(positions.along_diagonals(index) for index in list(op.operands)[1:])
        if op.results and positions.along_diagonals(op.results[0]) and (own or any(value in reading for value in op.operands)):
            reading.update(op.results)
    return [value for op in operations for value in op.results if value in reading and _is_number(value.type) and _leaves(value, reading)]


def _leaves(value: ir.Value, reading: set[ir.Value]) -> bool:
    return any(result not in reading for use in value.uses for result in (list(use.owner.operation.results) or [None]))


def _is_number(type_: ir.Type) -> bool:
    return isinstance(type_, (ir.FloatType, ir.IntegerType))


def _make_band(op: ir.Operation, positions: Positions, value: ir.Value, rows: int) -> ir.Value:
    with value.owner.operation.location, ir.InsertionPoint(op):
        return build.band(list(op.operands), (rows, value.type), lambda i, j: positions.copies([value], i, j)[0])


def _make_window(op: ir.Operation, positions: Positions, read: ir.Operation, window: Window, rows: int) -> None:
    with read.location, ir.InsertionPoint(op):
        count, offsets = window.place(positions, rows)
        tile = build.load_window(read.operands[0], (count, op.operands[1], rows), offsets, (window.row_steps, window.column_steps))
    _read(read.results[0], tile)


def _read(value: ir.Value, tile: ir.Value) -> None:
    """Takes the element (i, j) of a tile in place of a value."""
    op = value.owner.operation
    i, j = list(op.block.arguments)[:2]
    with op.location, ir.InsertionPoint(op):
        value.replace_all_uses_with(tensor.ExtractOp(tile, [i, j]).result)
