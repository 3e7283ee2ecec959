"""The numeric confirmation of the gradients of linear attention: scans against differences of the recurrence, in float64."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from attn_mlir.passes.derivation.evaluate import Array
from attn_mlir.passes.differentiation.errors import DifferentiationError
from attn_mlir.passes.differentiation.linear_model import GRADIENTS, SWAPPED, LinearScanPlan

LENGTH, INTERVAL = 7, 3
TOLERANCE = 1e-7
_STEP = 1e-3


@dataclass(frozen=True)
class LinearCertificate:
    """`points` gradients compared, and the largest relative error."""

    points: int
    error: float


@dataclass(frozen=True)
class LinearScan:
    """What one scan over q, k [T, K], v [T, V] and log decays gives; states are [K, V]."""

    o: Array
    final: Array
    boundaries: list[Array]
    """The states at the ends of intervals, in the order of positions."""


def scan(q: Array, k: Array, v: Array, g: Array, initial: Array, forward: bool, channels: str) -> LinearScan:
    """The recurrence; log decays [T, 1], or one for each column of k or v."""
    state, o = initial, np.zeros((LENGTH, v.shape[1]))
    at: dict[int, Array] = {}
    for t in range(LENGTH) if forward else reversed(range(LENGTH)):
        factor = np.exp(g[t])[None] if channels == "value" else np.exp(g[t])[:, None]
        if not forward:
            at[t + 1] = state
        state = (factor * state if forward else state) + np.outer(k[t], v[t])
        o[t] = q[t] @ state
        state = state if forward else factor * state
        if forward:
            at[t + 1] = state
    ends = [min(end, LENGTH) for end in range(INTERVAL, LENGTH + INTERVAL, INTERVAL)]
    return LinearScan(o, state, [at[end] for end in ends])


def derived(x: Mapping[str, Array], forward: bool, channels: str, plan: Mapping[str, LinearScanPlan] = GRADIENTS) -> dict[str, Array]:
    """The gradients that `plan` makes of q, k, v, g, the initial state, do and the gradient of the final state.

    "rows of q" is that of factors of q's rows, which are 1, [T, 1].
    """
    found: dict[str, Array] = {}
    products, ends = {}, {}
    for role, made in plan.items():
        a, b, c = (x[name] for name in made.operands)
        of_channels = SWAPPED[channels] if made.swapped else channels
        initial = x[made.initial].T if made.swapped else x[made.initial]
        scanned = scan(a, b, c, x["g"], initial, forward == made.same_direction, of_channels)
        found[role], products[role] = scanned.o, scanned.o * x[role]
        ends[role] = [state.T if made.swapped else state for state in scanned.boundaries]
        found |= {f"rows of {name}": products[role].sum(axis=1, keepdims=True) for name in made.rows}
        if role == "v":
            found["initial_state"] = scanned.final
    change = products["q"] - products["k"] if forward else products["k"] - products["q"]
    passed = [s * e for s, e in zip(ends["q"], ends["k"], strict=True)]
    each = channels == "key"
    gradient = np.zeros_like(x["g"])
    for n, begin in enumerate(range(0, LENGTH, INTERVAL)):
        part = change[begin : begin + INTERVAL] if each else change[begin : begin + INTERVAL].sum(axis=1, keepdims=True)
        sums = np.cumsum(part[::-1], axis=0)[::-1]
        gradient[begin : begin + len(part)] = sums + (passed[n].sum(axis=1) if each else passed[n].sum())
    return found | {"g": gradient}


@functools.cache
def certified(forward: bool, channels: str) -> LinearCertificate:
    """`check_gradients` of the gradients as they are written."""
    return check_gradients(forward, channels)


def check_gradients(forward: bool, channels: str, plan: Mapping[str, LinearScanPlan] = GRADIENTS) -> LinearCertificate:
    """Compares all derived gradients with differences of the recurrence. Raises DifferentiationError where they differ."""
    rng = np.random.default_rng(0)
    columns = 3 if channels == "key" else 1
    shapes = {"q": 3, "k": 3, "v": 2, "do": 2}
    x = {name: rng.normal(size=(LENGTH, size)) for name, size in shapes.items()}
    x |= {"g": -rng.random((LENGTH, columns)), "initial_state": rng.normal(size=(3, 2)), "d_final_state": rng.normal(size=(3, 2))}
    x |= {f"rows of {name}": np.ones((LENGTH, 1)) for name in GRADIENTS}

    def loss(values: Mapping[str, Array]) -> float:
        q, k, v = (values[name] * values[f"rows of {name}"] for name in GRADIENTS)
        g, initial = values["g"], values["initial_state"]
        scanned = scan(q, k, v, g, initial, forward, channels)
        return float((scanned.o * x["do"]).sum() + (scanned.final * x["d_final_state"]).sum())

    return compared(loss, x, derived(x, forward, channels, plan), "recurrence")


def compared(
    loss: Callable[[Mapping[str, Array]], float], x: Mapping[str, Array], gradients: Mapping[str, Array], what: str
) -> LinearCertificate:
    """Gradients beside differences of the loss of `what`. Raises DifferentiationError where they differ."""
    points, error = 0, 0.0
    for name, gradient in gradients.items():
        for place in np.ndindex(gradient.shape):
            wanted = slope(loss, x, name, place)
            worst = abs(float(gradient[place]) - wanted) / max(1.0, abs(wanted))
            points, error = points + 1, max(error, worst)
            if not worst <= TOLERANCE:
                raise DifferentiationError(f"the gradient of {name} differs from differences of the {what} by {worst:.1e} of its size")
    return LinearCertificate(points, error)


def slope(loss: Callable[[Mapping[str, Array]], float], x: Mapping[str, Array], name: str, place: tuple[int, ...]) -> float:
    """The derivative by one element, from differences extrapolated from two steps."""

    def central(step: float) -> float:
        moved = []
        for sign in (1.0, -1.0):
            value = x[name].copy()
            value[place] += sign * step
            moved.append(loss({**x, name: value}))
        return (moved[0] - moved[1]) / (2 * step)

    return (4 * central(_STEP / 2) - central(_STEP)) / 3
