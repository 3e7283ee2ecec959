"""Explains the delta rule: what the state loses, the system of a chunk, and the scans of the backward pass."""

from collections.abc import Iterator

from attn_mlir.dialects.attn.linear_erase import eraser, output_of, reads_strictly, removes_another, writer
from attn_mlir.mlir import ir
from attn_mlir.passes.differentiation.delta_backward import refused_delta
from attn_mlir.passes.differentiation.delta_check import certified_delta
from attn_mlir.passes.differentiation.delta_plan import delta_plan
from attn_mlir.passes.differentiation.linear_model import LinearPrimal


def delta_recurrence(op: ir.Operation, decayed: str, forward: bool) -> Iterator[str]:
    """The steps of one position; `decayed` is the state after its decay."""
    start, end = (f"S = {decayed}; ", "") if forward else ("", f"; then S = {decayed}")
    erase, output, removed = eraser(op), output_of(op), removes_another(op)
    at = {"decayed": "before the update", "written": "between the writers", "values": "as what is written"}.get(output, "after it")
    if erase is not None and not removed:
        yield f"  {start}x_t = e_t S; S = S + k_t (v_t - x_t)^T; o_t = q_t S, read {at}{end}"
    elif erase is not None:
        reads = ir.StringAttr(erase.attributes["reads"]).value
        first = "x_t = e_t S; S = S + k_t v_t^T" if reads == "decayed" else "S = S + k_t v_t^T; x_t = e_t S"
        yield f"  {start}{first} - r_t x_t^T; o_t = q_t S, read {at}{end}"
    elif writer(op) is not None:
        yield f"  {start}S = S + k_t v_t^T + r_t z_t^T; o_t = q_t S, read {at}{end}"
    else:
        yield f"  {start}S = S + k_t v_t^T; o_t = q_t S, read {at}{end}"


def delta_system(op: ir.Operation, forward: bool) -> Iterator[str]:
    """What of a chunk is not there without erasing."""
    erase, side = eraser(op), "<" if forward else ">"
    if erase is not None and not removes_another(op):
        yield f"  where v is U, of (I + A) U = V - output_decay e_t S, with A = decay_mask (e_t . k_s) for s {side} t"
    elif erase is not None:
        yield "  and a second writer r with values -X, of (I + A) X = output_decay e_t S + B V"
        yield f"  with A = decay_mask (e_t . r_s) for s {side} t, B alike of k"
    elif writer(op) is not None:
        yield "  and a second writer r with values z"
    if reads_strictly(op, False) and output_of(op) != "values":
        yield f"  o_t reads of s {side} t only"


def delta_backward(op: ir.Operation) -> Iterator[str]:
    """The scans that make gradients, where they are derived."""
    function = op.parent
    if eraser(op) is None or function is None or len(ir.ArrayAttr(op.attributes["outputs"])) > 1:
        return
    if refused_delta(LinearPrimal(function, op)) is not None:
        return
    output, channels = output_of(op), ir.StringAttr(op.attributes["channels"]).value
    removed = removes_another(op)
    yield ""
    yield "backward: with u what is written, dx the gradient of what e reads"
    for role, made in delta_plan(removed, output).items():
        way = "the same way" if made.same_direction else "the other way"
        also = f"; {made.erase[0]} erases, {made.erase[1]} is removed" if made.erase is not None else ""
        also += f"; {made.second[0]} writes {made.second[1]}, too" if made.second is not None else ""
        yield f"  d{role}: {way} with {', '.join(made.operands)} in place of q, k, v{also}"
    if not removed:
        yield "  dv = -dx"
    certificate = certified_delta(removed, output, channels)
    yield (
        f"  confirmed in float64 by differences of the recurrence: {certificate.points} gradients, largest relative error "
        f"{certificate.error:.1e}"
    )
