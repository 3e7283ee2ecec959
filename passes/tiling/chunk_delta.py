"""What the delta rule adds to a chunk: the system whose solution is what erasing writes, and a second writer.

Every reader of a chunk sees the state before it by `attn.output_decay`, and what its positions write by `attn.decay_mask`, as q does. So
what e reads is one more read of q's kind, of positions before its own, and the values solve a unit-triangular system (`derivation.delta`).
"""

from dataclasses import dataclass

from attn_mlir.dialects.attn.linear_erase import eraser, output_of, reads_strictly, remover, writer
from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.regions import piece
from attn_mlir.passes.tiling.chunk_crossing import combined
from attn_mlir.passes.tiling.chunk_decays import Decays
from attn_mlir.passes.tiling.chunk_levels import Levels
from attn_mlir.passes.tiling.chunk_products import ChunkTerms, SecondWriter
from attn_mlir.passes.tiling.chunk_rows import RowFactors, erase_factors, remove_factors
from attn_mlir.passes.tiling.chunk_tiles import Chunk, ChunkTiles, row_mod


@dataclass(frozen=True)
class Written:
    """What a chunk's positions write: `values` with k, those of a second writer, and what `attn.erase` makes (both None for nothing).

    `factors` are those of rows of the second writer's key and values, None for 1.
    """

    values: ir.Value
    second: "tuple[ir.Value, ir.Value] | None" = None
    made: ir.Value | None = None
    factors: ir.Value | None = None


def written(
    block: ChunkTiles, sub: int, chunk: Chunk, decays: Decays, state: ir.Value, *, q: ir.Value | None, k: ir.Value, v: ir.Value
) -> Written:
    """Emits what is written in a chunk, of its rows of k and v and the state that it reads; q, if any, reads the same keys later."""
    inputs = block.inputs
    if writer(block.op) is not None:
        assert inputs.second_key is not None and inputs.second_value is not None
        return Written(v, (block.multiplied(block.load(inputs.second_key, chunk)), block.load(inputs.second_value, chunk)))
    if eraser(block.op) is None:
        return Written(v)
    assert inputs.erase is not None
    e = k if _is_key(block) else block.load(inputs.erase, chunk, "attn.erase")
    removed = k if inputs.second_key is None else _removed(block, chunk, e)
    of_removed = None if inputs.second_key is None else remove_factors(block, chunk)
    factors = RowFactors(erase_factors(block, chunk), decays.of_rows.right if inputs.second_key is None else of_removed)
    seen = decays.read_by(factors, strict=True)
    parts = ChunkTerms(block, seen, state, e, removed, v)
    own_key = inputs.second_key is not None and eraser(block.op).attributes["reads"].value != "decayed"  # type: ignore[union-attr]
    if block.channels == "key":
        pairs = [(e, removed, False)] if removed == k else [(e, removed, False), (e, k, own_key)]
        if q is not None:
            pairs.append((q, k, decays.reads_own))
        Levels(block, decays, sub).products_by_key(pairs)
    system, passed = _pairs(block, sub, seen, e, removed), _passed(block, parts)
    if inputs.second_key is None:
        values = combined(block, v, passed, arith.SubFOp)  # rows of v less what was read
        return Written(solved := build.solve_unit(system, values, not block.forward), None, solved)
    of_key = decays.read_by(RowFactors(factors.left, decays.of_rows.right), strict=not own_key)
    right = build.dot_accumulate(passed, None, block.multiplied(_pairs(block, sub, of_key, e, k)), v)
    x = build.solve_unit(system, right, not block.forward)
    (made,) = block.map([x.type], lambda i, d: [arith.NegFOp(tensor.ExtractOp(x, [i, d]).result).result])
    return Written(v, (removed, made), made, of_removed)


def second_of(block: ChunkTiles, decays: Decays, q: ir.Value, write: Written) -> SecondWriter | None:
    """How q reads what the second writer writes."""
    if write.second is None:
        return None
    seen = decays.read_by(RowFactors(decays.of_rows.left, write.factors), strict=reads_strictly(block.op, True))
    return SecondWriter(block, seen, q, *write.second)


def makes_values(block: ChunkTiles) -> bool:
    """Whether the op's result is what erasing writes."""
    return output_of(block.op) == "values"


def _is_key(block: ChunkTiles) -> bool:
    """Whether the erase key is the tile of k, but for factors of rows."""
    erase = eraser(block.op)
    same = erase is not None and erase.operands[0] == block.op.opview.k
    return same and all(row_mod(block.op, name) is not None or piece(block.op, name) is None for name in ("attn.key", "attn.erase"))


def _removed(block: ChunkTiles, chunk: Chunk, e: ir.Value) -> ir.Value:
    """The tile of the keys that are removed, but for factors of rows: that of the erase keys where both are the same tensor."""
    assert block.inputs.second_key is not None
    erase, change = eraser(block.op), remover(block.op)
    assert erase is not None
    by_rows = change is None or row_mod(block.op, change.name) is not None
    if by_rows and erase.operands[0] == erase.operands[1] and row_mod(block.op, erase.name) is not None:
        return e
    return block.multiplied(block.load(block.inputs.second_key, chunk, "attn.remove"))


def _pairs(block: ChunkTiles, sub: int, seen: Decays, x: ir.Value, key: ir.Value) -> ir.Value:
    """[C, C] of scores: weighted products of rows, 0 where a position is not read."""
    if block.channels == "key":
        return Levels(block, seen, sub).pairs_by_key(x, key, block.score)
    element = seen.weighted(build.dot(x, key, block.score, transpose_b=True))
    return block.map([block.tile([block.size] * 2)], lambda i, j: [element(i, j)])[0]


def _passed(block: ChunkTiles, parts: ChunkTerms) -> ir.Value:
    """[C, V] of scores: what is read of the state before the chunk."""
    if block.channels == "key":
        return parts.of_state
    return parts.decays.scaled("attn.output_decay", parts.of_state, block.score)
