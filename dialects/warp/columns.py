"""What lanes and warps share: sums along columns and diagonals of tiles, rows that become zeros or leave."""

from typing import Any

from attn_mlir.dialects.verify import check
from attn_mlir.dialects.warp.dialect import Warp
from attn_mlir.dialects.warp.kinds import in_form, inside, is_global, is_shared, row_bytes, swizzle_of
from attn_mlir.dialects.warp.structure import WARPS
from attn_mlir.mlir import ext, ir

_LANES, _SWIZZLE = 32, 128


def _is_numbers(type_: ir.Type) -> bool:
    return is_shared(type_, 2) and str(type_.element_type) == "f32" and type_.shape[1] % _LANES == 0


class SumColumnsOp(Warp.Operation, name="sum_columns"):
    """Each warp adds up what it has of each column of a tile of f32: exchanges between lanes. Row `row` + its number of `target`,
    memref<m x n> of shared memory, gets the sums of the n columns. The warps' sums are added up by `warp.store_sums`.
    """

    tile: ext.Operand[Any]
    target: ext.Operand[Any]
    row: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        tile, numbers = self.tile.type, self.target.type
        fits = in_form(tile, "tile") is not None and str(tile.element_type) == "f32" and _is_numbers(numbers)
        fits = fits and list(tile.shape) == [64, 64] and numbers.shape[1] == 64 and numbers.shape[0] % WARPS == 0
        return check(
            self, fits, f"adds up a tile 64x64 of f32 into memref<m x 64 x f32>, m a multiple of {WARPS}, got {tile} and {numbers}"
        )


class StoreSumsOp(Warp.Operation, name="store_sums"):
    """The sums along the columns of `source`, memref<m x n> of shared memory, go to `count` places from `row` on of `target[batch, head]`,
    or of `target[slot, batch, head]`. Without slots `slot` is not used.

    A lane of the warpgroup adds up m numbers, always in the same order.
    """

    source: ext.Operand[Any]
    target: ext.Operand[Any]
    slot: ext.Operand[ir.IndexType]
    batch: ext.Operand[ir.IndexType]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    count: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        numbers, memory = self.source.type, self.target.type
        fits = _is_numbers(numbers) and numbers.shape[1] <= _LANES * WARPS and is_global(memory, 3, 4) and str(memory.element_type) == "f32"
        return check(
            self, fits, f"stores sums of memref<m x n x f32> to a memref [B, H, S] of f32, maybe in slots, got {numbers} and {memory}"
        )


class WriteDiagonalOp(Warp.Operation, name="write_diagonal"):
    """Element (i, j) of a tile of f32 goes to place i of `target`, memref<1 x n> of shared memory, where i = `column` + j."""

    tile: ext.Operand[Any]
    target: ext.Operand[Any]
    column: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        tile, numbers = self.tile.type, self.target.type
        fits = in_form(tile, "tile") is not None and str(tile.element_type) == "f32" and _is_numbers(numbers)
        fits = fits and list(numbers.shape) == [1, tile.shape[0]] and tile.shape[1] <= tile.shape[0]
        return check(self, fits, f"writes the diagonal of a tile of m rows of f32 to memref<1 x m x f32>, got {tile} and {numbers}")


class ClearRowsOp(Warp.Operation, name="clear_rows"):
    """Rows of a tile in shared memory from number `first` on become zeros, by ordinary writes of 16 bytes of a lane.

    Each warp of the warpgroup has its share of the rows. Rows are whole swizzle atoms of 128 bytes.
    """

    tile: ext.Operand[Any]
    first: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        memory = self.tile.type
        fits = is_shared(memory, 2) and swizzle_of(memory) == _SWIZZLE and row_bytes(memory) % _SWIZZLE == 0
        fits = fits and memory.shape[0] % _LANES == 0
        return check(self, fits, f"clears a multiple of {_LANES} rows of whole swizzle atoms of {_SWIZZLE} bytes, got {memory}")


class StoreLanesOp(Warp.Operation, name="store_lanes"):
    """The first `count` rows of a tile in shared memory go to rows from `row` on and columns from `column` on of `target[batch, head]`.

    By ordinary reads and writes, 16 bytes of a lane each: each warp of the warpgroup has its share of the rows. `row + count` rows exist.
    """

    source: ext.Operand[Any]
    target: ext.Operand[Any]
    batch: ext.Operand[ir.IndexType]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    column: ext.Operand[ir.IndexType]
    count: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        tile = self.source.type
        memory = self.target.type
        fits = is_global(memory, 4) and is_shared(tile, 2) and tile.element_type == memory.element_type
        fits = fits and tile.shape[1] <= memory.shape[3]
        if not check(self, fits, f"stores rows of a tile in columns of a memref [B, H, S, D] of its elements, got {tile} and {memory}"):
            return False
        swizzle = swizzle_of(tile)
        shared = tile.shape[0] % _LANES == 0 and swizzle > 0 and row_bytes(tile) == swizzle
        return check(
            self, shared, f"stores a multiple of {_LANES} rows, which warps share, of one swizzle atom each, got {tile}"
        ) and check(self, not inside(self, "warp.elect"), "is for all lanes of a warpgroup: it does not stand in 'warp.elect'")
