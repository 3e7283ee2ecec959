"""Linear attention on the CPU against the recurrence in float64."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import attn_mlir
from attn_mlir.backends.cpu import pipeline
from attn_mlir.backends.cpu import program as cpu
from attn_mlir.backends.cpu.program import compile_program
from attn_mlir.backends.program import OUTLINE
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


@pytest.mark.parametrize(("element", "bar"), [("f32", 1e-6), ("bf16", 4e-3)])
@pytest.mark.parametrize("mods", [{}, {"mods": True}, {"row_mods": True, "result": True}])
def test_what_rows_get_of_their_own_row_of_v(element: str, bar: float, mods: dict[str, Any]) -> None:
    check(Linear(k=20, v=40, chunk=32, direction="backward", skip=True, element=element, **mods), 2, _HEADS, 75, bar)


@pytest.mark.parametrize(("element", "bar"), [("f32", 1e-6), ("bf16", 4e-3)])
@pytest.mark.parametrize(
    "fields", [{"diagonal": True}, {"result": True, "value_block": 20}, {"diagonal": True, "result": True, "value_block": 20}]
)
def test_terms_that_products_leave_out_and_factors_behind_sums(element: str, bar: float, fields: dict[str, Any]) -> None:
    program = Linear(k=20, v=40, chunk=32, direction="backward", state="vk", factor=True, interval=64, element=element, **fields)
    check(program, 2, _HEADS, 75, bar)


@pytest.mark.parametrize(("direction", "state"), list(itertools.product(("forward", "backward"), ("kv", "vk"))))
def test_tiles_that_are_read_where_they_are(direction: str, state: str) -> None:
    """Whole vectors of columns; the last chunk is a copy; positions of one head are apart in memory, and not aligned."""
    program = Linear(k=64, v=32, chunk=32, direction=direction, state=state, initial=True, final=True, factor=True, interval=64)
    tensors = rounded(program, inputs(program, 1, {"q": 2, "k": 2, "v": 2, "decay": 2}, 75))
    wanted = recurrence(program, {name: value.double().numpy() for name, value in tensors.items()})
    apart = [torch.empty(x.numel() + 1)[1:].view(1, 75, 2, -1).transpose(1, 2).copy_(x) for x in (tensors[n] for n in ("q", "k", "v"))]
    found = compile_program(program.text(), "attention").run([*apart, *list(tensors.values())[3:]])
    for (name, value), made in zip(wanted.items(), found, strict=True):
        assert error(made.double(), value) < 1e-6, name


@pytest.mark.parametrize(("direction", "channels"), list(itertools.product(("forward", "backward"), ("key", "value"))))
def test_decays_of_channels(direction: str, channels: str) -> None:
    state = "kv" if channels == "key" else "vk"
    program = Linear(k=20, v=24, chunk=16, direction=direction, channels=channels, state=state, mods=True, factor=True, interval=16)
    check(program, 1, {"q": 2, "k": 2, "v": 2, "decay": 1}, 50)


@pytest.mark.parametrize(
    ("direction", "state", "channels", "element"),
    [
        ("forward", "kv", "none", "f32"), ("backward", "vk", "none", "f32"), ("forward", "vk", "none", "bf16"),
        ("backward", "kv", "none", "f64"), ("backward", "kv", "key", "f32"),
    ],
)  # fmt: skip
def test_wide_tiles(direction: str, state: str, channels: str, element: str) -> None:
    """Tiles of several bands of columns, with mods and as they come."""
    score = "f64" if element == "f64" else "f32"
    wide: dict[str, Any] = {"k": 256, "v": 192, "chunk": 32, "direction": direction, "state": state, "channels": channels, "score": score}
    for mods in (False, True):
        program = Linear(**wide, element=element, mods=mods, initial=True, final=True, factor=True, interval=32)
        check(program, 1, {"q": 1, "k": 1, "v": 2, "decay": 2}, 75, 0.004 if element == "bf16" else 1e-6)


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


@pytest.mark.parametrize("length", [1, 500, 4096])
@pytest.mark.parametrize("gate", [1e-4, 1.0, 10.0])
def test_lengths_and_gates(length: int, gate: float) -> None:
    check(Linear(k=16, v=16, chunk=32, initial=True, final=True), 1, {"q": 1, "k": 1, "v": 1, "decay": 1}, length, gate=gate)


def test_steps_are_chunks_of_one_position() -> None:
    """A sequence in steps through the state, and at once."""
    whole, step = (Linear(k=16, v=24, chunk=chunk, initial=True, final=True) for chunk in (32, 1))
    given = rounded(whole, inputs(whole, 1, {"q": 1, "k": 1, "v": 2, "decay": 2}, 40))
    o, final = compile_program(whole.text(), "attention").run(list(given.values()))
    program, state, parts = compile_program(step.text(), "attention"), given["initial"], []
    for t in range(40):
        part, state = program.run([*(given[name][:, :, t : t + 1] for name in ("q", "k", "v", "decay")), state])
        parts.append(part)
    assert error(torch.cat(parts, 2), o) < 1e-6 and error(state, final) < 1e-6


@pytest.mark.parametrize(
    ("channels", "gate", "dtype"), [(False, 1e-3, "f32"), (False, 10.0, "f32"), (True, 10.0, "f32"), (False, 1.0, "bf16")]
)
def test_gradients(channels: bool, gate: float, dtype: str) -> None:
    """Those of decays, which are differences of sums, too."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, 70, 16, generator=generator) for heads in (1, 2, 4))
    decay = -gate * torch.rand((1, 4, 70, *([16] if channels else [])), generator=generator)
    upstream = torch.randn(1, 4, 70, 16, generator=generator)
    upstream = upstream.to(_DTYPES[dtype])
    leaves = [*(x.to(_DTYPES[dtype]).requires_grad_() for x in (q / 4, k, v)), decay.requires_grad_()]
    found = torch.autograd.grad(attn_mlir.linear_attention(*leaves[:3], decay=decay), leaves, upstream)
    state, rows = torch.zeros(1, 4, 16, 16, dtype=torch.float64), []
    of_q, of_k, of_v, g = (x.double().repeat_interleave(4 // x.shape[1], 1) for x in leaves)
    for t in range(70):
        factor = g[:, :, t].exp()
        state = state * (factor[..., None] if channels else factor[..., None, None]) + of_k[:, :, t, :, None] * of_v[:, :, t, None]
        rows.append(torch.einsum("bhk,bhkv->bhv", of_q[:, :, t], state))
    wanted = torch.autograd.grad(torch.stack(rows, 2), leaves, upstream.double())
    for name, made, value in zip(("q", "k", "v", "decay"), found, wanted, strict=True):
        assert error(made.double(), value.double()) < (1e-6 if dtype == "f32" else 0.004), name


def test_a_single_position_is_a_chunk_of_its_own() -> None:
    program = Linear(k=16, v=24, chunk=0, initial=True, final=True)
    check(program, 1, {"q": 1, "k": 1, "v": 2, "decay": 2}, 40)
    assert (program.text(), "attention", OUTLINE, pipeline.STEP) not in cpu._PROGRAMS
    check(program, 1, {"q": 1, "k": 1, "v": 2, "decay": 2}, 1)
    assert (program.text(), "attention", OUTLINE, pipeline.STEP) in cpu._PROGRAMS
