"""Chunks whose channels have decays of their own in one op, for targets that have code of their own for it.

It is `tile.decay_channels` for key channels, `tile.decay_values` for value channels.
"""

from attn_mlir.dialects.attn.linear_erase import reads_strictly
from attn_mlir.dialects.attn.linear_gradients import is_compensated
from attn_mlir.dialects.tile import build
from attn_mlir.mlir import ir, tensor
from attn_mlir.passes.regions import block_of, maker, piece
from attn_mlir.passes.tiling.chunk_decays import Decays
from attn_mlir.passes.tiling.chunk_products import ChunkTerms, whole_products
from attn_mlir.passes.tiling.chunk_tiles import Chunk, ChunkTiles, Keep, Put

AT_ONCE = "tile.decay_channels"
"""The unit attribute of a function that asks for one of these ops."""
_EXPONENTS = {
    "forward": {"attn.chunk_decay": (0,), "attn.output_decay": (0,), "attn.input_decay": (1, 0), "attn.decay_mask": (0, 1)},
    "backward": {"attn.chunk_decay": (0,), "attn.output_decay": (1, 0), "attn.input_decay": (0,), "attn.decay_mask": (1, 0)},
}
"""The factors as exponentials of an argument, or of the difference of two."""


def fits_at_once(op: ir.Operation) -> bool:
    """Whether one of the ops computes what an `attn.chunk` asks for: for value channels, that of scans with products."""
    view = op.opview
    fits = {"key": not is_compensated(op), "value": view.factor is not None and view.state.value == "vk"}
    if not fits.get(view.channels.value, False) or "crossing" in op.attributes:
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
    exponential = maker(block_of(found).operations[-1].operation.operands[0], "math.exp")
    if exponential is None:
        return None
    exponent = exponential.operands[0]
    difference = maker(exponent, "arith.subf")
    values = [exponent] if difference is None else list(difference.operands)
    return tuple(arguments.index(value) for value in values) if all(value in arguments for value in values) else None


def build_at_once(block: ChunkTiles, chunk: Chunk, state: ir.Value, o: ir.Value | None, products: Put | None, keep: Keep) -> ir.Value:
    """Emits a chunk: stores its rows of o and its products, returns the state after it."""
    if block.channels == "key":
        return _by_key(block, chunk, state, o, keep)
    return _by_value(block, chunk, state, o, products, keep)


def _by_value(block: ChunkTiles, chunk: Chunk, state: ir.Value, o: ir.Value | None, products: Put | None, keep: Keep) -> ir.Value:
    decays = Decays(block, chunk, summed=False)
    assert decays.steps is not None and block.inputs.factor is not None
    q, k = block.load(block.inputs.q, chunk, "attn.query"), block.load(block.inputs.k, chunk, "attn.key")
    v, factor = block.load(block.inputs.v, chunk, "attn.value"), block.load(block.inputs.factor, chunk)
    parts = ChunkTerms(block, decays, state, q, k, v)
    made = build.decay_values(parts.scores(), parts.of_state, v, decays.steps, chunk.count, not block.forward)
    others, rows, entering, chunk_decay = made
    place = (block.sequence.batch, block.sequence.head, chunk.begin, chunk.count)
    if block.forward:
        keep(state, chunk_decay)
    if products is not None:
        products(whole_products(parts, others, factor), place)
    if o is not None:
        build.store(others if reads_strictly(block.op, False) else rows, o, *place)
    following = block.advance(lambda i, d: tensor.ExtractOp(entering, [i, d]).result, chunk_decay, state, k, v)
    if not block.forward:
        keep(following, chunk_decay)
    return following


def _by_key(block: ChunkTiles, chunk: Chunk, state: ir.Value, o: ir.Value | None, keep: Keep) -> ir.Value:
    """Where only the state is of use, k stands for q."""
    decays = Decays(block, chunk, summed=False)
    assert decays.steps is not None
    q = block.load(block.inputs.q, chunk, "attn.query") if o is not None else None
    k, v = block.load(block.inputs.k, chunk, "attn.key"), block.load(block.inputs.v, chunk, "attn.value")
    leaving, entering, pairs, chunk_decay = build.decay_channels(k if q is None else q, k, decays.steps, chunk.count, not block.forward)
    if block.forward:
        keep(state, chunk_decay)
    if o is not None:
        rows = build.dot(leaving, block.multiplied(state), block.score, transpose_b=False)
        rows = build.dot_accumulate(rows, None, pairs, v)
        build.store(rows, o, block.sequence.batch, block.sequence.head, chunk.begin, chunk.count)
    following = build.dot_accumulate(state, chunk_decay, entering, v, transpose_a=True)
    if not block.forward:
        keep(following, chunk_decay)
    return following
