"""The recurrence of a linear attention: its tensors and choices, which `attn.linear_attention` and `attn.chunk` share."""

from typing import Any

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.verify import check, is_score_type, is_tensor
from attn_mlir.mlir import ext, ir

_CHOICES = {"direction": ("forward", "backward"), "channels": ("none", "key", "value"), "state": ("kv", "vk")}


class Recurrence(Attn.Operation):
    """**Operands, attributes and results.** H is the number of heads of o; the other head counts divide it: head h reads head
    h // (H / Hq) of q.

    Fields:
        q: [B, Hq, T, K]
        k: [B, Hk, T, K]
        v: [B, Hv, T, V]
        decay: the log decay g, [B, Hg, T], or by `channels` [B, Hg, T, K] or [B, Hg, T, V]; absent: 0
        initial_state: [B, H, K, V], the state before the first position; backward that after the last one; absent: 0
        heads: the number of the operand that has all H heads: 0 q, 1 k, 2 v, 3 decay
        direction: "forward", or "backward" from the last position to the first
        channels: "none"; "key" or "value" where every key or value channel has a decay of its own
        state: "kv", or "vk" where all states are transposed, [V, K]; channels are rows of the state: "key" needs "kv", "value" "vk"
        outputs: the names of the results after o that are there, in order
        compensated: a unit: states as hi/lo splits of 16-bit factors, without their rounding, as those of passes with a `factor`
        o: [B, H, T, V]
        final_state: [B, H, K, V], S_T; backward sum over s of exp(g_1 + ... + g_s) k_s v_s^T, and exp(g_1 + ... + g_T) initial_state
        body: the pieces
    """

    q: ext.Operand[Any]
    k: ext.Operand[Any]
    v: ext.Operand[Any]
    decay: ext.Operand[Any] | None
    initial_state: ext.Operand[Any] | None
    heads: ir.IntegerAttr
    direction: ir.StringAttr
    channels: ir.StringAttr
    state: ir.StringAttr
    outputs: ir.ArrayAttr
    o: ext.Result[Any]
    final_state: ext.Result[Any] | None
    body: ext.Region


def verify_recurrence(op: Any) -> bool:
    """Checks tensors and choices."""
    return _verify_tensors(op) and _verify_choices(op) and _verify_optional(op)


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
        return check(op, fits, f"takes initial_state as f32 [batch, head, {rows}, {columns}], got {type_}")
    return True


def _verify_choices(op: Any) -> bool:
    if not check(op, "exact" not in op.operation.attributes, "has no attribute `exact`: it is called `compensated` now"):
        return False
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


def state_shape(op: ir.Operation) -> tuple[int, int]:
    """Rows and columns of the state of an `attn.linear_attention` or `attn.chunk`: (K, V), or (V, K) where it is transposed."""
    k, v = (ir.RankedTensorType(op.operands[i].type).shape[3] for i in (1, 2))
    return (k, v) if ir.StringAttr(op.attributes["state"]).value == "kv" else (v, k)


def with_all_heads(op: ir.Operation) -> ir.Value:
    """The operand of an `attn.linear_attention` or `attn.chunk` that has as many heads as o."""
    view = op.opview
    return (view.q, view.k, view.v, view.decay)[view.heads.value]
