"""Linear attention of float32 inputs through the AMD backend: nothing is rounded to 16 bits, against the recurrence in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from amd_linear import EMULATED, check, codes
from amd_tools import needs_clang, needs_host_clang, needs_objdump
from attn_mlir import attention, linear_attention, linear_attention_step
from attn_mlir.backends.amd.compile import compile_all
from attn_mlir.backends.amd.target import TARGETS
from attn_mlir.errors import UnsupportedError
from linear_programs import Linear
from linear_reference import error, reference

BAR, BAR_OF_DECAYS = 1e-6, 2e-6
"""Of rms(error) / rms; gradients of decays are sums of differences over 64 positions."""
ALONE = {"q": 1, "k": 1, "v": 1, "decay": 1}
CHANNELS = {"channels": "value", "state": "vk"}


def wide(**fields: Any) -> Linear:
    """A linear attention of f32 with 32 columns."""
    return Linear(**{"k": 32, "v": 32, "chunk": 0, "element": "f32", **fields})


@needs_host_clang
@pytest.mark.parametrize("length", [1, 17, 63, 127])
def test_lengths_and_states(length: int) -> None:
    check(wide(initial=True, final=True), length, bar=BAR)


@needs_host_clang
@pytest.mark.parametrize("fields", [{"state": "kv"}, {"state": "vk"}, {"channels": "key"}, CHANNELS])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_scans_with_products_and_states(direction: str, fields: dict[str, str]) -> None:
    check(wide(direction=direction, initial=True, final=True, factor=True, interval=64, **fields), 100, bar=BAR)


@needs_host_clang
@pytest.mark.parametrize(
    "fields",
    [{"factor": True, "interval": 64, "diagonal": True, "result": True}, {"skip": True, "row_mods": True}, {"skip": True, "mods": True}],
)
def test_own_terms_and_what_stands_behind_sums(fields: dict[str, Any]) -> None:
    check(wide(direction="backward", **fields), 70, bar=BAR)


@needs_host_clang
def test_mods_and_odd_columns() -> None:
    check(wide(k=7, v=5, mods=True), 70, bar=BAR)
    check(wide(k=33, v=50, channels="key", final=True), 40, bar=BAR)
    check(wide(k=100, v=97, final=True), 40, ALONE, bar=BAR)
    check(wide(k=160, v=16, channels="key"), 20, ALONE, bar=BAR)


@needs_host_clang
@pytest.mark.parametrize(("columns", "fields"), [(256, {}), (512, {}), (256, {"channels": "key"}), (512, CHANNELS)])
def test_large_states(columns: int, fields: dict[str, str]) -> None:
    """Smaller chunks, and smaller blocks of values; of 512 columns only what one product multiplies is in shared memory, or half of it."""
    check(wide(k=columns, v=32, final=True, **fields), 40, ALONE, bar=BAR)


@needs_host_clang
@pytest.mark.parametrize("channels", ["none", "key"])
def test_sequences_and_segments(channels: str) -> None:
    program = wide(channels=channels, initial=True, final=True)
    check(program, 150, segment=64, bar=BAR)
    check(wide(channels=channels, offsets=True, final=True), 150, offsets=np.array([0, 30, 30, 150]), bar=BAR)


@needs_host_clang
@pytest.mark.parametrize("channels", ["none", "key"])
def test_decays_that_add_up_to_hundreds(channels: str) -> None:
    """Where sums of log decays in f32 lose digits that the weights of neighbours need; some forget everything."""
    decay = np.random.default_rng(0).uniform(-10, 0, (1, 2, 128, *([32] if channels == "key" else [])))
    decay[:, :, 40] = -np.inf
    check(wide(channels=channels, final=True), 128, decay=decay, bar=3e-7)


@needs_objdump
@pytest.mark.parametrize(
    "fields", [{"initial": True, "final": True}, {"channels": "key"}, {"state": "vk", "direction": "backward", "factor": True}]
)
def test_the_machine_code_in_the_interpreter(fields: dict[str, Any]) -> None:
    check(wide(**fields), 20, ALONE, "hip-interpreted", BAR)


@needs_clang
@pytest.mark.parametrize("arch", TARGETS)
def test_no_spills(arch: str) -> None:
    """Of states from the smallest to the largest, also backward and where channels have decays."""
    programs = [wide(k=16, v=16, state="vk", direction="backward", factor=True, interval=256), wide(k=64, v=64, **CHANNELS, factor=True)]
    programs += [wide(k=128, v=128, state="vk", factor=True, interval=256), wide(k=128, v=128, channels="key")]
    programs += [wide(k=size, v=size, final=True) for size in (128, 256, 512)]
    programs += [wide(k=256, v=64, channels="key"), wide(k=512, v=64, **CHANNELS, factor=True, interval=256)]
    made = [codes(program, arch)[0] for program in programs]
    for code, binary in zip(made, compile_all(made), strict=True):
        assert binary.spills == binary.scratch == 0, (code.name, binary.describe())
        assert binary.shared == code.shared_bytes <= TARGETS[arch].lds_bytes


def tensors(length: int, gates: tuple[float, float], channels: bool) -> dict[str, torch.Tensor]:
    """q, k [1, 1, T, 32], v [1, 2, T, 32], log decays between `gates` and an initial state."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, length, 32).div(scale) for heads, scale in ((1, 5.6), (1, 5.6), (2, 1)))
    low, high = gates
    g = low + (high - low) * torch.rand(1, 2, length, *([32] if channels else []))
    return {"q": q, "k": k, "v": v, "g": g, "state": torch.randn(1, 2, 32, 32)}


