"""Turns sums scattered to captured tensors, element by element, into sums of tiles: over windows, and over diagonals."""

from dataclasses import dataclass

from attn_mlir.dialects.tile import build_windows as build
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import block_of, find_all, maker
from attn_mlir.passes.tiling.positions import Positions, window_of
from attn_mlir.passes.tiling.scalars import constant_index


@dataclass(frozen=True)
class AddWindows(Pass):
    """Makes a `tile.add_band` of every `tile.scatter_add` over pairs whose index depends on the difference of the positions alone, and
    a `tile.add_window` of one whose indices grow with the row and the column by constant steps.

    What is absent has weight 0 in the tile, and is added as 0: its place is that of a read, which is inside of the tensor for all pairs.
    """

    name = "tile-add-windows"

    def run(self, module: ir.Operation) -> bool:
        for op in find_all(module, "tile.scatter_add"):
            if len(list(op.operands)) == 3:
                _rewrite(op)
        return True


def _rewrite(op: ir.Operation) -> None:
    target, *extents = op.operands
    positions = Positions(block_of(op))
    value, _, *indices = positions.block.operations[-1].operation.operands
    tile = _tile_of(positions, value)
    if tile is None:
        return
    diagonal = [positions.along_diagonals(index) for index in indices]
    with op.location, ir.InsertionPoint(op):
        if any(diagonal) and all(of or _is_same(positions, index) for of, index in zip(diagonal, indices, strict=True)):
            build.add_band(tile, target, extents, lambda i, j: positions.copies(indices, i, j))
        else:
            window = window_of(positions, indices)
            if window is None:
                return
            zero = constant_index(0)
            build.add_window(tile, target, extents, positions.copies(indices, zero, zero), (window.row_steps, window.column_steps))
    op.erase()


def _is_same(positions: Positions, index: ir.Value) -> bool:
    steps = positions.steps(index)
    return steps is not None and steps.same


def _tile_of(positions: Positions, value: ir.Value) -> ir.Value | None:
    """The tile over pairs whose element (i, j) the value is."""
    read = maker(value, "tensor.extract")
    if read is None or list(read.operands)[1:] != list(positions.block.arguments):
        return None
    type_ = ir.RankedTensorType(read.operands[0].type)
    fits = not type_.is_dynamic_dim(0) and type_.is_dynamic_dim(1) and type_.shape[0] > 1
    return read.operands[0] if fits else None
