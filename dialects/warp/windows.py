"""Windows of captured tensors: copies of boxes along two dimensions of a tensor of any meaning."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialects.variadic import single_variadic
from attn_mlir.dialects.verify import check
from attn_mlir.dialects.warp.dialect import BarrierType, Warp
from attn_mlir.dialects.warp.kinds import inside, is_global, is_shared, swizzle_of
from attn_mlir.mlir import ext, ir

WINDOW_ELEMENTS = ("f16", "bf16", "f32")
"""Those of captured tensors of which windows are copied."""
WINDOW_RANKS = (2, 3, 4)
"""Dimensions of such tensors."""
WINDOW_SWIZZLE = 128


@single_variadic
class CopyWindowAsyncOp(Warp.Operation, name="copy_window_async"):
    """A window of a captured tensor goes to shared memory: element (i, j) of the target is that i further along dimension `rows` of
    `source`, and j further along the last one, than its element at `places`, an index for each dimension.

    Where these two leave the tensor there are zeros. One of 16-bit or f32 elements, with a swizzle of 128 bytes. TMA brings it where the
    tensor's address and strides allow it, else the lanes of a warp copy words or elements: either way each of them arrives once at the
    barrier of the stage, which awaits as many arrivals for it as a warp has lanes. One warp of the warpgroup does it, the first one only
    where it is alone: the others take stages in turn, as those of `warp.make_rows`.
    """

    source: ext.Operand[Any]
    places: Sequence[ext.Operand[ir.IndexType]]
    target: ext.Operand[Any]
    barrier: ext.Operand[BarrierType]
    stage: ext.Operand[ir.IndexType]
    rows: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        memory, tile, rows = self.source.type, self.target.type, self.rows.value
        fits = is_global(memory, *WINDOW_RANKS) and is_shared(tile, 2) and memory.element_type == tile.element_type
        fits = fits and str(tile.element_type) in WINDOW_ELEMENTS and swizzle_of(tile) == WINDOW_SWIZZLE
        told = f"copies {', '.join(WINDOW_ELEMENTS)} of a memref of rank 2 to 4 to a tile that is swizzled over {WINDOW_SWIZZLE} bytes"
        if not check(self, fits, f"{told}, got {memory} and {tile}"):
            return False
        count = len(list(self.places))
        return (
            check(self, count == memory.rank, f"has an index for each of {memory.rank} dimensions, got {count}")
            and check(self, 0 <= rows < memory.rank - 1, f"counts its rows along a dimension before the last one, got {rows}")
            and check(self, not inside(self, "warp.elect"), "is for all lanes of a warp: it does not stand in 'warp.elect'")
        )
