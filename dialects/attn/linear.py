"""Linear attention: `attn.linear_attention` (the recurrence), `attn.chunk` (its chunked form), and what their gradients need besides."""

from typing import Any

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.attn.pieces import pieces_in, verify_pieces
from attn_mlir.dialects.verify import check, is_score_type, is_tensor
from attn_mlir.mlir import ext, ir

OUTPUTS = ("final_state", "products", "states", "own")
_MODS = frozenset({"attn.query", "attn.key", "attn.value", "attn.decay", "attn.result", "attn.skip"})
_FACTORS = frozenset({"attn.carry", "attn.enter", "attn.leave", "attn.weight"})
_CHOICES = {"direction": ("forward", "backward"), "channels": ("none", "key", "value"), "state": ("kv", "vk")}


def _verify_tensors(op: Any) -> bool:
    q, k, v, o = op.q.type, op.k.type, op.v.type, op.o.type
    for name, type_ in (("q", q), ("k", k), ("v", v), ("o", o)):
        static = is_tensor(type_, 4) and not type_.is_dynamic_dim(3)
        if not check(op, static, f"takes {name} as [batch, head, position, dim] with a static dim, got {type_}"):
            return False
    if not check(op, q.shape[3] == k.shape[3], f"needs equal head dimensions of q and k, got {q.shape[3]} and {k.shape[3]}"):
        return False
    if not check(op, q.element_type == k.element_type == v.element_type, f"needs one element type for q, k and v, got {q}, {k}, {v}"):
        return False
    if not check(op, isinstance(q.element_type, ir.FloatType), f"takes q, k and v of floating-point numbers, got {q}"):
        return False
    return check(op, o.shape[3] == v.shape[3], f"makes o with v's head dimension {v.shape[3]}, got {o}")


def _verify_optional(op: Any) -> bool:
    k, v = op.k.type.shape[3], op.v.type.shape[3]
    channels = op.channels.value
    if op.decay is not None:
        rank, width = (3, None) if channels == "none" else (4, k if channels == "key" else v)
        type_ = op.decay.type
        fits = is_tensor(type_, rank) and (width is None or type_.shape[3] == width)
        wanted = "[batch, head, position]" if width is None else f"[batch, head, position, {width}]"
        if not check(op, fits, f"takes decay as {wanted} for channels '{channels}', got {type_}"):
            return False
    if op.initial_state is not None:
        rows, columns = state_shape(op.operation)
        type_ = op.initial_state.type
        fits = is_tensor(type_, 4) and type_.shape[3] == columns and is_score_type(type_.element_type)
        if not check(op, fits, f"takes initial_state as f32 [batch, head, {rows}, {columns}], got {type_}"):
            return False
    if op.factor is not None:
        type_ = op.factor.type
        if not check(op, is_tensor(type_, 4) and type_.shape[3] == v, f"multiplies o by [batch, head, position, {v}], got {type_}"):
            return False
    if op.offsets is not None:
        type_ = op.offsets.type
        fits = is_tensor(type_, 1) and isinstance(type_.element_type, ir.IntegerType)
        return check(op, fits, f"takes offsets as a tensor of integers [sequences + 1], got {type_}")
    return True


def _verify_choices(op: Any) -> bool:
    for name, values in _CHOICES.items():
        value = op.operation.attributes[name].value
        if not check(op, value in values, f"takes `{name}` as one of {', '.join(values)}, got '{value}'"):
            return False
    if not check(op, 0 <= op.heads.value < 4, f"takes `heads` as the number of q, k, v or decay (0 to 3), got {op.heads.value}"):
        return False
    fixed = {"key": "kv", "value": "vk"}.get(op.channels.value, op.state.value)
    if not check(op, op.state.value == fixed, f"has states '{fixed}', where rows are channels, for decays of {op.channels.value} channels"):
        return False
    return check(op, op.heads.value < 3 or op.decay is not None, "takes its heads from the decay, but has none")


