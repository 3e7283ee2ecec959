"""Gradients of log decays made without differences: the scans' `crossing` products and states, in the evaluator and as tile kernels."""

import itertools
from typing import Any

import numpy as np
import pytest

from attn_mlir.dialects import load_all
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.reference import evaluate
from attn_mlir.reference.tiles import run_kernel
from attn_mlir.registry import registry
from linear_programs import Linear, error, recurrence

HEADS, KEYS, VALUES, SMALLEST = 2, 4, 6, 8
Arrays = dict[str, Any]


def program(direction: str, channels: str, chunk: int, offsets: bool) -> tuple[Linear, str]:
    """A scan that makes dq (forward) or dk: values take the place of keys, keys that of values. Intervals are chunks, or `SMALLEST`."""
    more = {"direction": direction, "channels": channels, "offsets": offsets, "k": VALUES, "v": KEYS, "chunk": chunk}
    found = Linear(state="vk", initial=True, factor=True, interval=chunk or SMALLEST, element="f64", score="f64", **more)
    return found, found.text().replace("interval = ", "crossing, interval = ")


def run(program: Linear, text: str, given: Arrays, tiles: bool) -> Arrays:
    """The outputs by name, of the op itself or of the kernel made of it."""
    names = ("o", *program.outputs)
    with ir.Context():
        load_all(ir.Context.current)
        module = ir.Module.parse(text)
        if not tiles:
            return dict(zip(names, evaluate(module, list(given.values())), strict=True))
        module.body.operations[0].attributes["tile.numerics"] = ir.Attribute.parse('{sub_chunk = 4, prefix = "f64"}')
        Pipeline.parse("attn-tile-chunks,canonicalize,cse", registry()).run(module)
        made = {name: np.full(value.shape, np.nan) for name, value in recurrence(program, given).items()}
        run_kernel(module.body.operations[0].operation, [*given.values(), *made.values()])
        return made


def gradient(x: Arrays, spans: list[tuple[int, int]]) -> np.ndarray:
    """That of the log decays: of all that passes a position, <state before it, gradient of the state from it on>."""
    found = np.zeros_like(x["g"])
    for n, (begin, end) in enumerate(spans):
        state, before, after = x["initial"][n], {}, x["d_final"][n]
        factors = np.exp(x["g"][0]).reshape(HEADS, -1, KEYS if x["g"].ndim == 4 else 1)
        for t in range(begin, end):
            before[t] = factors[:, t, :, None] * state
            state = before[t] + x["k"][0, :, t, :, None] * x["v"][0, :, t, None, :]
        for t in reversed(range(begin, end)):
            after = after + x["q"][0, :, t, :, None] * x["do"][0, :, t, None, :]
            passed = (before[t] * after).sum(axis=2)
            found[0, :, t] = passed if x["g"].ndim == 4 else passed.sum(axis=1)
            after = factors[:, t, :, None] * after
    return found


@pytest.mark.parametrize("offsets", [None, [0, 3, 3, 20, 27]])
@pytest.mark.parametrize("channels", ["none", "value"])
@pytest.mark.parametrize(("chunk", "tiles"), [(0, False), (8, False), (8, True), (12, True), (32, True)])
def test_both_scans_add_up(chunk: int, tiles: bool, channels: str, offsets: list[int] | None) -> None:
    rng = np.random.default_rng(0)
    bounds, interval = offsets or [0, 27], chunk or SMALLEST
    spans = list(itertools.pairwise(bounds))
    shapes = {"q": (27, KEYS), "k": (27, KEYS), "v": (27, VALUES), "do": (27, VALUES)}
    x: Arrays = {name: rng.normal(size=(1, HEADS, *shape)) for name, shape in shapes.items()}
    x |= {name: rng.normal(size=(len(spans), HEADS, KEYS, VALUES)) for name in ("initial", "d_final")}
    x["g"] = -3.0 * rng.random((1, HEADS, 27, *((KEYS,) if channels == "value" else ())))
    ends = {"offsets": np.array(offsets)} if offsets else {}
    common: Arrays = {"decay": x["g"]}
    towards: Arrays = {"q": x["do"], "k": x["v"], "v": x["k"], **common, "initial": x["initial"], "factor": x["q"], **ends}
    against: Arrays = {"q": x["v"], "k": x["do"], "v": x["q"], **common, "initial": x["d_final"], "factor": x["k"], **ends}
    made = []
    for direction, given in (("forward", towards), ("backward", against)):
        scan, text = program(direction, channels, chunk, offsets is not None)
        made.append(run(scan, text, given, tiles))
        assert error(made[-1]["o"], recurrence(scan, given)["o"]) < 1e-12
    passing = (made[0]["states"] * made[1]["states"]).sum(axis=3).reshape(1, HEADS, -1, KEYS)
    found = made[0]["products"] + made[1]["products"]
    for n, (begin, end) in enumerate(spans):
        first = 0 if offsets is None else begin // interval + n
        for t in range(begin, end):
            whole = passing[:, :, first + (t - begin) // interval]
            found[:, :, t] += whole if channels == "value" else whole.sum(axis=2)
    assert error(found, gradient(x, spans)) < 1e-12
