"""What a chunk's output is made of, and the sums of its products with another tensor, of which gradients of decays are made.

Such a gradient is a difference a - b of sums of two sweeps, forward and backward. Pairs of positions of one chunk are in both: where
the difference is of use only (`paired`), they are left out, because what rounding makes of them would be left. Then the forward sweep
adds what they do have to say, their sums by rows less those by columns, from one and the same matrix.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.tiling.scalars import cast_float, constant_float, constant_index

if TYPE_CHECKING:
    from attn_mlir.passes.tiling.chunk_block import ChunkBlock
    from attn_mlir.passes.tiling.chunk_decays import Decays


class Parts:
    """The tiles of a chunk; products are emitted where they are first asked for."""

    def __init__(self, block: "ChunkBlock", decays: "Decays", state: ir.Value, q: ir.Value, k: ir.Value, v: ir.Value) -> None:
        self.block, self.decays, self.q, self.k, self.v = block, decays, q, k, v
        leaving = decays.scaled("attn.leave", q) if block.channels == "key" else q
        held = [state] if block.element == block.score else block.pieces(state.type, lambda i, j: tensor.ExtractOp(state, [i, j]).result)
        first, *rest = held
        self.of_state = build.dot(leaving, first, block.score, transpose_b=block.transposed)
        for piece in rest:
            self.of_state = build.dot_accumulate(self.of_state, None, leaving, piece, transpose_b=block.transposed)
        self._scores: ir.Value | None = None

    def scores(self) -> ir.Value:
        """q k^T."""
        if self._scores is None:
            self._scores = build.dot(self.q, self.k, self.block.score, transpose_b=True)
        return self._scores


@dataclass(frozen=True)
class _Product:
    """o x, element by element."""

    o: ir.Value
    factor: ir.Value
    score: ir.Type

    def at(self, i: ir.Value, d: ir.Value) -> ir.Value:
        x = cast_float(tensor.ExtractOp(self.factor, [i, d]).result, self.score)
        return arith.MulFOp(tensor.ExtractOp(self.o, [i, d]).result, x).result


def _row_sums(block: "ChunkBlock", product: _Product, columns: int) -> ir.Value:
    extents = [constant_index(block.size), constant_index(columns)]
    return build.map_(extents, [], [block.tile([block.size])], ["sum"], lambda i, d: ([], [product.at(i, d)]))[1][0]


def whole_products(parts: Parts, o: ir.Value, factor: ir.Value) -> ir.Value:
    """The sums over d of o x, or where channels have decays, o x itself."""
    block = parts.block
    product = _Product(o, factor, block.score)
    if block.channels == "none":
        return _row_sums(block, product, block.inputs.columns)
    return block.map([o.type], lambda i, d: [product.at(i, d)])[0]


def of_state_and_pairs(parts: Parts, factor: ir.Value) -> ir.Value:
    """The products of what the state adds to o; forward also those of the chunk's own pairs, as position t less as position s."""
    block, decays = parts.block, parts.decays
    sums, leave = _row_sums(block, _Product(parts.of_state, factor, block.score), block.inputs.columns), decays.rows("attn.leave")

    def of_state(i: ir.Value) -> ir.Value:
        return arith.MulFOp(tensor.ExtractOp(sums, [i]).result, tensor.ExtractOp(leave, [i]).result).result

    row = block.tile([block.size])
    if not block.forward:
        return block.map([row], lambda i: [of_state(i)])[0]
    scores, others = parts.scores(), build.dot(block.multiplied(factor), parts.v, block.score, transpose_b=True)
    zero, last = constant_float(block.score, 0.0), constant_index(block.size - 1)

    def pair(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
        product = arith.MulFOp(tensor.ExtractOp(scores, [i, j]).result, tensor.ExtractOp(others, [i, j]).result).result
        later = arith.CmpIOp(arith.CmpIPredicate.sgt, i, j).result
        present = arith.AndIOp(later, decays.exists(i)).result
        value = arith.SelectOp(present, arith.MulFOp(product, decays.weight(i, j, None)).result, zero).result
        return [value], [value]

    size = constant_index(block.size)
    (pairs,), (by_row,) = build.map_([size, size], [block.tile([block.size, block.size])], [row], ["sum"], pair)
    columns = build.cumsum(pairs)

    def whole(i: ir.Value) -> list[ir.Value]:
        own = arith.SubFOp(tensor.ExtractOp(by_row, [i]).result, tensor.ExtractOp(columns, [last, i]).result).result
        return [arith.AddFOp(own, of_state(i)).result]

    return block.map([row], whole)[0]


def with_own(parts: Parts, o: ir.Value) -> ir.Value:
    """o, which lacks what every position adds to its own output, with it; for decays of channels."""
    block, decays = parts.block, parts.decays
    own: ir.Value | None = None
    if block.channels == "key":

        def pair(i: ir.Value, d: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            x, y = (cast_float(tensor.ExtractOp(tile, [i, d]).result, block.score) for tile in (parts.q, parts.k))
            return [], [arith.MulFOp(arith.MulFOp(x, y).result, decays.weight(i, i, d)).result]

        extents = [constant_index(block.size), constant_index(block.keys)]
        _, (own,) = build.map_(extents, [], [block.tile([block.size])], ["sum"], pair)

    def add(i: ir.Value, d: ir.Value) -> list[ir.Value]:
        if own is not None:
            score = tensor.ExtractOp(own, [i]).result
        else:
            score = arith.MulFOp(tensor.ExtractOp(parts.scores(), [i, i]).result, decays.weight(i, i, d)).result
        value = arith.MulFOp(score, cast_float(tensor.ExtractOp(parts.v, [i, d]).result, block.score)).result
        return [arith.AddFOp(tensor.ExtractOp(o, [i, d]).result, value).result]

    return block.map([o.type], add)[0]
