"""What a chunk's output is made of, and the sums of its products with another tensor."""

from dataclasses import dataclass

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.tiling.chunk_decays import Decays
from attn_mlir.passes.tiling.chunk_tiles import ChunkTiles
from attn_mlir.passes.tiling.scalars import cast_float, constant_float, constant_index


class SecondWriter:
    """How q reads what a second writer writes with keys k and values v, where there is one."""

    def __init__(self, block: ChunkTiles, decays: Decays, q: ir.Value, k: ir.Value, v: ir.Value) -> None:
        self.block, self.decays, self.q, self.k, self.v = block, decays, q, k, v
        self._scores: ir.Value | None = None

    def scores(self) -> ir.Value:
        """q k^T."""
        if self._scores is None:
            self._scores = build.dot(self.q, self.k, self.block.score, transpose_b=True)
        return self._scores


class ChunkTerms(SecondWriter):
    """The tiles of a chunk; products are emitted where they are first asked for."""

    def __init__(
        self,
        block: ChunkTiles,
        decays: Decays,
        state: ir.Value,
        q: ir.Value,
        k: ir.Value,
        v: ir.Value,
        second: SecondWriter | None = None,
        *,
        rounded: bool = False,
    ) -> None:
        """`rounded`: without the residual of the state, in sums that are rounded themselves and that no state reads."""
        super().__init__(block, decays, q, k, v)
        self.second = second
        leaving = decays.scaled("attn.output_decay", q) if block.channels == "key" else q
        shape = list(ir.RankedTensorType(state.type).shape)
        pieces = [state]
        if block.element != block.score:
            pieces = block.pieces(shape, lambda i, j: tensor.ExtractOp(state, [i, j]).result, block.two_pieces and not rounded)
        first, *rest = pieces
        self.of_state = build.dot(leaving, first, block.score, transpose_b=block.transposed)
        for piece in rest:
            self.of_state = build.dot_accumulate(self.of_state, None, leaving, piece, transpose_b=block.transposed)

    @property
    def writers(self) -> list[SecondWriter]:
        """Those of the chunk's keys and values, and of a second writer's."""
        return [self] if self.second is None else [self, self.second]


@dataclass(frozen=True)
class ElementProduct:
    """o x, element by element."""

    o: ir.Value
    factor: ir.Value
    score: ir.Type

    def at(self, i: ir.Value, d: ir.Value) -> ir.Value:
        x = cast_float(tensor.ExtractOp(self.factor, [i, d]).result, self.score)
        return arith.MulFOp(tensor.ExtractOp(self.o, [i, d]).result, x).result


def row_sums(block: ChunkTiles, product: ElementProduct) -> ir.Value:
    """[C]: the sums over the program's columns of v."""
    extents = [constant_index(block.size), constant_index(block.inputs.columns)]
    return build.map_(extents, [], [block.tile([block.size])], ["sum"], lambda i, d: ([], [product.at(i, d)]))[1][0]


def diagonal_pairs(parts: ChunkTerms) -> ir.Value:
    """[C]: the scores of every position with itself, with what its factors of rows make of them."""
    block, scores, zero = parts.block, parts.scores(), constant_float(parts.block.score, 0.0)
    size, nowhere = constant_index(block.size), constant_float(block.wide, 0.0)
    weight = block.factor("attn.decay_mask", [nowhere, nowhere])

    def diagonal(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
        diagonal = arith.CmpIOp(arith.CmpIPredicate.eq, i, j).result
        score = arith.MulFOp(tensor.ExtractOp(scores, [i, j]).result, weight).result
        return [], [arith.SelectOp(diagonal, parts.decays.of_rows.of_pair(score, i, j), zero).result]

    return build.map_([size, size], [], [block.tile([block.size])], ["sum"], diagonal)[1][0]


def with_diagonal(block: ChunkTiles, others: ir.Value, diagonal: ir.Value, v: ir.Value, result: ir.Value | None = None) -> ir.Value:
    """The chunk's rows of o, of what all other positions add to them and `diagonal` rows of v, times `result` (None: 1)."""

    def add(i: ir.Value, d: ir.Value) -> list[ir.Value]:
        whole = arith.AddFOp(tensor.ExtractOp(others, [i, d]).result, _diagonal_part(block, diagonal, v, i, d)).result
        return [whole if result is None else arith.MulFOp(whole, tensor.ExtractOp(result, [i]).result).result]

    return block.map([others.type], add)[0]


def diagonal_sums(parts: ChunkTerms, diagonal: ir.Value, factor: ir.Value) -> ir.Value:
    """[C]: the sums over d of what each position adds to its own row, times x."""
    block = parts.block

    def part(i: ir.Value, d: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
        x = cast_float(tensor.ExtractOp(factor, [i, d]).result, block.score)
        return [], [arith.MulFOp(_diagonal_part(block, diagonal, parts.v, i, d), x).result]

    extents = [constant_index(block.size), constant_index(block.inputs.columns)]
    return build.map_(extents, [], [block.tile([block.size])], ["sum"], part)[1][0]


def _diagonal_part(block: ChunkTiles, diagonal: ir.Value, v: ir.Value, i: ir.Value, d: ir.Value) -> ir.Value:
    x = cast_float(tensor.ExtractOp(v, [i, d]).result, block.score)
    return arith.MulFOp(tensor.ExtractOp(diagonal, [i]).result, x).result


def whole_products(parts: ChunkTerms, o: ir.Value, factor: ir.Value) -> ir.Value:
    """The sums over d of o x, or where channels have decays, o x itself."""
    block = parts.block
    product = ElementProduct(o, factor, block.score)
    if block.channels == "none":
        return row_sums(block, product)
    return block.map([o.type], lambda i, d: [product.at(i, d)])[0]