def _verify_outputs(op: Any) -> bool:
    outputs = op.operation.attributes["outputs"]
    names = [n.value if isinstance(n, ir.StringAttr) else str(n) for n in outputs]
    ordered = names == [n for n in OUTPUTS if n in names]
    if not check(op, ordered, f"takes `outputs` among {', '.join(OUTPUTS)}, in this order, got {', '.join(names)}"):
        return False
    results = {name: getattr(op, name) for name in OUTPUTS if getattr(op, name) is not None}
    if not check(op, list(results) == names, f"makes o and its `outputs` ({', '.join(names)}), got ({', '.join(['o', *results])})"):
        return False
    if not check(op, ("products" in names) == (op.factor is not None), "makes products where it has a factor, and only there"):
        return False
    if not check(
        op, "own" not in names or ("products" in names and _is_plain(op)), "makes own beside products of decays of heads, not `crossing`"
    ):
        return False
    interval = op.operation.attributes["interval"] if "interval" in op.operation.attributes else None
    positive = interval is None or (isinstance(interval, ir.IntegerAttr) and interval.value > 0)
    by_key = "crossing" in op.operation.attributes and op.channels.value == "key"
    if not check(op, not by_key, "has no `crossing` products where key channels have decays"):
        return False
    if not check(op, ("states" in names) == (interval is not None) and positive, "has a positive `interval` where it makes states"):
        return False
    return all(_verify_output(op, name, result.type) for name, result in results.items())


def _verify_output(op: Any, name: str, type_: ir.Type) -> bool:
    _, columns = state_shape(op.operation)
    rank = 3 if name == "own" or (name == "products" and op.channels.value == "none") else 4
    width = op.v.type.shape[3] if name == "products" else columns
    fits = is_tensor(type_, rank) and (rank == 3 or type_.shape[3] == width)
    if name != "states":
        fits = fits and is_score_type(type_.element_type)
    return check(op, fits, f"makes {name} of rank {rank}{'' if rank == 3 else f' with {width} columns'}, got {type_}")


def state_shape(op: ir.Operation) -> tuple[int, int]:
    """Rows and columns of the state of an `attn.linear_attention` or `attn.chunk`: (K, V), or (V, K) where it is transposed."""
    k, v = (ir.RankedTensorType(op.operands[i].type).shape[3] for i in (1, 2))
    return (k, v) if ir.StringAttr(op.attributes["state"]).value == "kv" else (v, k)


def _verify_segment(op: Any) -> bool:
    attributes = op.operation.attributes
    if "segment" not in attributes:
        return True
    segment = attributes["segment"]
    positive = isinstance(segment, ir.IntegerAttr) and segment.value > 0
    if not check(op, positive, f"has segments of at least one position, got {segment}"):
        return False
    if not check(op, op.offsets is None, "is cut by offsets or into segments, not both"):
        return False
    interval = interval_of(op.operation) or 1
    return check(
        op, segment.value % interval == 0, f"makes states every {interval} positions, which do not divide segments of {segment.value}"
    )


def segment_of(op: ir.Operation) -> int | None:
    """The positions of a segment of an `attn.linear_attention` or `attn.chunk`; None where it has none."""
    return ir.IntegerAttr(op.attributes["segment"]).value if "segment" in op.attributes else None


def interval_of(op: ir.Operation) -> int | None:
    """The positions between the states that an `attn.linear_attention` or `attn.chunk` makes; None where it makes none."""
    return ir.IntegerAttr(op.attributes["interval"]).value if "interval" in op.attributes else None


def with_all_heads(op: ir.Operation) -> ir.Value:
    """The operand of an `attn.linear_attention` or `attn.chunk` that has as many heads as o."""
    view = op.opview
    return (view.q, view.k, view.v, view.decay)[view.heads.value]


def is_exact(op: ir.Operation) -> bool:
    """Whether states of an `attn.linear_attention` or `attn.chunk` keep what rounding would take: products need it, or it is asked for."""
    return op.opview.factor is not None or "exact" in op.attributes


def _verify_linear(op: Any) -> bool:
    return _verify_tensors(op) and _verify_choices(op) and _verify_optional(op) and _verify_outputs(op) and _verify_segment(op)


