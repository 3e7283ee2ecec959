"""Copies of rows that lie in pages of global memory, each where a table says."""

from typing import Any

from attn_mlir.dialects.verify import check
from attn_mlir.dialects.warp.dialect import BarrierType, Warp
from attn_mlir.dialects.warp.kinds import inside, is_global, is_shared, padded, swizzle_of
from attn_mlir.mlir import ext, ir

PART_ROWS = 16
"""Rows that are copied at a time, which lie in one page: pages have a multiple of them."""


class CopyPagesAsyncOp(Warp.Operation, name="copy_pages_async"):
    """Rows from `row` on of sequence `batch` and `head` go to shared memory: row r is row r mod size of page `table[batch, r / size]` of
    `source`, [pages, H, size, D] (TMA). Those from `end` on are zeros, whatever their pages hold, and so are those of pages that there are
    not.

    `row`, and the size of pages, are multiples of 16. The warps of the warpgroup share the parts of 16 rows: the first one takes the first,
    and each takes what comes as many parts later as there are warps. A warp arrives at the barrier of the stage, once, for the bytes of its
    parts, which count there.
    """

    source: ext.Operand[Any]
    table: ext.Operand[Any]
    batch: ext.Operand[ir.IndexType]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    end: ext.Operand[ir.IndexType]
    target: ext.Operand[Any]
    barrier: ext.Operand[BarrierType]
    stage: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        memory, table, tile = self.source.type, self.table.type, self.target.type
        listed = is_global(table, 2) and str(table.element_type) == "i32"
        if not check(self, listed, f"reads a table of pages, a memref [sequences, pages] of i32, got {table}"):
            return False
        fits = is_global(memory, 4) and is_shared(tile, 2) and tile.element_type == memory.element_type
        fits = fits and swizzle_of(tile) > 0 and tile.shape[0] % PART_ROWS == 0 and tile.shape[1] <= padded(memory.shape[3])
        return check(
            self, fits, f"copies a multiple of {PART_ROWS} rows of a memref [pages, H, size, D] to a swizzled tile, got {memory} and {tile}"
        ) and check(self, not inside(self, "warp.elect"), "is for all warps of a warpgroup: it does not stand in 'warp.elect'")
