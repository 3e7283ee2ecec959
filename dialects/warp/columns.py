"""Sums along the columns of a tile, and elements of its diagonal, by way of numbers in shared memory."""

from typing import Any

from attn_mlir.dialects.verify import check
from attn_mlir.dialects.warp.dialect import Warp
from attn_mlir.dialects.warp.kinds import in_form, is_global, is_shared
from attn_mlir.mlir import ext, ir

_LANES, _WARPS = 32, 4


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
        fits = fits and list(tile.shape) == [64, 64] and numbers.shape[1] == 64 and numbers.shape[0] % _WARPS == 0
        return check(
            self, fits, f"adds up a tile 64x64 of f32 into memref<m x 64 x f32>, m a multiple of {_WARPS}, got {tile} and {numbers}"
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
        fits = (
            _is_numbers(numbers) and numbers.shape[1] <= _LANES * _WARPS and is_global(memory, 3, 4) and str(memory.element_type) == "f32"
        )
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
