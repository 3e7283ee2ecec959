"""The numeric confirmation of the gradients of the delta rule: scans against differences of the recurrence, in float64."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attn_mlir.passes.derivation.evaluate import Array
from attn_mlir.passes.differentiation.delta_plan import DeltaScanPlan, apart, delta_plan
from attn_mlir.passes.differentiation.linear_check import LENGTH, LinearCertificate, compared
from attn_mlir.passes.differentiation.linear_model import SWAPPED


@dataclass(frozen=True)
class DeltaScan:
    """What one scan gives: o, the last state [K, V], and what erasing writes."""

    o: Array
    final: Array
    values: Array


def delta_scan(made: DeltaScanPlan, x: Mapping[str, Array], forward: bool, channels: str) -> DeltaScan:
    """A scan position by position; log decays are [T, 1], or one for each column of k or v."""
    q, k, v = (x[name] for name in made.operands)
    initial = x[made.initial] if made.initial else np.zeros((k.shape[1], v.shape[1])).T if made.swapped else None
    assert initial is not None
    state = initial.T if made.swapped else initial
    o, values = np.zeros((LENGTH, v.shape[1])), np.zeros((LENGTH, v.shape[1]))
    for t in range(LENGTH) if forward else reversed(range(LENGTH)):
        factor = np.exp(x["g"][t])[None] if channels == "value" else np.exp(x["g"][t])[:, None]
        decayed = factor * state if forward else state
        written = decayed + np.outer(k[t], v[t])
        after = written
        if made.second is not None:
            key, value = (x[name][t] for name in made.second)
            after = written + np.outer(key, value)
        if made.erase is not None:
            e, r = (x[name][t] for name in made.erase)
            values[t] = -(e @ (written if made.reads == "written" else decayed))
            after = written + np.outer(r, values[t])
        places = {"decayed": decayed, "written": written, "after": after}
        o[t] = values[t] if made.output == "values" else q[t] @ places[made.output]
        state = after if forward else factor * after
    return DeltaScan(o, state, values)


def primal_scan(removed: bool, output: str) -> DeltaScanPlan:
    """The delta rule itself."""
    return DeltaScanPlan(("q", "k", "v"), 2, True, False, "initial_state", output, None, ("e", "r" if removed else "k"))


def derived(x: Mapping[str, Array], removed: bool, output: str, channels: str, plan: Mapping[str, DeltaScanPlan]) -> dict[str, Array]:
    """The gradients that `plan` makes, of the inputs, the initial state and the log decays."""
    known = {**x, "r": x["r"] if removed else x["k"]}
    primal = delta_scan(primal_scan(removed, output), known, True, channels)
    known |= {"z": primal.values, "u": x["v"] + primal.values}
    found: dict[str, Array] = {}
    for role, made in plan.items():
        scanned = delta_scan(made, known, made.same_direction, SWAPPED[channels] if made.swapped else channels)
        found[role] = scanned.o
        if role == "x":
            known["dx"] = scanned.o
            found["initial_state"] = scanned.final
    if "w" in found:
        found["k"] = found["k"] + found.pop("w")
    dx = found.pop("x")
    found.setdefault("v", -dx)
    change = known["q"] * found["q"] + known["e"] * found["e"] - known["k"] * found["k"]
    if removed:
        change -= known["r"] * found["r"]
    last = primal.final * x["d_final_state"]  # what passes beyond the end
    passed = np.cumsum(change[::-1], axis=0)[::-1] + last.sum(axis=1)
    found["g"] = passed if channels == "key" else passed.sum(axis=1, keepdims=True)
    return found


@functools.cache
def certified_delta(removed: bool, output: str, channels: str, parted: bool = False) -> LinearCertificate:
    """`check_delta_gradients` of the plan as it is written; `parted`: of that with one writer for each scan."""
    return check_delta_gradients(removed, output, channels, apart(output) if parted else delta_plan(removed, output))


def check_delta_gradients(removed: bool, output: str, channels: str, plan: Mapping[str, DeltaScanPlan]) -> LinearCertificate:
    """Compares all derived gradients with differences of the recurrence. Raises DifferentiationError where they differ."""
    rng = np.random.default_rng(0)
    columns = 3 if channels == "key" else 1
    shapes = {"q": 3, "k": 3, "v": 2, "e": 3, "r": 3, "do": 2}
    x = {name: 0.7 * rng.normal(size=(LENGTH, size)) for name, size in shapes.items()}
    x |= {"g": -rng.random((LENGTH, columns)), "initial_state": rng.normal(size=(3, 2)), "d_final_state": rng.normal(size=(3, 2))}
    forward = primal_scan(removed, output)

    def loss(values: Mapping[str, Array]) -> float:
        scanned = delta_scan(forward, values, True, channels)
        return float((scanned.o * x["do"]).sum() + (scanned.final * x["d_final_state"]).sum())

    return compared(loss, x, derived(x, removed, output, channels, plan), "delta rule")
