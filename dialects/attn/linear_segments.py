"""Sequences of different lengths and segments of one: how a linear attention is cut, and total decays and states of segments."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.attn.linear_gradients import ForGradients, interval_of
from attn_mlir.dialects.attn.pieces import verify_pieces
from attn_mlir.dialects.variadic import single_variadic
from attn_mlir.dialects.verify import check, is_score_type, is_tensor
from attn_mlir.mlir import ext, ir

_DIRECTIONS = ("forward", "backward")


class Cut(ForGradients):
    """**Several sequences, or segments of one.** With `offsets`, B is 1 and positions offsets[n] to offsets[n + 1] are sequence n: each
    starts from its own initial state, [sequences, H, K, V]. Its states begin at row (offsets[n] // interval + n) K of [1, H, (T //
    interval + sequences) K, V]; rows that this leaves out hold anything.

    With `segment` = L, positions i L to (i + 1) L of batch entry b are segment i. It starts from its own initial state and makes its own
    final state, both at b N + i of [B N, H, K, V], N = ceil(T / L): what `attn.state_scan` takes and makes.

    With `starts` these are states as another scan with that `interval` and `entering` makes them, [B, H, N K, V] for N intervals.

    With `identity` = c every state starts as columns c to c + V of the K x K identity, those beyond it 0. From there, without values, a
    segment's final state is columns of the matrix that takes the state before it to the one after it: what `attn.transition_scan` takes.

    Fields:
        offsets: integers, [sequences + 1]
        segment: positions, a multiple of `interval`; not with offsets
        starts: a unit; with segment and initial_state
        identity: the first column; without initial_state, where states are "kv"
    """

    offsets: ext.Operand[Any] | None


def verify_cut(op: Any) -> bool:
    """Checks offsets, segments and where states start."""
    if not _verify_identity(op):
        return False
    if op.offsets is not None:
        type_ = op.offsets.type
        fits = is_tensor(type_, 1) and isinstance(type_.element_type, ir.IntegerType)
        if not check(op, fits, f"takes offsets as a tensor of integers [sequences + 1], got {type_}"):
            return False
    attributes = op.operation.attributes
    given = "starts" not in attributes or ("segment" in attributes and op.initial_state is not None)
    if not check(op, given, "has `starts` of its segments as its initial_state"):
        return False
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


def _verify_identity(op: Any) -> bool:
    first = op.operation.attributes["identity"] if "identity" in op.operation.attributes else None
    if first is None:
        return True
    fits = isinstance(first, ir.IntegerAttr) and 0 <= first.value < op.k.type.shape[3]
    if not check(op, fits, f"starts with a column of the {op.k.type.shape[3]} x {op.k.type.shape[3]} `identity`, got {first}"):
        return False
    plain = op.initial_state is None and op.state.value == "kv"
    return check(op, plain, "starts from columns of the `identity` without initial_state, where states are 'kv'")


def identity_of(op: ir.Operation) -> int | None:
    """The first column of the identity from which an `attn.linear_attention` or `attn.chunk` starts; None where it does not."""
    return ir.IntegerAttr(op.attributes["identity"]).value if "identity" in op.attributes else None


def segment_of(op: ir.Operation) -> int | None:
    """The positions of a segment of an `attn.linear_attention` or `attn.chunk`; None where it has none."""
    return ir.IntegerAttr(op.attributes["segment"]).value if "segment" in op.attributes else None


def _verify_like(op: Any) -> bool:
    if not check(op, is_tensor(op.like.type, 3, 4), f"counts positions of [batch, head, position, ...], got {op.like.type}"):
        return False
    return check(op, op.segment.value > 0, f"has segments of at least one position, got {op.segment.value}")


def _verify_scan(op: Any) -> bool:
    """Checks the states of a scan over segments, and its direction."""
    states, rows = op.states.type, op.rows.value
    fits = is_tensor(states, 4) and is_score_type(states.element_type) and not states.is_dynamic_dim(3)
    if not check(op, fits, f"takes states of f32 or f64 as [batch and segment, head, row, column], got {states}"):
        return False
    every = [op.before.type, op.final_state.type, *([] if op.initial is None else [op.initial.type])]
    same = all(is_tensor(t, 4) and t.shape[3] == states.shape[3] and t.element_type == states.element_type for t in every)
    if not check(op, same, f"takes an initial state and makes states like {states}, got {', '.join(map(str, every))}"):
        return False
    if not check(op, rows > 0, f"has states of `rows` rows, got {rows}"):
        return False
    direction = op.direction.value
    return check(op, direction in _DIRECTIONS, f"takes `direction` as one of {', '.join(_DIRECTIONS)}, got '{direction}'")


@single_variadic
class DecaySumOp(Attn.Operation, name="decay_sum", traits=[ir.NoTerminatorTrait, ext.Pure]):
    """[B, H, N]: the sums of the log decays over segments of `segment` positions; [B, H, N, K] where channels have decays of their own.

    B, H and the positions T are those of `like`, [B, H, T, ...]; N = ceil(T / segment). `decay` (absent: 0) is [B, Hg, T], or
    [B, Hg, T, K], where Hg divides H: head h reads head h // (H / Hg). The body may hold one piece, `attn.decay`, as in
    `attn.linear_attention`.
    """

    like: ext.Operand[Any]
    decay: Sequence[ext.Operand[Any]]
    segment: ir.IntegerAttr
    result: ext.Result[Any]
    body: ext.Region

    def verify_invariants(self) -> bool:
        if not _verify_like(self):
            return False
        result = self.result.type
        fits = is_tensor(result, 3, 4) and is_score_type(result.element_type) and (result.rank == 3 or not result.is_dynamic_dim(3))
        if not check(
            self, fits, f"makes [batch, head, segment] of f32 or f64, or one for each of a fixed number of channels, got {result}"
        ):
            return False
        if not check(self, len(self.decay) <= 1, "takes at most one tensor of decays"):
            return False
        for decay in self.decay:
            same = is_tensor(decay.type, result.rank) and list(decay.type.shape[3:]) == list(result.shape[3:])
            if not check(self, same, f"takes decays with the rank and the channels of its result {result}, got {decay.type}"):
                return False
        return True

    def verify_region_invariants(self) -> bool:
        return verify_pieces(self, frozenset({"attn.decay"}), frozenset())


class StateScanOp(Attn.Operation, name="state_scan", traits=[ext.Pure]):
    """The state before every segment of a linear attention, of what the segments add: S_0 = `initial`, S_(i+1) = exp(G_i) S_i + F_i.

    `states` is [B N, H, R, C], R = `rows`: F of segment i of batch entry b, the final state of a scan over this segment from a zero
    state, at b N + i. `totals` (absent: 0) is [B, H, N], the sum G of a segment's log decays, or [B, H, N, R], one for each row of the
    state. `initial` (absent: 0) is [B, H, R, C]. B and the positions T are those of `like`, [B, H, T, ...]; N = ceil(T / segment).
    `before` holds S_i, placed as F_i is, `final_state` S_N, [B, H, R, C]. `direction` "backward" begins at the last segment: S_N =
    `initial`, S_i = exp(G_i) S_(i+1) + F_i; then `before` holds S_(i+1), and `final_state` is S_0.
    """

    states: ext.Operand[Any]
    like: ext.Operand[Any]
    totals: ext.Operand[Any] | None
    initial: ext.Operand[Any] | None
    segment: ir.IntegerAttr
    rows: ir.IntegerAttr
    direction: ir.StringAttr
    before: ext.Result[Any]
    final_state: ext.Result[Any]

    def verify_invariants(self) -> bool:
        if not (_verify_like(self) and _verify_scan(self)):
            return False
        if self.totals is None:
            return True
        element, rows, totals = self.states.type.element_type, self.rows.value, self.totals.type
        fits = is_tensor(totals, 3, 4) and totals.element_type == element and (totals.rank == 3 or totals.shape[3] == rows)
        return check(
            self, fits, f"takes totals as [batch, head, segment], or one for each of {rows} rows, in {element}, got {totals}"
        )  # fmt: skip


class TransitionScanOp(Attn.Operation, name="transition_scan", traits=[ext.Pure]):
    """The state before every segment of a delta rule, whose segments multiply states by matrices: S_0 = `initial`, S_(i+1) = M_i S_i + F_i.

    `states` are F and `initial` is S_0 as for `attn.state_scan`, with the same places for `before` and `final_state`. `transitions` are the
    columns of M, [B N, H, K, K], in tensors of as many columns as `states` has, [B N, H, K, V] for 0 to V, V to 2 V, ...: final states of
    passes from the `identity`. `direction` "backward" begins at the last segment: S_N = `initial`, S_i = M_i S_(i+1) + F_i.
    """

    states: ext.Operand[Any]
    like: ext.Operand[Any]
    initial: ext.Operand[Any] | None
    transitions: Sequence[ext.Operand[Any]]
    segment: ir.IntegerAttr
    rows: ir.IntegerAttr
    direction: ir.StringAttr
    before: ext.Result[Any]
    final_state: ext.Result[Any]

    def verify_invariants(self) -> bool:
        if not (_verify_like(self) and _verify_scan(self)):
            return False
        columns, rows = self.states.type.shape[3], self.rows.value
        types, wanted = [value.type for value in self.transitions], -(-rows // columns)
        same = len(types) == wanted and all(is_tensor(t, 4) and t == self.states.type for t in types)
        message = f"takes the columns of {rows} x {rows} transitions in {wanted} tensors like {self.states.type}, got"
        return check(self, same, f"{message} {', '.join(map(str, types)) or 'none'}")
