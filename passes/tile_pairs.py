"""Makes backward kernels: a loop over blocks of queries for each block of keys."""

from dataclasses import dataclass

from attn_mlir.mlir import ir
from attn_mlir.passes.tiling.pairs import build_pairs
from attn_mlir.passes.tiling.tile_pass import TilePass, blocks_of, lists_fit, makers_of


@dataclass(frozen=True)
class TilePairs(TilePass):
    """Replaces each function holding an `attn.pairs` and what sums up its weights by a `tile` kernel, the backward pass of an attention.

    A program has a chunk of keys of one key head and batch entry: blocks of `block-q` keys, each with a loop over blocks of
    `block-kv` queries ("pairs" in `tile.kernel`, see `attn-tile-rows`). The kernel takes the number of keys in a chunk, a multiple of
    `block-q`, as one more argument after the outputs. `tile.blocks` and `whole` are as in `attn-tile-rows`; a program with ragged
    views has one item of its list of work, one block of keys.
    """

    name = "attn-tile-pairs"
    kind = "pairs"
    block_q: int = 64
    block_kv: int = 64
    whole: bool = False

    def sizes(self) -> tuple[int, ...]:
        return (self.block_q, self.block_kv)

    def build(self, function: ir.Operation, op: ir.Operation) -> bool:
        if not lists_fit(op, self.whole, self.name):
            return False
        block_q, block_kv = blocks_of(function) or self.sizes()
        build_pairs(function, op, makers_of(function), (block_q, block_kv), self.whole)
        return True
