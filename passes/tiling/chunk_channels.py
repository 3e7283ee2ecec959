"""Chunks whose key channels have decays of their own in one op, for targets that have code of their own for it (`tile.decay_channels`)."""

from typing import TYPE_CHECKING

from attn_mlir.dialects.attn.linear import is_exact
from attn_mlir.dialects.tile import build
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import block_of, maker, piece
from attn_mlir.passes.tiling.chunk_decays import Decays

if TYPE_CHECKING:
    from attn_mlir.passes.tiling.chunk_block import Chunk, ChunkBlock, Keep

AT_ONCE = "tile.decay_channels"
"""The unit attribute of a function that asks for the op of this name."""
_EXPONENTS = {
    "forward": {"attn.carry": (0,), "attn.leave": (0,), "attn.enter": (1, 0), "attn.weight": (0, 1)},
    "backward": {"attn.carry": (0,), "attn.leave": (1, 0), "attn.enter": (0,), "attn.weight": (1, 0)},
}
"""The factors as exponentials of an argument, or of the difference of two."""


def fits_at_once(op: ir.Operation) -> bool:
    """Whether `tile.decay_channels` computes what an `attn.chunk` asks for."""
    view = op.opview
    if view.channels.value != "key" or is_exact(op) or "crossing" in op.attributes:
        return False
    if view.decay is None and piece(op, "attn.decay") is None:
        return False
    return all(_exponent(op, name) == places for name, places in _EXPONENTS[view.direction.value].items())


def _exponent(op: ir.Operation, name: str) -> tuple[int, ...] | None:
    """The arguments whose difference, or the one of which, a factor is the exponential; None for other factors."""
    found = piece(op, name)
    if found is None:
        return None
    arguments = list(block_of(found).arguments)
    exponential = maker(list(block_of(found).operations)[-1].operation.operands[0], "math.exp")
    if exponential is None:
        return None
    exponent = exponential.operands[0]
    difference = maker(exponent, "arith.subf")
    values = [exponent] if difference is None else list(difference.operands)
    return tuple(arguments.index(value) for value in values) if all(value in arguments for value in values) else None


def build_at_once(block: "ChunkBlock", chunk: "Chunk", state: ir.Value, o: ir.Value | None, keep: "Keep") -> ir.Value:
    """Emits a chunk: stores its rows of o, returns the state after it. Where only that is of use, k stands for q."""
    decays = Decays(block, chunk, summed=False)
    assert decays.steps is not None
    q = block.load(block.inputs.q, chunk, "attn.query") if o is not None else None
    k, v = block.load(block.inputs.k, chunk, "attn.key"), block.load(block.inputs.v, chunk, "attn.value")
    leaving, entering, pairs, carry = build.decay_channels(k if q is None else q, k, decays.steps, chunk.count, not block.forward)
    if block.forward:
        keep(state, carry)
    if o is not None:
        rows = build.dot(leaving, block.multiplied(state), block.score, transpose_b=False)
        rows = build.dot_accumulate(rows, None, pairs, v)
        build.store(rows, o, block.sequence.batch, block.sequence.head, chunk.begin, chunk.count)
    following = build.dot_accumulate(state, carry, entering, v, transpose_a=True)
    if not block.forward:
        keep(following, carry)
    return following
