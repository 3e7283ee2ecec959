"""A `warp.kernel` over pairs for chips without TMA and wgmma, and which class forms the kernel of a tiled function."""

from dataclasses import dataclass

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.chunk_rows import ChunkRowsFormer, gives_rows
from attn_mlir.backends.nvidia.forming.chunks import ChunksFormer
from attn_mlir.backends.nvidia.forming.kernel import ROWS, Former
from attn_mlir.backends.nvidia.forming.pairs import PairsFormer
from attn_mlir.backends.nvidia.forming.synchronous import NARROW, SynchronousFormer
from attn_mlir.backends.nvidia.forming.tiled import grid_of
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir

_SUMS = "mma16"
"""The layout of sums over keys: four warps have 16 queries each."""


@dataclass
class SynchronousPairs(PairsFormer, SynchronousFormer):
    """Blocks of keys whose warps multiply for themselves. Weights go through shared memory to the warps that have the queries' rows of dq.

    All meet once they have written weights, and have met since the products that read the weights before: for the loads of the iteration.
    """

    def _schedule(self) -> ir.Attribute:
        """Sums in a fixed order begin with the last keys, as lists of work do; thread blocks draw tiles: none waits for a later one."""
        fields = attributes.read(self.function, attributes.SCHEDULE)
        narrow = thresholds.SYNCHRONOUS_NARROW if self._widest() <= NARROW else {}
        order = (
            {} if self.order is None else {"reverse": int(self.packed is None), "draw": 1, **({"group": 1} if self.order.masked else {})}
        )
        return attributes.write({**thresholds.SYNCHRONOUS_BACKWARD, **narrow, **fields, **order})

    def _usual_rows(self) -> int:
        """Two sums and two products of a block's rows leave no registers for more."""
        return 16

    def _is_alone(self, queries: int, columns: int) -> bool:
        """No warpgroup has a role of its own."""
        return False

    def _shares(self, queries: int, columns: int) -> tuple[list[tuple[ir.Value, ir.Value]], int]:
        """Sums of many columns are made a part at a time: those of queries stay in registers meanwhile."""
        places, part = super()._shares(queries, columns)
        if part <= NARROW:
            return places, part
        firsts = range(0, part, NARROW)
        return [(row, arith.AddIOp(column, build.index(n)).result if n else column) for row, column in places for n in firsts], NARROW

    def _first_sums(self) -> ir.Value:
        return arith.MulIOp(self.warpgroup, build.index(ROWS)).result

    def _multiplied(self, a: ir.Value, b: ir.Value, shape: list[int]) -> ir.Value:
        type_ = build.fragment_type(_SUMS, "tile", shape, ir.F32Type.get())
        return build.op("mma", [self._zeros(type_), a, b], [type_], transpose_a=True, transpose_b=False).result

    def _exchange(self, fragment: ir.Value) -> ir.Value:
        """Writes weights to this warpgroup's rows of shared memory; all meet. The buffer."""
        type_ = ir.RankedTensorType(fragment.type)
        buffer = self.exchanges[str(build.shared_type([1, self.block, type_.shape[1]], type_.element_type, rings.SWIZZLE))]
        zero = build.index(0)
        build.op("write", [fragment, self._view([buffer, zero, self.first, zero], list(type_.shape))])
        self._meet()
        return buffer


def former_of(function: ir.Operation, target: NvidiaTarget) -> type[Former]:
    """What forms the kernel of a tiled function, by what its programs are, and its chip."""
    grid = grid_of(function)
    pairs = grid in PairsFormer.GRIDS
    if target.bulk_copies:
        if grid in ChunksFormer.GRIDS:
            return ChunkRowsFormer if gives_rows(function) else ChunksFormer
        return PairsFormer if pairs else Former
    return SynchronousPairs if pairs else SynchronousFormer
