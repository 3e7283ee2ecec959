"""Linear attention: `attn.linear_attention` (the recurrence), and `attn.chunk` (its chunked form)."""

from typing import Any

from attn_mlir.dialects.attn.linear_erase import verify_delta
from attn_mlir.dialects.attn.linear_gradients import interval_of, is_plain, verify_outputs
from attn_mlir.dialects.attn.linear_recurrence import verify_recurrence
from attn_mlir.dialects.attn.linear_segments import Cut, segment_of, verify_cut
from attn_mlir.dialects.attn.pieces import pieces_in, verify_pieces
from attn_mlir.dialects.verify import check
from attn_mlir.mlir import ext, ir

_MODS = frozenset(f"attn.{name}" for name in ("query", "key", "value", "decay", "result", "skip", "erase", "remove", "write"))
_FACTORS = frozenset({"attn.chunk_decay", "attn.input_decay", "attn.output_decay", "attn.decay_mask"})


def _verify_linear(op: Any) -> bool:
    return verify_recurrence(op) and verify_outputs(op) and verify_cut(op)


def _verify_behind(op: Any) -> bool:
    """Checks where `attn.result` and `attn.skip` may stand."""
    there, message = {piece.name for piece in pieces_in(op.operation)}, "where decays are those of heads, and products not `crossing`"
    if not check(op, is_plain(op) or "attn.result" not in there, f"has an 'attn.result' {message}"):
        return False
    alone = op.channels.value == "none" and op.factor is None
    return check(op, alone or "attn.skip" not in there, "has an 'attn.skip' where decays are those of heads, and there is no factor")


class LinearAttentionOp(Cut, name="linear_attention", traits=[ir.NoTerminatorTrait, ext.Pure]):
    """Linear attention: a state S fades by exp(g_t) at every position and takes up k_t v_t^T, and q_t reads it.

        S_t = exp(g_t) S_(t-1) + k_t v_t^T,  S_0 = initial_state
        o_t = q_t S_t = sum over s <= t of exp(g_(s+1) + ... + g_t) (q_t . k_s) v_s  +  exp(g_1 + ... + g_t) q_t . initial_state

    From the last position to the first, `direction` "backward":

        o_t = sum over s >= t of exp(g_(t+1) + ... + g_s) (q_t . k_s) v_s  +  exp(g_(t+1) + ... + g_T) q_t . initial_state

    The body holds pieces, each at most once, in any order; an absent one is the identity:

        attn.query, attn.key, attn.value, attn.decay      elementwise on the inputs, in the type of scores
        attn.result                                       a factor of o's rows, after these sums
        attn.skip                                         o_t gets it times v_t, with v as it comes, after that; absent: nothing
        attn.erase                                        the delta rule: what the state loses
        attn.remove                                       elementwise on the key that is removed, where that is not k
        attn.write                                        a second writer of the state, for gradients of the delta rule

    `output` says where q reads the state: "after" (absent, too) S_t, "decayed" exp(g_t) S_(t-1), "written" what is there after the first
    of two writers. With "values" o is what `attn.erase` makes: v_t - x_t, written with k, or -x_t, written with what it removes.
    """

    def verify_invariants(self) -> bool:
        return _verify_linear(self)

    def verify_region_invariants(self) -> bool:
        return verify_pieces(self, _MODS, frozenset()) and _verify_behind(self) and verify_delta(self)


class ChunkOp(Cut, name="chunk", traits=[ir.NoTerminatorTrait, ext.Pure]):
    """Linear attention in chunked form: chunks of `chunk` positions one after the other, carrying the state S.

        o_t = output_decay(prefix_t, total) q_t . S  +  sum over present s of decay_mask(prefix_t, prefix_s) (q_t . k_s) v_s
        S  <- chunk_decay(total) S  +  sum over s of input_decay(prefix_s, total) k_s v_s^T

    The four factors are pieces that `attn-chunk-rewrite` derives of the recurrence, scalar functions of log decays summed up within a
    chunk: `prefix` from its first position up to and with one position, `total` the whole chunk, by channels where decays have channels.
    Position s is present at t for s <= t (forward; chunks first to last) or s >= t (backward; chunks last to first). In the last chunk of
    a sequence, positions past its end are absent, and add nothing to prefix and total. Everything else is as in `attn.linear_attention`.

    Fields:
        chunk: the positions of a chunk; `interval` and `segment` are multiples of it, with `crossing` it is the interval
    """

    chunk: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        return _verify_linear(self) and check(self, self.chunk.value > 0, f"has chunks of at least one position, got {self.chunk.value}")

    def verify_region_invariants(self) -> bool:
        if not (verify_pieces(self, _MODS | _FACTORS, _FACTORS) and _verify_behind(self) and verify_delta(self)):
            return False
        interval = interval_of(self.operation) or self.chunk.value
        if not check(self, interval % self.chunk.value == 0, f"makes states at multiples of {self.chunk.value} positions, got {interval}"):
            return False
        alone = "crossing" not in self.operation.attributes or interval == self.chunk.value
        if not check(self, alone, f"has chunks of the interval where products are `crossing`, got {self.chunk.value} and {interval}"):
            return False
        segment = segment_of(self.operation) or self.chunk.value
        return check(self, segment % self.chunk.value == 0, f"has segments of whole chunks of {self.chunk.value}, got {segment}")
