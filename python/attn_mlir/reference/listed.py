"""Random lists of keys, and their inverse, for an `attn.key_lists`."""

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.reference.scalar import Array


def draw_lists(rng: np.random.Generator, op: ir.Operation, batch: int, heads: int, q_len: int, kv_len: int) -> list[Array]:
    """The operands of the op, for so many lists' heads; a third of all blocks is listed."""
    queries, keys, tile = list(ir.DenseI64ArrayAttr(op.attributes["block"]))
    lists, blocks, tiles = (-(-length // size) for length, size in ((q_len, queries), (kv_len, keys), (kv_len, tile)))
    chosen = rng.random((batch, heads, lists, blocks)) < 1 / 3
    positions = chosen.repeat(keys, axis=3)[..., :kv_len]
    padded = np.zeros((batch, heads, lists, tiles * tile), bool)
    padded[..., :kv_len] = positions
    # Of each tile, by each list: which of its keys are named.
    bits = (padded.reshape(batch, heads, lists, tiles, tile) * (1 << np.arange(tile, dtype=np.int64))).sum(-1)
    bits = np.moveaxis(bits, 2, 3)
    kept = bits[bits != 0].astype(np.uint32).view(np.int32)
    return [np.nonzero(chosen)[3], _ranges(chosen), np.nonzero(bits)[3], kept, _ranges(bits != 0)]


def _ranges(present: Array) -> Array:
    """Where the entries of each list lie among those of all, [..., 2]."""
    counts = present.sum(-1)
    ends = np.cumsum(counts).reshape(counts.shape)
    return np.stack([ends - counts, ends], -1)
