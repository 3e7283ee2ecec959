"""What gradients need of a linear attention beside its recurrence: products with a factor, states on the way, diagonal terms."""

from typing import Any

from attn_mlir.dialects.attn.linear_recurrence import Recurrence, state_shape
from attn_mlir.dialects.verify import check, is_score_type, is_tensor
from attn_mlir.mlir import ext, ir

OUTPUTS = ("final_state", "products", "states", "diagonal")


class ForGradients(Recurrence):
    """**For gradients**, which are linear attentions, too; nobody writes these: `attn-differentiate` does. Products and diagonal terms are
    those of o before it is rounded, and before `attn.result`.

    With `crossing`, products and states are those of which `attn.decay_gradient` adds up how much passes from before a position to it or
    beyond, and takes no differences. A term of o_t x_t passes from its s to its t (backward from t to s). Products of position t are,
    forward, the sums of all terms that pass into positions from t to the end of the interval, from before t; backward of all terms that
    pass from positions of the interval before t to beyond its end. Sums of terms within the interval may be moved from one of two such
    passes to the other, since only their sum is used. States are seen from the beginning of the interval: forward those of the positions
    before it, backward those of the positions after it.

    Fields:
        factor: x, [B, Hx, T, V]
        interval: the positions between the states
        crossing: a unit, see above
        products: the sum over d of o[t, d] x[t, d] without the term s = t, [B, H, T]; where decays have channels elementwise, [B, H, T, V]
        states: [B, H, N K, V], N = ceil(T / interval): rows n K to (n + 1) K are the state at the boundary before position n interval,
            forward of the positions up to it, backward of those after it, both as seen from that boundary
        diagonal: the diagonal term, which products leave out, where decays have no channels: the sum over d of (q_t . k_t) v[t, d] x[t, d],
            [B, H, T]
    """

    factor: ext.Operand[Any] | None
    products: ext.Result[Any] | None
    states: ext.Result[Any] | None
    diagonal: ext.Result[Any] | None


def verify_outputs(op: Any) -> bool:
    """Checks the factor, and that results are those which `outputs` names."""
    v = op.v.type.shape[3]
    if op.factor is not None:
        type_ = op.factor.type
        if not check(op, is_tensor(type_, 4) and type_.shape[3] == v, f"multiplies o by [batch, head, position, {v}], got {type_}"):
            return False
    outputs = op.operation.attributes["outputs"]
    names = [n.value if isinstance(n, ir.StringAttr) else str(n) for n in outputs]
    if not check(op, "own" not in names, "takes `outputs` that exist: 'own' is called 'diagonal' now"):
        return False
    ordered = names == [n for n in OUTPUTS if n in names]
    if not check(op, ordered, f"takes `outputs` among {', '.join(OUTPUTS)}, in this order, got {', '.join(names)}"):
        return False
    results = {name: getattr(op, name) for name in OUTPUTS if getattr(op, name) is not None}
    if not check(op, list(results) == names, f"makes o and its `outputs` ({', '.join(names)}), got ({', '.join(['o', *results])})"):
        return False
    if not check(op, ("products" in names) == (op.factor is not None), "makes products where it has a factor, and only there"):
        return False
    if not check(
        op,
        "diagonal" not in names or ("products" in names and is_plain(op)),
        "makes diagonal terms beside products of decays of heads, not `crossing`",
    ):
        return False
    interval = op.operation.attributes["interval"] if "interval" in op.operation.attributes else None
    entering = "entering" not in op.operation.attributes or ("states" in names and "crossing" not in op.operation.attributes)
    if not check(op, entering, "has states `entering` its intervals where it makes states, and not with `crossing`"):
        return False
    positive = interval is None or (isinstance(interval, ir.IntegerAttr) and interval.value > 0)
    by_key = "crossing" in op.operation.attributes and op.channels.value == "key"
    if not check(op, not by_key, "has no `crossing` products where key channels have decays"):
        return False
    if not check(op, ("states" in names) == (interval is not None) and positive, "has a positive `interval` where it makes states"):
        return False
    return all(_verify_output(op, name, result.type) for name, result in results.items())


def _verify_output(op: Any, name: str, type_: ir.Type) -> bool:
    _, columns = state_shape(op.operation)
    rank = 3 if name == "diagonal" or (name == "products" and op.channels.value == "none") else 4
    width = op.v.type.shape[3] if name == "products" else columns
    fits = is_tensor(type_, rank) and (rank == 3 or type_.shape[3] == width)
    if name != "states":
        fits = fits and is_score_type(type_.element_type)
    return check(op, fits, f"makes {name} of rank {rank}{'' if rank == 3 else f' with {width} columns'}, got {type_}")


def is_plain(op: Any) -> bool:
    """Whether decays are those of heads, and products not `crossing`."""
    return op.channels.value == "none" and "crossing" not in op.operation.attributes


def interval_of(op: ir.Operation) -> int | None:
    """The positions between the states that an `attn.linear_attention` or `attn.chunk` makes; None where it makes none."""
    return ir.IntegerAttr(op.attributes["interval"]).value if "interval" in op.attributes else None


def is_compensated(op: ir.Operation) -> bool:
    """Whether states of an `attn.linear_attention` or `attn.chunk` keep what rounding would take: products need it, or it is asked for."""
    return op.opview.factor is not None or "compensated" in op.attributes
