"""Mods that multiply rows of q, k or v of a chunk: factors of states and pairs take them over, so that no tile is scaled and rounded.

Those of rows of o do so, too, where o is all that the rows are used for; they scale rows of a scan with products after its sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.regions import block_of, piece
from attn_mlir.passes.tiling.chunk_tiles import Chunk, ChunkTiles, row_mod
from attn_mlir.passes.tiling.scalars import constant_float, constant_index


@dataclass(frozen=True)
class RowFactors:
    """[C] tiles of scores, or None for 1: `left` multiplies rows of q (and with it those of o), `right` those of k and of v.

    `skip` is what rows of o get of their own row of v, or None for 0.
    """

    left: ir.Value | None = None
    right: ir.Value | None = None
    skip: ir.Value | None = None

    def of_query(self, value: ir.Value, i: ir.Value) -> ir.Value:
        """A value times the factor of row i of q."""
        return _times(value, self.left, i)

    def of_key(self, value: ir.Value, j: ir.Value) -> ir.Value:
        """A value times the factor of row j of k and v."""
        return _times(value, self.right, j)

    def of_pair(self, value: ir.Value, i: ir.Value, j: ir.Value) -> ir.Value:
        """A value times the factors of row i of q and row j of k and v."""
        return self.of_key(self.of_query(value, i), j)


def row_factors(block: ChunkTiles, chunk: Chunk, queries: bool) -> RowFactors:
    """The factors of a chunk's rows; those of q only where its `queries` are read."""
    q, k, v = (source.head for source in (block.inputs.q, block.inputs.k, block.inputs.v))
    behind = [] if _makes_products(block) else [(block.sequence.head, "attn.result")]
    left = _product(block, chunk, [(q, "attn.query"), *behind]) if queries else None
    return RowFactors(left, _product(block, chunk, [(k, "attn.key"), (v, "attn.value")]), _skip(block, chunk) if queries else None)


def result_factors(block: ChunkTiles, chunk: Chunk) -> ir.Value | None:
    """[C]: the factors of rows of o after all sums, where `row_factors` have none of them; None for 1."""
    return _product(block, chunk, [(block.sequence.head, "attn.result")]) if _makes_products(block) else None


def erase_factors(block: ChunkTiles, chunk: Chunk) -> ir.Value | None:
    """[C]: the factors of a chunk's erase keys; None for 1."""
    return _product(block, chunk, [(block.sequence.head, "attn.erase")])


def remove_factors(block: ChunkTiles, chunk: Chunk) -> ir.Value | None:
    """[C]: the factors of the keys that are removed, where these are not k; None for 1."""
    return _product(block, chunk, [(block.sequence.head, "attn.remove")])


def _skip(block: ChunkTiles, chunk: Chunk) -> ir.Value | None:
    """[C]: what rows of o get of their own row of v; None for 0."""
    found = piece(block.op, "attn.skip")
    if found is None:
        return None

    def body(i: ir.Value) -> list[ir.Value]:
        places = [block.sequence.batch, block.sequence.head, block.position_of(chunk, i)]
        return list(block.frame.scalars().inline(block_of(found), places))

    return block.map([block.tile([block.size])], body)[0]


def _makes_products(block: ChunkTiles) -> bool:
    """Products are those of o before its rows are scaled."""
    return block.inputs.factor is not None


def _product(block: ChunkTiles, chunk: Chunk, mods: Sequence[tuple[ir.Value, str]]) -> ir.Value | None:
    """[C]: the product of what mods, each with its head, multiply rows by; None where none does."""
    found = [(head, mod) for head, name in mods if (mod := row_mod(block.op, name)) is not None]
    if not found:
        return None

    def body(i: ir.Value) -> list[ir.Value]:
        value = constant_float(block.score, 1.0)
        for head, mod in found:
            places = [block.sequence.batch, head, block.position_of(chunk, i), constant_index(0)]
            (value,) = block.frame.scalars().inline(block_of(mod), [value, *places])
        return [value]

    return block.map([block.tile([block.size])], body)[0]


def _times(value: ir.Value, rows: ir.Value | None, i: ir.Value) -> ir.Value:
    return value if rows is None else arith.MulFOp(value, tensor.ExtractOp(rows, [i]).result).result
