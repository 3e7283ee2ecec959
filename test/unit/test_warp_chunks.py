"""Scans without rows of o as kernels of the `warp` dialect: what segments add to a state, against float64, in several orders."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from attn_mlir.backends.gpu.scheduled import scheduled
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.derivatives import derivative
from attn_mlir.backends.nvidia.warp import kernel_code, rules_for
from attn_mlir.backends.program import function_named, prepare_derivative
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.linear import LinearDefinition, trace_linear
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.warp import Fault, check_registers, kernels_of, read_kernel, run_scheduled, schedules_of
from contexts import loaded_context
from nvidia_scheduled import alone, formed
from warp_text import check_text

_SEGMENT = 512
_FACTORS = torch.ones(2, 4, 64)
"""Stands for what is captured: kernels are given others."""


@dataclass(frozen=True)
class Scan:
    """What each segment of 512 positions adds: q and k have two heads, v four, in 16 bits."""

    keys: int = 64
    values: int = 64
    decay: str = "step"
    element: str = "f16"
    mod: bool = False
    """Whether rows of v are multiplied by a captured tensor."""
    backward: str = ""
    """Of a backward pass: "states", which products of gradients of decays need in two pieces, or "gradients", those of states."""

    tanh: bool = False
    """Whether elements of k are changed before."""

    def __str__(self) -> str:
        return f"{self.keys}x{self.values} {self.decay} {self.element}{' mod' * self.mod}{' tanh' * self.tanh} {self.backward}".rstrip()


@cache
def module_of(scan: Scan) -> ir.Module:
    """The module with the kernel of the first scan of a program in segments, formed."""
    context = loaded_context()
    with context, ir.Location.unknown():
        v_mod = (lambda x, b, h, t: x * _FACTORS[b, h, t]) if scan.mod else None
        k_mod = (lambda x: x.tanh()) if scan.tanh else None
        traced = trace_linear(LinearDefinition(decay=scan.decay, k_mod=k_mod, v_mod=v_mod), Inputs(scan.element, scan.keys, scan.values))
        wanted = [f"arg{n}" for n, capture in enumerate(traced.captures, 3) if capture.kind == "tensor"]
        name, prepare = prepare_derivative("", [], segment=_SEGMENT)
        if scan.backward:
            name, prepare = derivative("bwd", ["q", "k", "v", *wanted], "sm_90a", _SEGMENT)
        module, host = scheduled(context, traced.text, name, prepare, {"arch": "sm_90a"}, pipeline.TILED_FOR_WARP, "NVIDIA")
        number = 4 if scan.backward == "gradients" else 0
        first = next(step.kernel for step in host.steps if step.kernel.endswith(f"_{number}_linear_attention"))
        return formed(alone(function_named(module, first)))


def kernel_of(scan: Scan) -> ir.Operation:
    """The formed kernel."""
    (kernel,) = kernels_of(module_of(scan))
    return kernel


def arguments(scan: Scan, length: int) -> tuple[list[Any], np.ndarray]:
    """Inputs, memory for the states, and what these are.

    The gradient of a state sums up what comes after it: q and do stand for k and v.
    """
    draw, batch, segments = np.random.default_rng(0), 2, -(-length // _SEGMENT)
    k, v = (rounded(scan, draw.standard_normal((batch, h, length, n))) for h, n in ((2, scan.keys), (4, scan.values)))
    rates = -0.3 * draw.random(4)
    steps = {"step": -0.3 * draw.random((batch, 4, length)), "head": np.broadcast_to(rates[None, :, None], (batch, 4, length))}.get(
        scan.decay
    )
    steps = np.zeros((batch, 4, length)) if steps is None else steps
    decays = {"none": [], "step": [steps], "head": [rates]}[scan.decay]
    factors = draw.random((batch, 4, length)) + 0.5 if scan.mod else np.ones((batch, 4, length))
    states = np.zeros((batch * segments, 4, scan.keys, scan.values))
    for b, h, n in np.ndindex(batch, 4, segments):
        places, state = range(n * _SEGMENT, min(length, (n + 1) * _SEGMENT)), states[b * segments + n, h]
        for t in places[::-1] if scan.backward == "gradients" else places:
            key = rounded(scan, np.tanh(k[b, h // 2, t])) if scan.tanh else k[b, h // 2, t]
            added = np.outer(key, factors[b, h, t] * v[b, h, t])
            state[:] = np.exp(steps[b, h, t]) * (state + added) if scan.backward == "gradients" else np.exp(steps[b, h, t]) * state + added
    order = [k, *decays, v] if scan.backward == "gradients" else [k, v, *decays, *[factors] * scan.mod]
    return [*order, *[v] * (scan.backward == "states"), np.full(states.shape, np.nan)], states


def rounded(scan: Scan, array: np.ndarray) -> np.ndarray:
    """Numbers that the elements of a scan can hold."""
    return torch.from_numpy(array).to({"f16": torch.float16, "bf16": torch.bfloat16}[scan.element]).double().numpy()


def worst(scan: Scan, length: int, orders: int = 2) -> float:
    """rms(error) / rms(states) in the worst of some orders. Raises Fault for a race and the like."""
    kernel, found = kernel_of(scan), []
    given, wanted = arguments(scan, length)
    read = read_kernel(kernel)
    for schedule in list(schedules_of(kernel).values())[:orders]:
        given[-1][:] = np.nan
        run_scheduled(read, given, schedule)
        found.append(np.sqrt(np.mean((given[-1] - wanted) ** 2) / np.mean(wanted**2)))
    return max(found)


@pytest.mark.parametrize(
    "scan",
    [
        Scan(),
        Scan(128, 128),
        Scan(128, 64, "head", "bf16"),
        Scan(64, 128, "none"),
        Scan(128, 64, mod=True),
        Scan(128, 128, mod=True, tanh=True),
        Scan(64, 256),
    ],
    ids=str,
)
def test_states_of_segments(scan: Scan) -> None:
    bar = 6e-4 if scan.element == "f16" else 4e-3
    assert max(worst(scan, length) for length in (1, 17, 127, 1000)) < bar


@pytest.mark.parametrize(
    "scan",
    [
        *(Scan(128, 64, "step", element, backward=backward) for element in ("f16", "bf16") for backward in ("states", "gradients")),
        Scan(256, 128, "step", "bf16", backward="states"),
        Scan(128, 64, "step", "f16", mod=True, backward="states"),
    ],
    ids=str,
)
def test_two_pieces(scan: Scan) -> None:
    """Residuals are added, too; in f16 they are scaled by 2^11, as most of them would be subnormal."""
    bar = 2e-6 if scan.element == "f16" else 2e-5
    assert max(worst(scan, length, 1) for length in (1, 17, 127, 1000)) < bar


def test_every_order_gives_the_same() -> None:
    assert worst(Scan(128, 64), 600, orders=99) < 6e-4


def test_registers_and_text() -> None:
    kernel = kernel_of(Scan(128, 128))
    check_registers(kernel)
    check_text(kernel)
    code = kernel_code(kernel, rules_for(kernel))
    assert "attn::sum_rows(" in code.source and "attn::write_rows(" in code.source and "attn::load_matrices_transposed(" in code.source
    assert code.threads == 384 and code.shared_bytes < 232448


@pytest.mark.parametrize("name", ["warp.make_rows", "warp.arrive"])
def test_a_missing_barrier_is_found(name: str) -> None:
    """Without the arrival of who adds up, or of who has read, roles wait for ever."""
    context = loaded_context()
    with context, ir.Location.unknown():
        module = ir.Module.parse(str(module_of(Scan())))
        (kernel,) = kernels_of(module)
        find_all(kernel, name)[0].erase()
        given, _ = arguments(Scan(), 600)
        with pytest.raises(Fault):
            run_scheduled(read_kernel(kernel), given, next(iter(schedules_of(kernel).values())))


def test_reading_before_the_sums_are_there_is_a_race() -> None:
    """The consumer's wait for keys is also that for sums."""
    context = loaded_context()
    with context, ir.Location.unknown():
        module = ir.Module.parse(str(module_of(Scan())))
        (kernel,) = kernels_of(module)
        consumer = find_all(kernel, "warp.role")[1]
        find_all(consumer, "warp.wait")[0].erase()
        given, _ = arguments(Scan(), 600)
        with pytest.raises(Fault):
            run_scheduled(read_kernel(kernel), given, next(iter(schedules_of(kernel).values())))
