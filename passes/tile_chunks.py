"""Makes kernels of linear attention: a scan over the chunks of a sequence that carries the state."""

from dataclasses import dataclass

from attn_mlir.mlir import ir
from attn_mlir.passes.tiling.chunks import build_chunks
from attn_mlir.passes.tiling.tile_pass import TilePass, blocks_of


@dataclass(frozen=True)
class TileChunks(TilePass):
    """Replaces each function holding an `attn.chunk` by a `tile` kernel that scans over chunks.

    A program has a block of v's columns, one head and one batch entry ("chunks" in `tile.kernel`, see `attn-tile-rows`; there are `blocks`
    blocks, of as many columns as the second number of `tile.blocks`, or one of all of them). Where `sequences` numbers the argument with
    the offsets of sequences, these are the batch; with `segment` = L it is the segments of L positions, segment i of N of batch entry b
    at b N + i. A backward scan whose products and states a `crossing` gradient of log decays takes stores that gradient in their place;
    one whose states another scan has, too, stores that one's o.

    The numbers are as the function's `tile.numerics` has them: `prefix`, `wide_decay`, `sub_chunk`, `widen` and `flushing`
    (`passes/tiling/numerics.py`). With the function attribute `tile.decay_channels`, what decays of key channels make of a chunk is one op
    of that name, or of value channels, in scans with products, `tile.decay_values`.
    """

    name = "attn-tile-chunks"
    kind = "chunks"

    def build(self, function: ir.Operation, op: ir.Operation) -> bool:
        blocks = blocks_of(function)
        return build_chunks(function, op, None if blocks is None else blocks[1], self.name)