def _is_plain(op: Any) -> bool:
    """Whether decays are those of heads, and products not `crossing`."""
    return op.channels.value == "none" and "crossing" not in op.operation.attributes


def _verify_behind(op: Any) -> bool:
    """Checks where `attn.result` and `attn.skip` may stand."""
    there, message = {piece.name for piece in pieces_in(op.operation)}, "where decays are those of heads, and products not `crossing`"
    if not check(op, _is_plain(op) or "attn.result" not in there, f"has an 'attn.result' {message}"):
        return False
    alone = op.channels.value == "none" and op.factor is None
    return check(op, alone or "attn.skip" not in there, "has an 'attn.skip' where decays are those of heads, and there is no factor")


class LinearAttentionOp(Attn.Operation, name="linear_attention", traits=[ir.NoTerminatorTrait, ext.Pure]):
    """Linear attention: o_t = sum over s <= t of exp(g_{s+1} + ... + g_t) (q_t . k_s) v_s, and exp(g_1 + ... + g_t) q_t . initial_state.

    `q` is [B, Hq, T, K], `k` is [B, Hk, T, K], `v` is [B, Hv, T, V], `decay` (the log decay g; absent: 0) is [B, Hg, T], or [B, Hg, T, K]
    or [B, Hg, T, V] where every key or value channel has its own: `channels` is "none", "key" or "value". o is [B, H, T, V], where H is
    the number of heads of operand number `heads` (0 q, 1 k, 2 v, 3 decay); the other head counts divide it: head h reads head h // (H /
    Hq) of q. The body holds pieces, each at most once, any order: `attn.query`, `attn.key`, `attn.value` and `attn.decay`, elementwise on
    the inputs (in the dtype of scores), and `attn.result`, on o behind these sums; an absent piece is the identity. Behind that o_t gets
    `attn.skip` times v_t, with v as it comes; absent: nothing.

    `direction` "backward" sums over s >= t with exp(g_{t+1} + ... + g_s) instead, and starts from the far end. The state after position t
    is S_t = sum over s <= t (s >= t) of decay times k_s v_s^T, [K, V]. `initial_state` is [B, H, K, V], the state before the first
    position in that direction; backward it is that after the last position: o_t gets exp(g_{t+1} + ... + g_T) q_t . initial_state. With
    `state` = "vk", all states are transposed, [V, K]; channels are rows of the state: channels "key" need "kv", "value" "vk".

    `outputs` names the further results that are there, in this order: "final_state", [B, H, K, V], the state at the end: forward S_T,
    backward sum over s of exp(g_1 + ... + g_s) k_s v_s^T, and exp(g_1 + ... + g_T) initial_state; "products" (with `factor` x, [B, Hx,
    T, V]), the sum over d of o[t, d] x[t, d], [B, H, T], before o is rounded and without the term s = t, or elementwise o x, [B, H, T,
    V], where decays have channels; "states", [B, H, N K, V], N = ceil(T / interval), in rows n K to (n + 1) K the state at the boundary
    before position n interval: forward S of the positions up to it, backward that of those after it, both as seen from that boundary;
    "own" (beside products, without channels), [B, H, T], the term that products leave out: the sum over d of (q_t . k_t) v[t, d] x[t, d].
    Products and own are those of o before `attn.result`.

    The unit attribute `crossing` changes products and states to those of which `attn.decay_gradient` adds up how much passes from before
    a position to it or beyond, and takes no differences. A term of o_t x_t passes from its s to its t (backward from t to s). Products
    of position t are, forward, the sums of all terms that pass into positions from t to the end of the interval, from before t; backward
    of all terms that pass from positions of the interval before t to beyond its end. Sums of terms within the interval may be moved from
    one of two such sweeps to the other, since only their sum is used. States are seen from the beginning of the interval: forward those
    of the positions before it, backward those of the positions after it.

    With `offsets`, [sequences + 1], B is 1 and positions offsets[n] to offsets[n + 1] are sequence n: each starts from its own initial
    state, [sequences, H, K, V]. States of sequence n then begin at row (offsets[n] // interval + n) K of [1, H, (T // interval +
    sequences) K, V]; rows that this leaves out hold anything.

    With the attribute `segment` = L, a multiple of `interval`, and no offsets, positions i L to (i + 1) L of batch entry b are segment i.
    It starts from its own initial state and makes its own final state, both at b N + i of [B N, H, K, V], N = ceil(T / L): what
    `attn.state_scan` takes and makes.

    The unit attribute `exact` asks for states without the rounding of 16-bit factors, as sweeps with products have them.
    """

    q: ext.Operand[Any]
    k: ext.Operand[Any]
    v: ext.Operand[Any]
    decay: ext.Operand[Any] | None
    initial_state: ext.Operand[Any] | None
    factor: ext.Operand[Any] | None
    offsets: ext.Operand[Any] | None
    heads: ir.IntegerAttr
    direction: ir.StringAttr
    channels: ir.StringAttr
    state: ir.StringAttr
    outputs: ir.ArrayAttr
    o: ext.Result[Any]
    final_state: ext.Result[Any] | None
    products: ext.Result[Any] | None
    states: ext.Result[Any] | None
    own: ext.Result[Any] | None
    body: ext.Region

    def verify_invariants(self) -> bool:
        return _verify_linear(self)

    def verify_region_invariants(self) -> bool:
        return verify_pieces(self, _MODS, frozenset()) and _verify_behind(self)


