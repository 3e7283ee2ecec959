"""Linear attention through the AMD backend, emulated on the CPU, against the recurrence in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from amd_linear import DTYPES, EMULATED, GROUPED, check, codes
from amd_tools import needs_clang, needs_host_clang, needs_objdump
from attn_mlir import linear_attention
from attn_mlir.backends.amd import driver, translate
from attn_mlir.backends.amd.compile import compile_all
from attn_mlir.backends.amd.target import TARGETS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry
from contexts import loaded_context
from linear_programs import Linear, error, inputs
from linear_reference import reference

INPUTS = Path(__file__).parent.parent / "Inputs" / "linear"


def half(**fields: Any) -> Linear:
    """A linear attention of f16 with 32 columns."""
    return Linear(**{"k": 32, "v": 32, "chunk": 0, "element": "f16", **fields})


@needs_host_clang
@pytest.mark.parametrize("length", [1, 63, 130])
def test_lengths_and_states(length: int) -> None:
    check(half(initial=True, final=True), length)


@needs_host_clang
@pytest.mark.parametrize(
    ("direction", "state", "element"), [("backward", "kv", "f16"), ("forward", "vk", "bf16"), ("backward", "vk", "f16")]
)
def test_directions_products_and_states_on_the_way(direction: str, state: str, element: str) -> None:
    program = half(direction=direction, state=state, element=element, initial=True, final=True, factor=True, interval=64)
    check(program, 100)


@needs_host_clang
@pytest.mark.parametrize("fields", [{"diagonal": True}, {"result": True}, {"diagonal": True, "result": True, "row_mods": True, "v": 128}])
def test_terms_that_products_leave_out_and_factors_behind_sums(fields: dict[str, Any]) -> None:
    check(half(direction="backward", state="vk", element="bf16", factor=True, interval=64, **fields), 70)


@needs_host_clang
@pytest.mark.parametrize("mods", [{}, {"mods": True}, {"row_mods": True, "result": True}])
def test_what_rows_get_of_their_own_row_of_v(mods: dict[str, bool]) -> None:
    check(half(skip=True, element="bf16", offsets=True, **mods), 70, offsets=np.array([0, 30, 70]))


@needs_host_clang
def test_blocks_of_columns_have_slots_of_their_own() -> None:
    program = half(k=64, v=128, state="vk", initial=True, final=True, factor=True)
    check(program, 70, {"q": 2, "k": 1, "v": 2, "decay": 1})
    check(half(v=128, initial=True, final=True, factor=True), 40)


@needs_host_clang
def test_mods_with_captured_tensors_and_odd_columns() -> None:
    check(half(k=7, v=5, mods=True, element="bf16"), 70)
    check(half(k=33, v=16, row_mods=True, element="bf16", factor=True, interval=64, state="vk"), 70)
    check(half(k=33, v=7, decay=False, final=True), 70)


@needs_host_clang
@pytest.mark.parametrize(
    ("channels", "state", "direction"), [("key", "kv", "forward"), ("key", "kv", "backward"), ("value", "vk", "forward")]
)
def test_decays_of_channels(channels: str, state: str, direction: str) -> None:
    check(half(channels=channels, state=state, direction=direction, initial=True, final=True, factor=True, interval=64), 40)


@needs_host_clang
def test_decays_of_few_channels() -> None:
    """Tiles of 16 columns that threads hold as 32, for products: the emulator sees writes that two threads make to one place."""
    check(half(k=16, v=16, channels="key", final=True), 40)


@needs_host_clang
def test_sequences_of_offsets() -> None:
    check(half(offsets=True, initial=True, final=True, interval=64), 150, offsets=np.array([0, 30, 30, 150]))


@needs_host_clang
@pytest.mark.parametrize(
    "fields",
    [
        {"initial": True, "final": True, "mods": True, "element": "bf16"},
        {"direction": "backward", "state": "vk", "final": True, "factor": True},
    ],
)
def test_segments_swept_at_the_same_time(fields: dict[str, Any]) -> None:
    """Equal to one scan to the rounding of its 16-bit products; the last segment is short."""
    program = half(interval=64, **fields)
    one, parts = (check(program, 200, segment=segment) for segment in (0, 64))
    for name, whole in one.items():
        assert error(parts[name].double().numpy(), whole.double().numpy()) < 0.004, name


@needs_host_clang
def test_segments_with_decays_of_channels() -> None:
    check(half(channels="key", initial=True, final=True), 150, segment=64)


@needs_host_clang
@pytest.mark.parametrize("channels", ["none", "key"])
@pytest.mark.parametrize("value", [-10.0, -np.inf])
def test_extreme_decays(channels: str, value: float) -> None:
    """A decay of -inf forgets everything before; nothing becomes NaN."""
    program = half(channels=channels, final=True)
    decay = np.full((1, 2, 70, *([32] if channels == "key" else [])), -0.1)
    decay[:, :, ::3] = value
    check(program, 70, decay=decay)


@needs_host_clang
def test_large_keys_and_values() -> None:
    """States of 256 rows and more have smaller chunks and blocks of columns, so that shared memory is enough."""
    check(half(k=256, v=32, final=True), 40, {"q": 1, "k": 1, "v": 1, "decay": 1})
    check(half(k=512, v=32, final=True), 20, {"q": 1, "k": 1, "v": 1, "decay": 1})
    check(half(k=512, v=16, channels="key"), 20, {"q": 1, "k": 1, "v": 1, "decay": 1})


@needs_host_clang
def test_two_calls_through_the_state() -> None:
    program = half(initial=True, final=True)
    given = {
        n: torch.tensor(x).to(DTYPES["f32" if n in ("decay", "initial") else "f16"]) for n, x in inputs(program, 1, GROUPED, 100).items()
    }
    run = driver.compile_derivative(program.text(), "", (), False, EMULATED).run
    whole, last = run(list(given.values()))
    parts, state = [], given["initial"]
    for part in (slice(0, 37), slice(37, 100)):
        o, state = run([*(given[n][:, :, part] for n in ("q", "k", "v", "decay")), state])
        parts.append(o)
    assert error(torch.cat(parts, 2).double().numpy(), whole.double().numpy()) < 5e-4
    assert error(state.double().numpy(), last.double().numpy()) < 5e-4


@needs_objdump
def test_the_machine_code_in_the_interpreter() -> None:
    check(half(initial=True, final=True), 40, {"q": 1, "k": 1, "v": 1, "decay": 1}, "hip-interpreted")
    check(half(channels="key", final=True), 18, {"q": 1, "k": 1, "v": 1, "decay": 1}, "hip-interpreted")
    check(half(state="vk", direction="backward", factor=True, interval=64), 20, {"q": 1, "k": 1, "v": 1, "decay": 1}, "hip-interpreted")


def mamba(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dt: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """The recurrence of test/Inputs/linear/mamba2.mlir."""
    every = v.shape[1]
    q, k, made = q.repeat(1, every, 1, 1), k.repeat(1, every, 1, 1), []
    state = torch.zeros(*v.shape[:2], q.shape[3], v.shape[3], dtype=v.dtype)
    for t in range(v.shape[2]):
        state = state * (dt[:, :, t] * a).exp()[..., None, None] + k[:, :, t, :, None] * (v * dt[..., None])[:, :, t, None]
        made.append((q[:, :, t, None] @ state)[:, :, 0])
    return torch.stack(made, 2)


@needs_host_clang
def test_gradients_of_mamba() -> None:
    """Also of dt, which decays and values read, and of A, which is one number a head."""
    text = (INPUTS / "mamba2.mlir").read_text().replace("x16xf32", "x32xf16").replace("x8xf32", "x32xf16")
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, 70, 32).div(scale).half() for heads, scale in ((1, 5.6), (1, 1), (2, 1)))
    dt, a, grad = torch.rand(1, 2, 70), -2 * torch.rand(2), torch.randn(1, 2, 70, 32).half()
    wrt = ("q", "k", "v", "arg3", "arg4")
    (o,) = driver.compile_derivative(text, "fwd", wrt, False, EMULATED).run([q, k, v, dt, a])
    got = driver.compile_derivative(text, "bwd", wrt, False, EMULATED).run([q, k, v, dt, a, o, grad])
    leaves = [x.double().requires_grad_() for x in (q, k, v, dt, a)]
    exact = mamba(*leaves)
    assert error(o.double().numpy(), exact.detach().numpy()) < 0.004
    for name, found, want in zip(wrt, got, torch.autograd.grad(exact, leaves, grad.double()), strict=True):
        assert error(found.double().numpy(), want.numpy()) < 0.004, name


@needs_clang
@pytest.mark.parametrize("arch", TARGETS)
def test_no_spills_and_little_shared_memory(arch: str) -> None:
    programs = [half(k=128, v=64), half(k=128, v=128, element="bf16"), half(k=128, v=128, state="vk", factor=True, interval=256),
                half(k=64, v=128, direction="backward", state="vk", element="bf16", factor=True, own=True, result=True, interval=256),
                half(k=128, v=128, channels="key"), half(k=64, v=64, channels="value", state="vk", factor=True, interval=64)]  # fmt: skip
    made = [codes(program, arch)[0] for program in programs]
    for code, binary in zip(made, compile_all(made), strict=True):
        assert binary.spills == binary.scratch == 0, (code.name, binary.describe())
        assert binary.shared == code.shared_bytes <= TARGETS[arch].lds_bytes


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="take 16-bit and f32 inputs, but q, k and v are f64"):
        driver.compile_derivative(half(element="f64", score="f64").text(), "", (), False, EMULATED)


def test_gradients_of_decays_and_sums_of_heads_are_kernels_of_the_same_kind() -> None:
    text = (INPUTS / "half.mlir").read_text()
    with loaded_context():
        module = ir.Module.parse(text)
        Pipeline.parse(
            "attn-differentiate{functions=bwd wrt=q+k+v+arg3 only=true},attn-simplify,attn-outline{keep-hosts=false}", registry()
        ).run(module)
        made = {code.name.rsplit("_", 1)[0].split("bwd_")[-1]: code for code in translate.codes_of(module)}
    assert any("wave_cumsum<8, 512, false>" in code.source for code in made.values())


@needs_host_clang
def test_the_public_api_with_sequences() -> None:
    """Values, states and gradients of sequences of different lengths in one batch, against each sequence in float64."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, 50, 32).div(scale).half() for heads, scale in ((1, 5.6), (1, 1), (2, 1)))
    decay, initial = -torch.rand(1, 2, 50), torch.randn(2, 2, 32, 32)
    leaves = [x.requires_grad_() for x in (q, k, v, decay, initial)]
    ends = torch.tensor([0, 18, 50], dtype=torch.int32)
    o, final = linear_attention(
        q, k, v, decay=decay, initial_state=initial, cu_seqlens=ends, output_final_state=True, device=EMULATED, scale=1.0
    )
    grads = torch.randn(1, 2, 50, 32), torch.randn(2, 2, 32, 32)
    got = torch.autograd.grad((o, final), leaves, (grads[0].half(), grads[1]))
    exact = [x.detach().double().requires_grad_() for x in leaves]
    parts, states = [], []
    for n, (begin, end) in enumerate(((0, 18), (18, 50))):
        x, y, z, g = (leaf[:, :, begin:end] for leaf in exact[:4])
        state, rows = exact[4][n : n + 1], []
        for t in range(end - begin):
            state = state * g[:, :, t].exp()[..., None, None] + y[:, :, t, :, None] * z[:, :, t, None]
            rows.append((x[:, :, t, None] @ state)[:, :, 0])
        parts.append(torch.stack(rows, 2))
        states.append(state)
    wanted = torch.cat(parts, 2), torch.cat(states)
    want = torch.autograd.grad(wanted, exact, (grads[0].half().double(), grads[1].double()))
    for name, found, right in zip(("o", "final", "q", "k", "v", "decay", "initial"), (o, final, *got), (*wanted, *want), strict=True):
        assert error(found.detach().double().numpy(), right.detach().numpy()) < 0.004, name


