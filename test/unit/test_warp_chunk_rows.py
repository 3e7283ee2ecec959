"""Scans that give rows of o as kernels of the `warp` dialect, against float64, in several orders; faults that must be found."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.scheduled import scheduled
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.derivatives import derivative
from attn_mlir.backends.nvidia.target import TARGETS
from attn_mlir.backends.nvidia.warp import kernel_code, rules_for
from attn_mlir.backends.nvidia.warp.emitter import emit
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.linear import LinearDefinition, trace_linear
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.warp import Fault, check_registers, kernels_of, read_kernel, run_scheduled, schedules_of
from contexts import loaded_context
from generated_code import complaints
from nvidia_scheduled import alone, formed
from warp_text import check_text

_BARS = {"f16": 1.5e-3, "bf16": 1e-2}
_FACTORS = torch.ones(2, 4, 64)
"""Stands for what is captured: kernels are given others."""


_ENDS = (1, 1, 65, 193, 210, 338)


@dataclass(frozen=True)
class Scan:
    """Rows of o of a forward pass, q and k with two heads, v with four, or rows of dv of a backward pass."""

    keys: int = 64
    values: int = 64
    decay: str = "step"
    element: str = "f16"
    initial: bool = False
    back: str = ""
    """Rows of "q", "k" or "v", whose gradients these are; those of o without."""
    mod: bool = False
    """Whether rows of v are multiplied by a captured tensor, and elements of k changed, before."""

    ends: tuple[int, ...] = ()
    """Where sequences end that lie side by side."""

    def __str__(self) -> str:
        words = [f"{self.keys}x{self.values}", self.decay, self.element, "initial" * self.initial, self.back, "mod" * self.mod]
        words.append("side by side" * bool(self.ends))
        return " ".join(filter(None, words))


def tiled(scan: Scan) -> ir.Module:
    """A module with the scan as a kernel of tiles."""
    context = loaded_context()
    with context, ir.Location.unknown():
        v_mod = (lambda x, b, h, t: x * _FACTORS[b, h, t]) if scan.mod else None
        k_mod = (lambda x: x.tanh()) if scan.mod else None
        offsets = "i32" if scan.ends else ""
        states = scan.initial
        mods = {"k_mod": k_mod, "v_mod": v_mod}
        definition = LinearDefinition(decay=scan.decay, offsets=offsets, initial_state=states, final_state=states, **mods)
        inputs = Inputs(scan.element, scan.keys, scan.values)
        traced = trace_linear(definition, inputs)
        name, prepare = derivative("bwd", [scan.back], "sm_90a", 0) if scan.back else prepare_derivative("", [], segment=0)
        module, _ = scheduled(context, traced.text, name, prepare, {"arch": "sm_90a"}, pipeline.TILED_FOR_WARP, "NVIDIA")
        functions = [op for op in find_all(module.operation, "func.func") if "tile.kernel" in op.attributes]
        (function,) = [op for op in functions if attributes.grid_kind(op) == "chunks"]
        function.attributes[attributes.SCHEDULE] = attributes.write({"arch": "sm_90a", "emitter": "warp"})
        return alone(function)


@cache
def module_of(scan: Scan) -> ir.Module:
    """The module with the kernel, formed."""
    return formed(tiled(scan))


def kernel_of(scan: Scan) -> ir.Operation:
    """The formed kernel."""
    (kernel,) = kernels_of(module_of(scan))
    return kernel


def arguments(scan: Scan, length: int) -> tuple[list[Any], list[np.ndarray]]:
    """Inputs, memory for results, and what these are."""
    draw, batch = np.random.default_rng(length), 1 if scan.ends else 2
    begins, count = (0, *scan.ends[:-1]), len(scan.ends) or batch
    q, k = (rounded(scan, draw.standard_normal((batch, 2, length, scan.keys))) for _ in range(2))
    v = rounded(scan, draw.standard_normal((batch, 4, length, scan.values)))
    rates = -0.3 * draw.random(4)
    steps = {"step": -0.3 * draw.random((batch, 4, length)), "head": np.broadcast_to(rates[None, :, None], (batch, 4, length))}.get(
        scan.decay, np.zeros((batch, 4, length))
    )
    decays = {"none": [], "step": [steps], "head": [rates]}[scan.decay]
    states = draw.standard_normal((count, 4, scan.keys, scan.values)) if scan.initial else np.zeros((count, 4, scan.keys, scan.values))
    given = [q, k, v, *decays, *[states.copy()] * scan.initial, *[np.array([0, *scan.ends])] * bool(scan.ends)]
    factors = draw.random((batch, 4, length)) + 0.5 if scan.mod else np.ones((batch, 4, length))
    given += [factors] * scan.mod
    do = rounded(scan, draw.standard_normal(v.shape))
    o, keys = np.zeros(v.shape if scan.back in ("", "v") else (batch, 4, length, scan.keys)), rounded(scan, np.tanh(k)) if scan.mod else k
    for n, h in np.ndindex(count, 4):
        b, places, state = (0, range(begins[n], scan.ends[n]), states[n, h]) if scan.ends else (n, range(length), states[n, h])
        for t in places[:: -1 if scan.back in ("k", "v") else 1]:
            if scan.back in ("k", "v"):  # dS = q do + S', dv = k dS, dk = v dS
                state += np.outer(q[b, h // 2, t], do[b, h, t])
                o[b, h, t] = keys[b, h // 2, t] @ state if scan.back == "v" else state @ v[b, h, t]
                state *= np.exp(steps[b, h, t])
            else:
                state[:] = np.exp(steps[b, h, t]) * state + np.outer(keys[b, h // 2, t], factors[b, h, t] * v[b, h, t])
                o[b, h, t] = state @ do[b, h, t] if scan.back else q[b, h // 2, t] @ state
    if scan.back:
        given = [*given, v, do] if scan.back == "v" else [k if scan.back == "q" else q, *given[2:], do]
    wanted = [o, *[states] * scan.initial]
    return [*given, *(np.full(each.shape, np.nan) for each in wanted)], wanted


def rounded(scan: Scan, array: np.ndarray) -> np.ndarray:
    """Numbers that the elements of a scan can hold."""
    return torch.from_numpy(array).to({"f16": torch.float16, "bf16": torch.bfloat16}[scan.element]).double().numpy()


def worst(scan: Scan, length: int, orders: int = 2) -> float:
    """rms(error) / rms(result) in the worst of some orders. Raises Fault for a race and the like."""
    kernel, found = kernel_of(scan), []
    given, wanted = arguments(scan, length)
    read = read_kernel(kernel)
    for schedule in list(schedules_of(kernel).values())[:orders]:
        for made in given[-len(wanted) :]:
            made[:] = np.nan
        run_scheduled(read, given, schedule)
        found += [
            np.sqrt(np.mean((made - right) ** 2) / np.mean(right**2)) for made, right in zip(given[-len(wanted) :], wanted, strict=True)
        ]
    return max(found)


@pytest.mark.parametrize(
    "scan",
    [
        Scan(),
        Scan(128, 128),
        Scan(128, 64, "head", "bf16"),
        Scan(64, 128, "none"),
        Scan(64, 64, initial=True),
        Scan(128, 128, "step", "bf16", initial=True),
        Scan(64, 256),
        Scan(128, 128, back="v"),
        Scan(64, 64, "head", "bf16", back="v"),
        Scan(128, 64, mod=True),
        Scan(256, 64, "step", "bf16"),
        Scan(64, 64, initial=True, ends=_ENDS),
        Scan(128, 64, mod=True, ends=_ENDS),
        Scan(128, 128, "step", "bf16", ends=_ENDS),
        Scan(64, 128, "head", back="v", ends=_ENDS),
        Scan(64, 128, back="q"),
        Scan(128, 64, "head", "bf16", back="k"),
        Scan(128, 128, back="k", ends=_ENDS),
    ],
    ids=str,
)
def test_rows(scan: Scan) -> None:
    assert max(worst(scan, length) for length in (scan.ends[-1:] or (1, 17, 127, 300))) < _BARS[scan.element]


def test_every_order_gives_the_same() -> None:
    assert worst(Scan(64, 128), 200, orders=99) < _BARS["f16"]


@pytest.mark.parametrize("scan", [Scan(), Scan(128, 128, ends=_ENDS), Scan(256, 128, "step", "bf16")], ids=str)
def test_registers_and_text(scan: Scan) -> None:
    kernel = kernel_of(scan)
    check_registers(kernel)
    check_text(kernel)
    code = kernel_code(kernel, rules_for(kernel))
    assert "attn::store_matrices_transposed(" in code.source and code.shared_bytes < 232448
    assert not complaints(code)


@pytest.mark.parametrize("name", ["warp.make_rows", "warp.arrive", "warp.store_wait", "warp.named_sync", "warp.fence_async", "warp.wait"])
def test_what_is_missing_is_found(name: str) -> None:
    """Each barrier, fence and wait of a consumer is needed: without it there is a race, or roles wait for ever."""
    context = loaded_context()
    with context, ir.Location.unknown():
        count = len(find_all(consumer_of(kernels_of(module_of(Scan(64, 128)))[0]), name)) or 1
        count -= name == "warp.store_wait"  # the last one is for the end of a thread block, which the evaluator has not
        for number in range(count):
            module = ir.Module.parse(str(module_of(Scan(64, 128))))
            (kernel,) = kernels_of(module)
            found = find_all(kernel if name == "warp.make_rows" else consumer_of(kernel), name)
            found[number].erase()
            with pytest.raises(Fault):
                run_in_all_orders(kernel)


@pytest.mark.parametrize("stages", [1, 8], ids=["one", "more than fit"])
def test_stages_with_which_roles_would_wait_for_ever_are_refused(stages: int) -> None:
    """Rows leave through the memory of v, which is given back a chunk later; what does not fit leaves one stage."""
    module = tiled(Scan())
    with module.context, ir.Location.unknown():
        (function,) = find_all(module.operation, "func.func")
        function.attributes[attributes.CHOICES] = attributes.write({"stages": stages})
        with pytest.raises(UnsupportedError, match="rows leave through the memory of v"):
            emit(function, TARGETS["sm_90a"])


def run_in_all_orders(kernel: ir.Operation) -> None:
    """Raises Fault for what some order finds."""
    given, _ = arguments(Scan(64, 128), 200)
    for schedule in schedules_of(kernel).values():
        run_scheduled(read_kernel(kernel), given, schedule)


def consumer_of(kernel: ir.Operation) -> ir.Operation:
    """The role that multiplies."""
    return find_all(kernel, "warp.role")[1]