def compare(run: Callable[..., Any], known: Callable[..., Any], given: dict[str, torch.Tensor]) -> None:
    """Results and gradients against those of `known` in float64."""
    mine = {n: x.clone().requires_grad_() for n, x in given.items()}
    exact = {n: x.double().requires_grad_() for n, x in given.items()}
    results, expected = run(**mine), known(**exact)
    weights = [torch.randn_like(result) for result in results]
    got = torch.autograd.grad(results, list(mine.values()), weights)
    wanted = torch.autograd.grad(expected, list(exact.values()), [weight.double() for weight in weights])
    for name, x, y in zip(("o", "final", *given), (*results, *got), (*expected, *wanted), strict=True):
        assert error(x.detach(), y.detach()) < (BAR_OF_DECAYS if name in ("g", "dt", "A") else BAR), (name, error(x.detach(), y.detach()))


@needs_host_clang
@pytest.mark.parametrize("gates", [(-0.02, -0.001), (-1.0, -0.1), (-10.0, 0.0), (-10.0, -9.0)])
@pytest.mark.parametrize("channels", [False, True])
def test_gradients(channels: bool, gates: tuple[float, float]) -> None:
    """From gates near 0 to those that leave nothing of the position before, whose gradients are tiny."""

    def run(q: Any, k: Any, v: Any, g: Any, state: Any) -> Any:
        return linear_attention(q, k, v, g, initial_state=state, output_final_state=True, scale=1.0, device=EMULATED)

    def known(q: Any, k: Any, v: Any, g: Any, state: Any) -> Any:
        return reference(q, k, v, g, initial_state=state)

    compare(run, known, tensors(100, gates, channels))


@needs_host_clang
def test_gradients_with_sequences() -> None:
    ends = [0, 30, 30, 100]

    def run(q: Any, k: Any, v: Any, g: Any, state: Any) -> Any:
        offsets = torch.tensor(ends)
        return linear_attention(q, k, v, g, initial_state=state, output_final_state=True, cu_seqlens=offsets, scale=1.0, device=EMULATED)

    def known(q: Any, k: Any, v: Any, g: Any, state: Any) -> Any:
        return reference(q, k, v, g, initial_state=state, cu_seqlens=ends)

    given = tensors(100, (-1.0, -0.1), False)
    compare(run, known, {**given, "state": torch.randn(3, 2, 32, 32)})


@needs_host_clang
def test_gradients_of_what_mods_capture() -> None:
    """The SSD of Mamba-2: dt scales values and decays, A is one number for each head."""
    given = tensors(90, (-1.0, -0.1), False)
    given = {n: given[n] for n in ("q", "k", "v", "state")} | {"dt": torch.rand(1, 2, 90), "A": -torch.rand(2) - 0.1}

    def run(q: Any, k: Any, v: Any, state: Any, dt: Any, A: Any) -> Any:
        mods = {"v_mod": lambda x, b, h, t: x * dt[b, h, t], "decay_mod": lambda g, b, h, t: dt[b, h, t] * A[h]}
        return linear_attention(q, k, v, **mods, initial_state=state, output_final_state=True, scale=None, device=EMULATED)

    def known(q: Any, k: Any, v: Any, state: Any, dt: Any, A: Any) -> Any:
        return reference(q, k, v * dt[..., None], dt * A[None, :, None], None, initial_state=state)

    compare(run, known, given)


@needs_host_clang
@pytest.mark.parametrize("channels", [False, True])
def test_steps_go_on_where_a_prompt_ends(channels: bool) -> None:
    x = tensors(20, (-1.0, -0.1), channels)
    q, k, v, g = (x[n] for n in "qkvg")
    wanted, last = reference(q, k, v, g, initial_state=x["state"])
    a, b, c, d = (y[:, :, :17] for y in (q, k, v, g))
    o, state = linear_attention(a, b, c, d, initial_state=x["state"], output_final_state=True, device=EMULATED)
    parts = [o]
    for t in range(17, 20):
        a, b, c, d = (y[:, :, t : t + 1] for y in (q, k, v, g))
        o, state = linear_attention_step(a, b, c, d, state, device=EMULATED)
        parts.append(o)
    assert error(torch.cat(parts, 2), wanted) < BAR and error(state, last) < BAR


def test_attention_takes_16_bits() -> None:
    x = torch.zeros(1, 1, 4, 32)
    with pytest.raises(UnsupportedError, match="take 16-bit inputs, but q, k and v are f32"):
        attention(x, x, x, device=EMULATED)