class ChunkOp(Attn.Operation, name="chunk", traits=[ir.NoTerminatorTrait, ext.Pure]):
    """Linear attention in chunked form: chunks of `chunk` positions one after the other, carrying the state S.

    Operands, results, attributes and the pieces for mods are those of `attn.linear_attention`. What `attn-chunk-rewrite` derives of the
    recurrence are four more pieces, scalar functions of log decays summed up within a chunk (`prefix`: from its first position up to and
    with one position; `total`: the whole chunk; per channel where decays have channels):

        o_t = leave(prefix_t, total) q_t . S  +  sum over present s of weight(prefix_t, prefix_s) (q_t . k_s) v_s
        S  <- carry(total) S  +  sum over s of enter(prefix_s, total) k_s v_s^T

    where s is present at t for s <= t (forward; chunks first to last) or s >= t (backward; chunks last to first). In the last chunk of a
    sequence, positions past its end are absent, and add nothing to prefix and total.
    """

    q: ext.Operand[Any]
    k: ext.Operand[Any]
    v: ext.Operand[Any]
    decay: ext.Operand[Any] | None
    initial_state: ext.Operand[Any] | None
    factor: ext.Operand[Any] | None
    offsets: ext.Operand[Any] | None
    heads: ir.IntegerAttr
    direction: ir.StringAttr
    channels: ir.StringAttr
    state: ir.StringAttr
    outputs: ir.ArrayAttr
    chunk: ir.IntegerAttr
    o: ext.Result[Any]
    final_state: ext.Result[Any] | None
    products: ext.Result[Any] | None
    states: ext.Result[Any] | None
    own: ext.Result[Any] | None
    body: ext.Region

    def verify_invariants(self) -> bool:
        return _verify_linear(self) and check(self, self.chunk.value > 0, f"has chunks of at least one position, got {self.chunk.value}")

    def verify_region_invariants(self) -> bool:
        if not (verify_pieces(self, _MODS | _FACTORS, _FACTORS) and _verify_behind(self)):
            return False
        interval = interval_of(self.operation) or self.chunk.value
        if not check(self, interval % self.chunk.value == 0, f"makes states at multiples of {self.chunk.value} positions, got {interval}"):
            return False
        alone = "crossing" not in self.operation.attributes or interval == self.chunk.value
        if not check(self, alone, f"has chunks of the interval where products are `crossing`, got {self.chunk.value} and {interval}"):
            return False
        segment = segment_of(self.operation) or self.chunk.value
        return check(self, segment % self.chunk.value == 0, f"has segments of whole chunks of {self.chunk.value}, got {segment}")
