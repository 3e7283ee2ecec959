"""What decays of single channels make of the positions of a chunk."""

from typing import Any

from attn_mlir.dialects.tile.dialect import Tile
from attn_mlir.dialects.verify import check, is_score_type
from attn_mlir.mlir import ext, ir


class DecayChannelsOp(Tile.Operation, name="decay_channels", traits=[ext.Pure]):
    """What a linear attention whose key channels have decays of their own multiplies in a chunk of C positions.

    `q` and `k` are [C, K], `decays` [C, K] the log decay of every step, at most 0, and G its inclusive sums along C; with `reverse` (a
    scan from the last chunk to the first) G are those from a position's next one to the last. Of rows from `count` on decays are 0:

        leaving[t, d] = q[t, d] exp(G[t, d])                         what reads the state before the chunk
        entering[s, d] = k[s, d] exp(total[d] - G[s, d])             what the state after it gets, 0 from `count` on
        pairs[t, s] = sum over d of q[t, d] k[s, d] exp(G[t, d] - G[s, d]), 0 for s > t (reverse: s < t) and s >= `count`
        chunk_decay[d] = exp(total[d])                               what is left of the state, total: the sum of all decays

    The first three have the element type of q, to which they are rounded; chunk_decay that of the decays. Exponents are never positive, so
    that no decay overflows: pairs are sums of products of at most 1, in blocks of positions, not a product of leaving and entering.
    """

    q: ext.Operand[Any]
    k: ext.Operand[Any]
    decays: ext.Operand[Any]
    count: ext.Operand[ir.IndexType]
    reverse: Any
    leaving: ext.Result[Any]
    entering: ext.Result[Any]
    pairs: ext.Result[Any]
    chunk_decay: ext.Result[Any]

    def verify_invariants(self) -> bool:
        q, decays = self.q.type, self.decays.type
        if not _checks_reverse(self):
            return False
        if not check(self, _is_static(q) and self.k.type == q, f"takes q and k as tiles of one static type, got {q} and {self.k.type}"):
            return False
        if not _checks_decays(self, q):
            return False
        (size, keys), made = q.shape, [result.type for result in self.operation.results]
        wanted = [([size, keys], q), ([size, keys], q), ([size, size], q), ([keys], decays)]
        names = ", ".join(f"{'x'.join(map(str, shape))}x{like.element_type}" for shape, like in wanted)
        right = all(_is(type_, shape, like) for type_, (shape, like) in zip(made, wanted, strict=True))
        return check(self, right, f"makes tiles of ({names}), got ({', '.join(map(str, made))})")


class DecayValuesOp(Tile.Operation, name="decay_values", traits=[ext.Pure]):
    """What a chunk of C positions gives for its own and to the state, where v's columns have decays of their own.

    `scores` is q k^T [C, C], `outside` what q makes of the state before the chunk [C, D], `v` [C, D], `decays` [C, D] the log decay of
    every step, at most 0, and G its inclusive sums along C; with `reverse` (a scan from the last chunk to the first) G are those from a
    position's next one to the last. Of rows from `count` on decays are 0:

        others[t, d] = outside[t, d] exp(G[t, d])
                       + sum over s < t (reverse: s > t), s < `count` of scores[t, s] v[s, d] exp(G[t, d] - G[s, d])
        rows[t, d] = others[t, d] + scores[t, t] v[t, d]
        entering[s, d] = v[s, d] exp(total[d] - G[s, d])             what the state after it gets, 0 from `count` on
        chunk_decay[d] = exp(total[d])                               what is left of the state, total: the sum of all decays

    Of others and rows those from `count` on are anything. All but v have the element type of decays: nothing is rounded to 16 bits, so that
    others times a further tensor may be subtracted from each other. Exponents are never positive.
    """

    scores: ext.Operand[Any]
    outside: ext.Operand[Any]
    v: ext.Operand[Any]
    decays: ext.Operand[Any]
    count: ext.Operand[ir.IndexType]
    reverse: Any
    others: ext.Result[Any]
    rows: ext.Result[Any]
    entering: ext.Result[Any]
    chunk_decay: ext.Result[Any]

    def verify_invariants(self) -> bool:
        v, decays = self.v.type, self.decays.type
        if not _checks_reverse(self):
            return False
        if not check(self, _is_static(v), f"takes v as a tile of two static dimensions, got {v}"):
            return False
        if not _checks_decays(self, v):
            return False
        (size, columns), given = v.shape, [self.scores.type, self.outside.type]
        right = _is(given[0], [size, size], decays) and given[1] == decays
        if not check(self, right, f"takes scores {size}x{size} and what is outside, like {decays}, got {given[0]} and {given[1]}"):
            return False
        made = [result.type for result in self.operation.results]
        right = made[:3] == [decays] * 3 and _is(made[3], [columns], decays)
        return check(self, right, f"makes three tiles like {decays} and {columns} factors, got ({', '.join(map(str, made))})")


def _is_static(type_: ir.Type) -> bool:
    """Whether a type is a tile of two static dimensions."""
    return isinstance(type_, ir.RankedTensorType) and type_.rank == 2 and type_.has_static_shape


def _checks_reverse(op: DecayChannelsOp | DecayValuesOp) -> bool:
    """`reverse` is true or false."""
    return check(op, isinstance(op.reverse, ir.BoolAttr), f"takes `reverse` as true or false, got {op.reverse}")


def _checks_decays(op: DecayChannelsOp | DecayValuesOp, tile: ir.RankedTensorType) -> bool:
    """Every element of `tile` has a log decay."""
    decays = op.decays.type
    fits = isinstance(decays, ir.RankedTensorType) and list(decays.shape) == list(tile.shape) and is_score_type(decays.element_type)
    return check(op, fits, f"takes decays of f32 or f64 for every element of {tile}, got {decays}")


def _is(type_: ir.Type, shape: list[int], like: ir.RankedTensorType) -> bool:
    """Whether a type is a tile of this shape, with elements like those of another."""
    return isinstance(type_, ir.RankedTensorType) and list(type_.shape) == shape and type_.element_type == like.element_type
