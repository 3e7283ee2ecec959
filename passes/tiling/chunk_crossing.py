"""The `crossing` products of a chunk, of which gradients of decays are made without taking differences.

What passes from before position t to it or beyond has four parts, by where it comes from and where it goes to: within the chunk or not.
What comes from before the chunk and goes to its position u is summed up over u >= t by the forward scan, which reads the state before the
chunk; what goes from its position r to beyond is summed up over r < t by the backward one; what comes from before and goes beyond is made
of both states. Pairs within the chunk are summed up over u >= t > r by the forward scan. For decays of channels, whose pairs no tile
holds, each scan does it where t lies on its side of the boundary between the two blocks of positions that a pair connects.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from attn_mlir.dialects.attn.linear_erase import reads_strictly
from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.tiling.block_sums import BlockSums
from attn_mlir.passes.tiling.chunk_products import ChunkTerms, ElementProduct, row_sums
from attn_mlir.passes.tiling.chunk_tiles import ChunkTiles, Element
from attn_mlir.passes.tiling.scalars import cast_float, constant_float, constant_index


def of_heads(parts: ChunkTerms, factor: ir.Value) -> ir.Value:
    """[C]: those of a chunk with one decay for all channels."""
    block, decays = parts.block, parts.decays
    sums, output_decay = row_sums(block, ElementProduct(parts.of_state, factor, block.score)), decays.rows("attn.output_decay")
    zero, size = constant_float(block.score, 0.0), constant_index(block.size)

    def of_state(i: ir.Value) -> list[ir.Value]:
        product = arith.MulFOp(tensor.ExtractOp(sums, [i]).result, tensor.ExtractOp(output_decay, [i]).result).result
        return [cast_float(_present(parts, i, product), block.wide)]

    (from_state,) = block.map([block.tile([block.size], block.wide)], of_state)
    if not block.forward:  # A row has no other one to read: it takes itself away, in the type of sums.
        return combined(block, build.cumsum(from_state), from_state, arith.SubFOp)
    writers = parts.writers
    of_pairs = [(w.scores(), build.dot(block.multiplied(factor), w.v, block.score, transpose_b=True), w.decays) for w in writers]

    def pair(i: ir.Value, j: ir.Value) -> list[ir.Value]:
        later = arith.CmpIOp(arith.CmpIPredicate.sgt, i, j).result
        values = []
        for scores, others, seen in of_pairs:
            product = arith.MulFOp(tensor.ExtractOp(scores, [i, j]).result, tensor.ExtractOp(others, [i, j]).result).result
            values.append(arith.MulFOp(product, seen.weight(i, j, None)).result)
        value = functools.reduce(lambda x, y: arith.AddFOp(x, y).result, values)
        return [arith.SelectOp(arith.AndIOp(later, decays.exists(i)).result, value, zero).result]

    (pairs,) = block.map([block.tile([block.size, block.size])], pair)
    reaching = _from(pairs)

    def passing(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
        before = arith.CmpIOp(arith.CmpIPredicate.slt, j, i).result
        return [], [arith.SelectOp(before, tensor.ExtractOp(reaching, [i, j]).result, zero).result]

    _, (own,) = build.map_([size, size], [], [block.tile([block.size])], ["sum"], passing)
    rest = _from(from_state)

    def both(i: ir.Value) -> list[ir.Value]:
        of_pairs = tensor.ExtractOp(own, [i]).result
        return [arith.AddFOp(of_pairs, cast_float(tensor.ExtractOp(rest, [i]).result, block.score)).result]

    return block.map([own.type], both)[0]


def of_channels(parts: ChunkTerms, from_state: ir.Value, apart: Mapping[int, ir.Value], factor: ir.Value) -> ir.Value:
    """[C, V]: those of a chunk whose value channels have decays; `apart` is what pairs of neighbouring blocks add, by their size.

    A pair passes the positions of the later block up to its own, which the forward scan adds up, and those of the earlier one after its
    own, which the backward one does.
    """
    block = parts.block

    def times_factor(o: ir.Value) -> Element:
        return lambda i, d: _present(parts, i, ElementProduct(o, factor, block.score).at(i, d))

    (state,) = block.map([from_state.type], lambda i, d: [times_factor(from_state)(i, d)])
    passing = _from(state) if block.forward else _before(parts, state)
    sums = BlockSums(block, ir.RankedTensorType(state.type).shape[1])
    pairs = sums.of({h: times_factor(tile) for h, tile in apart.items()}, block.size, 0 if block.forward else 1)
    return block.map([state.type], lambda i, d: [arith.AddFOp(tensor.ExtractOp(passing, [i, d]).result, pairs(i, d)).result])[0]


def whole(parts: ChunkTerms, from_state: ir.Value, apart: Mapping[int, ir.Value]) -> ir.Value:
    """[C, V]: the output of a chunk whose value channels have decays, with what every position adds to its own."""
    block, writers = parts.block, parts.writers
    own = [(w.scores(), w.v, w.decays) for n, w in enumerate(writers) if not reads_strictly(block.op, n == 1)]

    def add(i: ir.Value, d: ir.Value) -> list[ir.Value]:
        values = []
        for scores, v, seen in own:
            score = arith.MulFOp(tensor.ExtractOp(scores, [i, i]).result, seen.weight(i, i, d)).result
            values.append(arith.MulFOp(score, cast_float(tensor.ExtractOp(v, [i, d]).result, block.score)).result)
        values += [tensor.ExtractOp(tile, [i, d]).result for tile in (*apart.values(), from_state)]
        return [functools.reduce(lambda x, y: arith.AddFOp(y, x).result, values)]

    return block.map([from_state.type], add)[0]


def _present(parts: ChunkTerms, i: ir.Value, value: ir.Value) -> ir.Value:
    """A value of row i, 0 past the end."""
    return arith.SelectOp(parts.decays.exists(i), value, constant_float(parts.block.score, 0.0)).result


def _from(x: ir.Value) -> ir.Value:
    """The sums of a tile's rows from each one to the end."""
    return build.cumsum(x, reverse=True)


def _before(parts: ChunkTerms, x: ir.Value) -> ir.Value:
    """The sums of a tile's rows up to each one, without it."""
    sums, zero, one = build.cumsum(x), constant_index(0), constant_index(1)

    def above(i: ir.Value, *d: ir.Value) -> list[ir.Value]:
        row = arith.SubIOp(arith.MaxSIOp(i, one).result, one).result
        first = arith.CmpIOp(arith.CmpIPredicate.eq, i, zero).result
        return [arith.SelectOp(first, constant_float(parts.block.score, 0.0), tensor.ExtractOp(sums, [row, *d]).result).result]

    return parts.block.map([x.type], above)[0]


def combined(block: ChunkTiles, x: ir.Value, y: ir.Value, how: Callable[..., Any]) -> ir.Value:
    """Two tiles added up or subtracted, element by element, in the type of the second one."""

    def body(*at: ir.Value) -> list[ir.Value]:
        first = cast_float(tensor.ExtractOp(x, at).result, ir.RankedTensorType(y.type).element_type)
        return [how(first, tensor.ExtractOp(y, at).result).result]

    return block.map([y.type], body)[0]
