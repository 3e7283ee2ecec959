"""Cuts the sequences of linear attention into segments that are swept at the same time."""

from collections.abc import Sequence
from dataclasses import dataclass

from attn_mlir.dialects.attn import build
from attn_mlir.dialects.attn.linear_erase import eraser, is_delta
from attn_mlir.dialects.attn.linear_gradients import interval_of
from attn_mlir.dialects.attn.linear_recurrence import state_shape, with_all_heads
from attn_mlir.dialects.numbers import i64
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.chunk_rewrite import score_type
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.segments import derive_delta_segments, derive_segments
from attn_mlir.passes.regions import block_of, clone_as, clone_op, find_all, piece

_OPERANDS = ("q", "k", "v", "decay", "initial_state", "factor", "offsets")
_SWAPPED = {"attn.key": "attn.value", "attn.value": "attn.key"}


@dataclass(frozen=True)
class SplitSequences(Pass):
    """Replaces each `attn.linear_attention` without offsets by chunk scans of segments of `segment` positions, which run in parallel.

    A first scan makes what every segment adds to the state, `attn.decay_sum` the decay over every segment, `attn.state_scan` the states
    before the segments; from these a second scan makes the results. What erases multiplies the state by a matrix: further scans, from
    the `identity` and without values, make its columns, and `attn.transition_scan` the states. `segment` 0 leaves everything as it is.
    """

    name = "attn-split-sequences"
    segment: int = 0

    def run(self, module: ir.Operation) -> bool:
        if self.segment < 0:
            module.location.emit_error(f"{self.name}: segment must not be negative, got {self.segment}")
            return False
        if self.segment == 0:
            return True
        for function in find_all(module, "func.func"):
            found = [op for op in find_all(function, "attn.linear_attention") if _is_whole(op)]
            for op in found:
                if not _is_confirmed(op):
                    return False
                interval = interval_of(op)
                if interval is not None and self.segment % interval:
                    op.location.emit_error(f"{self.name}: states every {interval} positions do not divide segments of {self.segment}")
                    return False
            compensated = {_text(op, "direction") for op in found if op.opview.factor is not None}
            for op in found:
                _split(op, self.segment, _text(op, "direction") in compensated)
        return True


def _is_confirmed(op: ir.Operation) -> bool:
    """Whether segments give what the recurrence gives, on numbers; reports an error where they do not."""
    try:
        derive = derive_delta_segments if is_delta(op) else derive_segments
        derive(_text(op, "direction") == "forward")
    except DerivationError as error:
        op.location.emit_error(f"the recurrence cannot be cut into segments: {error}")
        return False
    return True


def _is_whole(op: ir.Operation) -> bool:
    return op.opview.offsets is None and "segment" not in op.attributes


def _text(op: ir.Operation, name: str) -> str:
    return ir.StringAttr(op.attributes[name]).value


def _split(op: ir.Operation, segment: int, compensated: bool) -> None:
    """Replaces one scan. `compensated`: another scan of its direction makes products, which the states must be precise enough for."""
    view = op.opview
    rows, columns = state_shape(op)
    dynamic, score = ir.ShapedType.get_dynamic_size(), score_type(op)
    like = with_all_heads(op)
    with op.location, ir.InsertionPoint(op):
        states = ir.RankedTensorType.get([dynamic, dynamic, rows, columns], score)
        added = _summary(op, states, segment, compensated)
        final = states if view.final_state is None else view.final_state.type
        direction, initial = _text(op, "direction"), view.initial_state
        if eraser(op) is None:
            totals = _totals(op, like, segment, score)
            before, last = build.state_scan([added, like, totals, initial], segment, rows, direction, final)
        else:
            transitions = [_summary(op, states, segment, compensated, first) for first in range(0, rows, columns)]
            before, last = build.transition_scan([added, like, initial], transitions, segment, rows, direction, final)
        swept = _scan(op, before, segment)
    made = iter(swept.results)
    for name, result in zip(("o", *[name.value for name in view.outputs]), list(op.results), strict=True):
        result.replace_all_uses_with(last if name == "final_state" else next(made))
    op.erase()


