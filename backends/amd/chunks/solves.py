"""Prints systems of a unit triangle: inverses of 16 x 16 in registers, and matrix products between blocks of 16 rows."""

from attn_mlir.backends.amd.chunks.copies import ChunkCopies
from attn_mlir.backends.amd.chunks.core import ChunkCore
from attn_mlir.backends.amd.chunks.products import ChunkProducts
from attn_mlir.backends.amd.chunks.tiles import chunks_of
from attn_mlir.dialects.numbers import flag
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

BLOCK = 16
"""Rows of the blocks whose inverses are made."""


class ChunkSolves:
    """Prints `tile.solve_unit`: waves have whole columns of the solution, so that they wait only until inverses are there."""

    def __init__(self, core: ChunkCore, copies: ChunkCopies, products: ChunkProducts) -> None:
        self.core, self.copies, self.products = core, copies, products

    def print(self, op: ir.Operation) -> None:
        """Prints one system."""
        core, triangle = self.core, op.operands[0]
        size = ir.RankedTensorType(triangle.type).shape[0]
        if size % BLOCK or size != core.chunk:
            raise UnsupportedError(f"amd: systems of {size} rows: chunks whose positions {BLOCK} divides are solved ({op.location})")
        if (core.tiles[triangle].name, "rows") in core.copies:  # type: ignore[union-attr]
            core.memory.barrier()  # others may still read what inverses take the place of
        buffer, upper = self.copies.factor(triangle, "rows"), str(flag(op, "upper")).lower()
        fields = f"{size}, {upper}, {chunks_of(size, 'f32')}"
        core.writer.line(f"attn::invert_diagonal<{fields}>({buffer.at});")
        core.memory.write(buffer)
        tile = self.products.summed(op, op.operands[1], "solved")
        core.memory.read(buffer)
        del core.copies[core.tiles[triangle].name, "rows"]  # type: ignore[union-attr]
        grid = tile.grid
        with core.scope(None if grid.all_waves else f"if (wave < {grid.across})"):
            core.writer.line(f"attn::solve_unit<{fields}, {grid.wide}>({tile.name}, {buffer.at});")
        self.products.changed(op, tile)
