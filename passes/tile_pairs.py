"""Makes backward kernels: a loop over blocks of queries for each block of keys."""

import math
from dataclasses import dataclass

from attn_mlir.mlir import ir
from attn_mlir.passes.key_lists import key_lists_of
from attn_mlir.passes.tiling.pairs import build_pairs
from attn_mlir.passes.tiling.tile_pass import TilePass, blocks_of, makers_of

FEWEST = 16
"""Queries of whole blocks, at least."""


@dataclass(frozen=True)
class TilePairs(TilePass):
    """Replaces each function holding an `attn.pairs` and what sums up its weights by a `tile` kernel, the backward pass of an attention.

    A program has a chunk of keys of one key head and batch entry: blocks of `block-q` keys, each with a loop over blocks of
    `block-kv` queries ("pairs" in `tile.kernel`, see `attn-tile-rows`). The kernel takes the number of keys in a chunk, a multiple of
    `block-q`, as one more argument after the outputs. `tile.blocks` and `whole` are as in `attn-tile-rows`; a program with ragged
    views has one item of its list of work, one block of keys. Of `attn.key_lists` a block of keys is one tile, and with `whole` blocks of
    queries are a part of a listed one: the greatest common divisor of its queries and `block-kv`; `listed` in `tile.kernel` numbers the
    argument with the next blocks, and says how many tiles a block has.
    """

    name = "attn-tile-pairs"
    kind = "pairs"
    block_q: int = 64
    block_kv: int = 64
    whole: bool = False

    def sizes(self) -> tuple[int, ...]:
        return (self.block_q, self.block_kv)

    def build(self, function: ir.Operation, op: ir.Operation) -> bool:
        block_q, block_kv = blocks_of(function) or self.sizes()
        lists = key_lists_of(op)
        if self.whole and lists is not None:
            if lists.names_keys or lists.queries % FEWEST:
                op.location.emit_error(
                    f"{self.name}: with `whole`, 'attn.key_lists' have blocks of a multiple of {FEWEST} queries, and of several keys; "
                    "give a mask that reads a table instead"
                )
                return False
            block_kv = math.gcd(block_kv, lists.queries)
        build_pairs(function, op, makers_of(function), (block_q, block_kv), self.whole)
        return True