def _summary(op: ir.Operation, states: ir.Type, segment: int, compensated: bool, identity: int | None = None) -> ir.Value:
    """What each segment adds to the state: its final state from a zero state. Equal ones have equal forms, whatever they are read for.

    With `identity`, the first of so many columns of the matrix by which a segment multiplies the state: from the identity, without values.
    """
    view, channels, state = op.opview, _text(op, "channels"), _text(op, "state")
    q, k, v, heads = view.q, view.k, view.v, view.heads.value
    swapped = state == "vk" and heads != 0
    if swapped:  # k v^T is the transposed of v k^T
        k, v, heads = v, k, {1: 2, 2: 1}.get(heads, heads)
        channels, state = {"none": "none", "value": "key"}[channels], "kv"
    if heads != 0:
        q = k
    o = ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()] * 3 + [ir.RankedTensorType(v.type).shape[3]], view.k.type.element_type)
    direction = _text(op, "direction")
    made, block = build.linear_attention([q, k, v, view.decay], [o, states], ["final_state"], heads, direction, channels, state)
    made.attributes["segment"] = i64(segment)
    if compensated:
        made.attributes["compensated"] = ir.UnitAttr.get()
    if identity is not None:
        made.attributes["identity"] = i64(identity)
    with ir.InsertionPoint(block):
        _copy_mods(op, swapped, ("attn.query", "attn.result", "attn.skip", *["attn.value"] * (identity is not None)))
        if identity is not None:
            score, index = ir.RankedTensorType(states).element_type, ir.IndexType.get()
            arguments = [("x", score), *((name, index) for name in ("b", "h", "t", "d"))]
            build.piece("value", arguments, lambda *_: [arith.constant(score, 0.0)])
    return made.results[1]


def _copy_mods(op: ir.Operation, swapped: bool, without: Sequence[str]) -> None:
    """Clones the pieces of `op`, where `swapped` with keys in the places of values."""
    for mod in [each.operation for each in block_of(op).operations]:
        if mod.name in without:
            continue
        if swapped and mod.name == "attn.write":
            build.write(mod.operands[1], mod.operands[0])
        elif swapped and mod.name in _SWAPPED:
            clone_as(_SWAPPED[mod.name], mod, {})
        else:
            clone_op(mod, {})


def _totals(op: ir.Operation, like: ir.Value, segment: int, score: ir.Type) -> ir.Value | None:
    """The log decays of the segments; None where there are no decays."""
    view, mod = op.opview, piece(op, "attn.decay")
    if view.decay is None and mod is None:
        return None
    width = {"none": [], "key": [view.k.type.shape[3]], "value": [view.v.type.shape[3]]}[_text(op, "channels")]
    type_ = ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()] * 3 + width, score)
    made, block = build.decay_sum(like, view.decay, segment, type_)
    with ir.InsertionPoint(block):
        if mod is not None:
            clone_op(mod, {})
    return made.results[0]


def _scan(op: ir.Operation, before: ir.Value, segment: int) -> ir.Operation:
    """The scan over all segments from the states `before` them, without the final states."""
    view = op.opview
    names = [name.value for name in view.outputs if name.value != "final_state"]
    results = [getattr(view, name).type for name in ("o", *names)]
    operands = [before if name == "initial_state" else getattr(view, name) for name in _OPERANDS]
    interval = interval_of(op)
    direction, channels, state = (_text(op, name) for name in ("direction", "channels", "state"))
    made, block = build.linear_attention(operands, results, names, view.heads.value, direction, channels, state, interval=interval)
    made.attributes["segment"] = i64(segment)
    for name in op.attributes:
        if name not in made.attributes:
            made.attributes[name] = op.attributes[name]
    with ir.InsertionPoint(block):
        for mod in [each.operation for each in block_of(op).operations]:
            clone_op(mod, {})
    return made
