"""The gradient of log decays as a part of the backward scan: it needs no products and states of that scan in memory."""

from dataclasses import dataclass, field

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, memref, tensor
from attn_mlir.passes.tiling.chunk_tiles import Chunk, ChunkTiles, Place
from attn_mlir.passes.tiling.scalars import cast_float, constant_index


@dataclass
class ChunkGradient:
    """Stores the gradients of a chunk's positions: a, what the scan adds to it, and what passes the whole chunk.

    `a` are the products of the forward scan, `s` its states, those of the chunk from row `row` on.
    """

    block: ChunkTiles
    chunk: Chunk
    a: ir.Value
    s: ir.Value
    row: ir.Value
    target: ir.Value
    passing: list[ir.Value] = field(default_factory=list)

    def keep(self, state: ir.Value, chunk_decay: ir.Value) -> None:
        """Takes the sums over the rows of what the forward scan's state before the chunk gives to the state after it."""
        block, (rows, columns) = self.block, ir.RankedTensorType(state.type).shape
        place = (block.sequence.batch, block.sequence.head, self.row, constant_index(rows))
        before = build.load(self.s, *place, rows)

        def product(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            x, y = (cast_float(tensor.ExtractOp(tile, [i, j]).result, block.score) for tile in (before, state))
            return [], [arith.MulFOp(x, y).result]

        made = [block.tile([rows])]
        _, (sums,) = build.map_([constant_index(rows), constant_index(columns)], [], made, ["sum"], product)

        def carried(i: ir.Value) -> ir.Value:
            return arith.MulFOp(*(cast_float(tensor.ExtractOp(tile, [i]).result, block.score) for tile in (sums, chunk_decay))).result

        if block.channels == "none":
            one = [constant_index(1), constant_index(rows)]
            self.passing = build.map_(one, [], [block.tile([1])], ["sum"], lambda _, j: ([], [carried(j)]))[1]
        else:
            self.passing = block.map(made, lambda i: [carried(i)])

    def store(self, products: ir.Value, place: Place) -> None:
        """Stores the gradients of the rows at `place`, of which the scan has these products."""
        block, (passing,) = self.block, self.passing
        loaded = build.load(self.a, *place, block.size) if block.channels != "none" else None

        def whole(i: ir.Value, *d: ir.Value) -> list[ir.Value]:
            own = cast_float(tensor.ExtractOp(products, [i, *d]).result, block.score)
            if loaded is None:
                a = memref.LoadOp(self.a, [*place[:2], block.position_of(self.chunk, i)]).result
            else:
                a = tensor.ExtractOp(loaded, [i, *d]).result
            end = tensor.ExtractOp(passing, list(d) or [constant_index(0)]).result
            return [arith.AddFOp(arith.AddFOp(cast_float(a, block.score), own).result, end).result]

        shape = ir.RankedTensorType(products.type).shape
        build.store(block.map([block.tile(shape)], whole)[0], self.target, *place)
