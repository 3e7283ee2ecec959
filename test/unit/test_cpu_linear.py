"""Linear attention on the CPU against the recurrence in float64."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from attn_mlir.backends.cpu.program import compile_program
from linear_programs import Linear, error, inputs, recurrence

_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}


def rounded(program: Linear, given: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The arguments as tensors of the program's types."""
    made = {}
    for name, value in given.items():
        element = program.arguments[name].rpartition("x")[2].rstrip(">")
        made[name] = torch.tensor(np.asarray(value)) if element == "i64" else torch.tensor(value, dtype=_DTYPES[element])
    return made


def check(program: Linear, batch: int, heads: dict[str, int], length: int, bar: float = 1e-6, **more: Any) -> None:
    tensors = rounded(program, inputs(program, batch, heads, length, **more))
    wanted = recurrence(
        program, {name: np.asarray(value.double() if value.is_floating_point() else value) for name, value in tensors.items()}
    )
    found = compile_program(program.text(), "attention").run(list(tensors.values()))
    for (name, value), made in zip(wanted.items(), found, strict=True):
        assert tuple(made.shape) == value.shape, name
        written = torch.where(torch.tensor(value != 0), made.double(), 0.0) if name == "states" and program.offsets else made.double()
        assert error(written, value) < bar, (name, error(written, value))


_HEADS = {"q": 2, "k": 1, "v": 4, "decay": 4, "factor": 2}


@pytest.mark.parametrize(("direction", "state"), list(itertools.product(("forward", "backward"), ("kv", "vk"))))
@pytest.mark.parametrize("length", [1, 63, 130])
def test_everything_at_once(direction: str, state: str, length: int) -> None:
    program = Linear(k=20, v=40, chunk=32, direction=direction, state=state, mods=True, initial=True, final=True, factor=True, interval=64)
    check(program, 2, _HEADS, length)


@pytest.mark.parametrize(("direction", "channels"), list(itertools.product(("forward", "backward"), ("key", "value"))))
def test_decays_of_channels(direction: str, channels: str) -> None:
    state = "kv" if channels == "key" else "vk"
    program = Linear(k=20, v=24, chunk=16, direction=direction, channels=channels, state=state, mods=True, factor=True, interval=16)
    check(program, 1, {"q": 2, "k": 2, "v": 2, "decay": 1}, 50)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_sequences_of_offsets_and_blocks_of_columns(direction: str) -> None:
    program = Linear(
        k=16, v=32, chunk=16, direction=direction, offsets=True, value_block=16, initial=True, final=True, factor=True, interval=32
    )
    check(program, 1, {"q": 2, "k": 2, "v": 2, "decay": 2}, 90, offsets=np.array([0, 5, 5, 70, 90]))


@pytest.mark.parametrize("element", ["f16", "bf16", "f64"])
def test_element_types(element: str) -> None:
    program = Linear(k=16, v=16, chunk=16, element=element, score="f64" if element == "f64" else "f32", initial=True, final=True)
    check(program, 1, _HEADS, 100, bar=1e-13 if element == "f64" else 0.004)
