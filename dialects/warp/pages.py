"""Copies of rows that lie in pages of global memory, where a table says."""

from typing import Any

from attn_mlir.dialects.verify import check
from attn_mlir.dialects.warp.dialect import BarrierType, Warp
from attn_mlir.dialects.warp.kinds import inside, is_global, is_shared, padded, swizzle_of
from attn_mlir.mlir import ext, ir

_MOST = 32
"""Parts of a tile: a lane of a warp looks for each."""
PART_ROWS = 16
"""Rows that are copied at a time, which lie in one page: pages have a multiple of them."""


class FindPagesOp(Warp.Operation, name="find_pages", traits=[ext.Pure]):
    """Where rows from `row` on of sequence `batch` lie: of each part of 16 rows its page, `table[batch, r / size]` for its first row r, and
    the place of that row there, r mod `size`. Pages have `size` rows. Of parts from `end` on nothing is read, and their page is 0.

    `row` and `size` are multiples of 16. Lane l of each warp has the numbers of part l.
    """

    table: ext.Operand[Any]
    batch: ext.Operand[ir.IndexType]
    size: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    end: ext.Operand[ir.IndexType]
    pages: ext.Result[Any]
    places: ext.Result[Any]

    def verify_invariants(self) -> bool:
        table, found = self.table.type, self.pages.type
        listed = is_global(table, 2) and str(table.element_type) == "i32"
        if not check(self, listed, f"reads a table of pages, a memref [sequences, pages] of i32, got {table}"):
            return False
        fits = 0 < _parts(found) <= _MOST and found == self.places.type
        return check(self, fits, f"gives two numbers of each part, {_MOST} parts at most, got {found} and {self.places.type}")


def _parts(type_: ir.Type) -> int:
    """Of how many parts numbers are; 0 for other types."""
    fits = isinstance(type_, ir.VectorType) and type_.rank == 1 and isinstance(type_.element_type, ir.IndexType)
    return type_.shape[0] if fits else 0


class CopyPagesAsyncOp(Warp.Operation, name="copy_pages_async"):
    """Rows from `row` on of a sequence go to shared memory (TMA), of which each part of 16 lies at one of `places` in one of `pages` of
    `source`, [pages, H, size, D]. Those from `end` on are zeros, whatever their pages hold, and so are those of pages that there are not.

    The warps of the warpgroup share the parts: the first one takes the first, and each takes what comes as many parts later as there are
    warps. A warp arrives at the barrier of the stage, once, for the bytes of its parts, which count there.
    """

    source: ext.Operand[Any]
    pages: ext.Operand[Any]
    places: ext.Operand[Any]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    end: ext.Operand[ir.IndexType]
    target: ext.Operand[Any]
    barrier: ext.Operand[BarrierType]
    stage: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        memory, tile = self.source.type, self.target.type
        fits = is_global(memory, 4) and is_shared(tile, 2) and tile.element_type == memory.element_type
        fits = fits and swizzle_of(tile) > 0 and tile.shape[0] % PART_ROWS == 0 and tile.shape[1] <= padded(memory.shape[3])
        if not check(
            self, fits, f"copies a multiple of {PART_ROWS} rows of a memref [pages, H, size, D] to a swizzled tile, got {memory} and {tile}"
        ):
            return False
        found, parts = self.pages.type, tile.shape[0] // PART_ROWS
        told = _parts(found) == parts and found == self.places.type
        return check(
            self, told, f"takes the pages of {parts} parts, and the places of these there, got {found} and {self.places.type}"
        ) and check(self, not inside(self, "warp.elect"), "is for all warps of a warpgroup: it does not stand in 'warp.elect'")