@needs_host_clang
def test_gradients_of_decays_of_channels() -> None:
    """Also where some decays forget everything: nothing becomes NaN."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 30, 32).div(scale).half() for scale in (5.6, 1, 1))
    decay = -torch.rand(1, 2, 30, 32)
    decay[:, :, ::7, ::3] = -10
    leaves = [x.requires_grad_() for x in (q, k, v, decay)]
    grad = torch.randn(1, 2, 30, 32).half()
    o = linear_attention(*leaves, device=EMULATED, scale=1.0)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    state, rows = torch.zeros(1, 2, 32, 32, dtype=torch.float64), []
    for t in range(30):
        x, y, z, g = (leaf[:, :, t] for leaf in exact)
        state = state * g.exp()[..., None] + y[..., None] * z[:, :, None]
        rows.append((x[:, :, None] @ state)[:, :, 0])
    want = torch.stack(rows, 2)
    results = [o.detach(), *torch.autograd.grad(o, leaves, grad)]
    wanted = [want.detach(), *torch.autograd.grad(want, exact, grad.double())]
    for name, found, right in zip(("o", "q", "k", "v", "decay"), results, wanted, strict=True):
        assert error(found.double().numpy(), right.numpy()) < 0.004, name


@needs_host_clang
@pytest.mark.parametrize(("columns", "middle"), [(16, 72), (256, 20)])
def test_gradients_of_decays_of_channels_with_sequences(columns: int, middle: int) -> None:
    """A long sequence, an empty one and a short one: what makes the decays' gradient is a loop, whose large tiles are never whole.

    It adds up rows of states too: so many that a lane has one, or four.
    """
    torch.manual_seed(0)
    length, bounds = middle + 6, [0, middle, middle, middle + 6]
    x = [torch.randn(1, 1, length, n).div(scale).half() for n, scale in ((columns, columns**0.5), (columns, 1), (16, 1))]
    x += [-torch.rand(1, 1, length, columns)]
    mine, exact = [y.clone().requires_grad_() for y in x], [y.double().requires_grad_() for y in x]
    q, k, v, decay = mine
    o = linear_attention(q, k, v, decay, cu_seqlens=torch.tensor(bounds), device=EMULATED, scale=1.0)
    want = reference(*exact, cu_seqlens=bounds)[0]
    grad = torch.randn(o.shape).half()
    got = [o.detach(), *torch.autograd.grad(o, mine, grad)]
    wanted = [want.detach(), *torch.autograd.grad(want, exact, grad.double())]
    for name, found, right in zip(("o", "q", "k", "v", "decay"), got, wanted, strict=True):
        assert error(found.double().numpy(), right.numpy()) < 0.004, name


@needs_host_clang
@pytest.mark.parametrize(("gate", "element"), [(-0.01, "bf16"), (-1.0, "bf16"), (-10.0, "bf16"), (-6.0, "f16"), (-10.0, "f16")])
@pytest.mark.parametrize("shape", [(100,), (100, 32)])
def test_gradients_of_strong_decays(shape: tuple[int, ...], element: str, gate: float) -> None:
    """With a gradient of the final state: the decays' own gradient is as precise as the others."""
    torch.manual_seed(0)
    x = [torch.randn(1, 4, 100, 32).div(scale).to(DTYPES[element]) for scale in (1, 5.6, 1)]
    x += [gate * (0.9 + 0.2 * torch.rand(1, 4, *shape)), torch.randn(1, 4, 32, 32)]
    mine, exact = [y.clone().requires_grad_() for y in x], [y.double().requires_grad_() for y in x]
    q, k, v, decay, initial = mine
    results = linear_attention(q, k, v, decay, initial_state=initial, output_final_state=True, device=EMULATED)
    known = reference(*exact[:4], initial_state=exact[4])
    weights = [torch.randn(each.shape).to(each.dtype) for each in results]
    got = torch.autograd.grad(results, mine, weights)
    wanted = torch.autograd.grad(known, exact, [weight.double() for weight in weights])
    for name, found, right in zip(("q", "k", "v", "decay", "initial"), got, wanted, strict=True):
        assert error(found.double().numpy(), right.numpy()) < 0.004, name
