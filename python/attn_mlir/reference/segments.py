"""The ops that join segments of a linear attention: total decays, and the states between segments."""

from collections.abc import Callable, Mapping, Sequence

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
    given = _given(op, ("states", "like", "totals", "initial"), args)
    parts = _parts(op, given)
    batch, count, heads = parts.shape[:3]
    totals = given.get("totals", np.zeros((batch, heads, count)))
    factors = np.exp(totals if totals.ndim == 4 else totals[..., None])[..., None]
    return _scan(op, given, parts, lambda i, state: factors[:, :, i] * state)


def transition_scan(op: ir.Operation, args: Sequence[Array]) -> list[Array]:
    """The states before the segments, and the final states, of an `attn.transition_scan`."""
    sizes = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])
    own = len(args) - sizes[3]
    given = _given(op, ("states", "like", "initial"), args[:own])
    parts = _parts(op, given)
    if any(x.shape != given["states"].shape for x in args[own:]):
        raise EvaluationError(f"transitions {[x.shape for x in args[own:]]} are not like states {given['states'].shape}", op.location)
    matrices = np.concatenate([x.reshape(parts.shape) for x in args[own:]], axis=4)[..., : parts.shape[3]]
    return _scan(op, given, parts, lambda i, state: matrices[:, i] @ state)


def _given(op: ir.Operation, names: Sequence[str], args: Sequence[Array]) -> dict[str, Array]:
    """Operands, those that are there, by their names."""
    sizes = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])
    return dict(zip([name for name, size in zip(names, sizes, strict=False) if size], args, strict=True))


def _parts(op: ir.Operation, given: Mapping[str, Array]) -> Array:
    """What the segments add to the states, [B, N, H, R, C]."""
    states, (batch, heads, length) = given["states"], given["like"].shape[:3]
    count = -(-length // ir.IntegerAttr(op.attributes["segment"]).value)
    rows = ir.IntegerAttr(op.attributes["rows"]).value
    if states.shape[:3] != (batch * count, heads, rows):
        raise EvaluationError(
            f"states {states.shape} are not those of {batch} times {count} segments, {heads} heads, {rows} rows", op.location
        )
    return states.reshape(batch, count, *states.shape[1:])


def _scan(op: ir.Operation, given: Mapping[str, Array], parts: Array, carry: Callable[[int, Array], Array]) -> list[Array]:
    """The states before the segments and after all; `carry` takes a segment and a state to that part of the one after it."""
    batch, count = parts.shape[:2]
    state = given.get("initial", np.zeros((batch, *parts.shape[2:])))
    before = np.zeros_like(parts)
    forward = ir.StringAttr(op.attributes["direction"]).value == "forward"
    for i in range(count) if forward else reversed(range(count)):
        before[:, i] = state
        state = carry(i, state) + parts[:, i]
    return [before.reshape(given["states"].shape), state]
