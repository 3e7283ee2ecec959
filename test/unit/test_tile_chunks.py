"""Kernels that `attn-tile` makes of `attn.chunk`, run by the evaluator, against the recurrence."""

import itertools

import numpy as np
import pytest
from linear_programs import Linear, error, inputs, recurrence

from attn_mlir.dialects import load_all
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.reference.tiles import run_kernel
from attn_mlir.registry import registry

_EVERYTHING = {"initial": True, "final": True, "factor": True, "interval": 16, "element": "f64", "score": "f64"}


def check(program: Linear, batch: int, heads: dict[str, int], length: int, **more: object) -> None:
    given = inputs(program, batch, heads, length, **more)
    wanted = recurrence(program, given)
    with ir.Context() as context:
        load_all(context)
        module = ir.Module.parse(program.text())
        Pipeline.parse("attn-tile,canonicalize,cse", registry()).run(module)
        slots = program.v // (program.value_block or program.v)
        shapes = {name: value.shape for name, value in wanted.items()}
        if "products" in shapes and slots > 1 and program.channels == "none":
            shapes["products"] = (slots, *shapes["products"])
        outputs = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
        run_kernel(module.body.operations[0].operation, [*given.values(), *outputs.values()])
    if len(shapes.get("products", ())) == 4 and program.channels == "none":
        outputs["products"] = outputs["products"].sum(0)
    # States after the sequences' last ones are not written.
    written = {name: np.where(np.isnan(value), 0, value) if name == "states" and program.offsets else value for name, value in outputs.items()}
    for name, value in wanted.items():
        assert error(written[name], value) < 1e-12, name


@pytest.mark.parametrize(("direction", "state", "mods"), list(itertools.product(("forward", "backward"), ("kv", "vk"), (False, True))))
def test_one_decay_for_all_channels(direction: str, state: str, mods: bool) -> None:
    program = Linear(direction=direction, state=state, mods=mods, chunk=8, k=4, v=6, **_EVERYTHING)
    check(program, 2, {"q": 2, "k": 1, "v": 4, "decay": 4, "factor": 2}, 21)


@pytest.mark.parametrize(("direction", "channels"), list(itertools.product(("forward", "backward"), ("key", "value"))))
@pytest.mark.parametrize("value_block", [0, 2])
def test_decays_of_channels(direction: str, channels: str, value_block: int) -> None:
    state = "kv" if channels == "key" else "vk"
    program = Linear(
        direction=direction, channels=channels, state=state, mods=True, chunk=4, k=6, v=4, value_block=value_block, **_EVERYTHING
    )
    check(program, 1, {"q": 1, "k": 2, "v": 2, "decay": 1}, 11)


@pytest.mark.parametrize(("direction", "state"), list(itertools.product(("forward", "backward"), ("kv", "vk"))))
def test_sequences_of_offsets_and_blocks_of_columns(direction: str, state: str) -> None:
    program = Linear(direction=direction, state=state, offsets=True, mods=True, chunk=8, k=4, v=6, value_block=2, **_EVERYTHING)
    check(program, 1, {"q": 2, "k": 2, "v": 2, "decay": 2}, 40, offsets=np.array([0, 5, 5, 25, 40]))


@pytest.mark.parametrize("length", [1, 8, 9])
def test_without_decay_and_initial_state(length: int) -> None:
    check(Linear(decay=False, chunk=8, k=4, v=6, element="f64", score="f64", final=True), 1, {"q": 1, "k": 1, "v": 2}, length)


def test_heads_of_another_operand() -> None:
    program = Linear(heads=0, chunk=4, k=4, v=2, element="f64", score="f64")
    check(program, 1, {"q": 4, "k": 1, "v": 2, "decay": 4}, 9)
