"""The ops that join segments of a linear attention: total decays, and the states between segments."""

from collections.abc import Sequence

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.reference.errors import EvaluationError
from attn_mlir.reference.interpreter import EvaluationFrame
from attn_mlir.reference.linear import modified
from attn_mlir.reference.scalar import Array


def decay_sum(op: ir.Operation, frame: EvaluationFrame, args: Sequence[Array]) -> Array:
    """The sums of the log decays over segments, of an `attn.decay_sum`."""
    like, *given = args
    channels = list(ir.RankedTensorType(op.results[0].type).shape[3:])
    batch, heads, length = like.shape[:3]
    decay = given[0] if given else np.zeros((batch, heads, length, *channels))
    if (decay.shape[0], decay.shape[2]) != (batch, length) or decay.shape[1] == 0 or heads % decay.shape[1]:
        raise EvaluationError(f"decays {decay.shape} do not fit {batch} batch entries of {heads} heads and {length} positions", op.location)
    decay = np.repeat(decay, heads // decay.shape[1], axis=1)
    g = modified(op, frame, "attn.decay", decay if channels else decay[..., None])
    segment = ir.IntegerAttr(op.attributes["segment"]).value
    parts = [g[:, :, begin : begin + segment].sum(axis=2) for begin in range(0, length, segment)]
    sums = np.stack(parts, axis=2) if parts else np.zeros((batch, heads, 0, g.shape[3]))
    return sums if channels else sums[..., 0]


def state_scan(op: ir.Operation, args: Sequence[Array]) -> list[Array]:
    """The states before the segments, and the final states, of an `attn.state_scan`."""
    present = [size > 0 for size in ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])]
    given = dict(
        zip([name for name, there in zip(("states", "like", "totals", "initial"), present, strict=True) if there], args, strict=True)
    )
    states, (batch, heads, length) = given["states"], given["like"].shape[:3]
    count = -(-length // ir.IntegerAttr(op.attributes["segment"]).value)
    rows = ir.IntegerAttr(op.attributes["rows"]).value
    if states.shape[:3] != (batch * count, heads, rows):
        raise EvaluationError(
            f"states {states.shape} are not those of {batch} times {count} segments, {heads} heads, {rows} rows", op.location
        )
    parts = states.reshape(batch, count, *states.shape[1:])
    totals = given.get("totals", np.zeros((batch, heads, count)))
    factors = np.exp(totals if totals.ndim == 4 else totals[..., None])[..., None]
    state = given.get("initial", np.zeros((batch, *states.shape[1:])))
    before = np.zeros_like(parts)
    forward = ir.StringAttr(op.attributes["direction"]).value == "forward"
    for i in range(count) if forward else reversed(range(count)):
        before[:, i] = state
        state = factors[:, :, i] * state + parts[:, i]
    return [before.reshape(states.shape), state]
