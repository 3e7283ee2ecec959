"""Scans with products for gradients of decays as kernels of the `warp` dialect, against float64, in several orders."""

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
from attn_mlir.backends.nvidia.warp import kernel_code, rules_for
from attn_mlir.backends.program import function_named
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.linear import LinearDefinition, trace_linear
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.warp import Fault, kernels_of, read_kernel, run_scheduled, schedules_of
from contexts import loaded_context
from generated_code import complaints
from nvidia_scheduled import alone, formed
from warp_text import check_text

_INTERVAL = 512
_BARS = {"f16": (6e-4, 6e-4, 1e-5), "bf16": (4e-3, 1e-4, 4e-5)}
"""rms(error) / rms(result) of rows, which are rounded, of products, whose weights in bf16 are two pieces, and of states."""


@dataclass(frozen=True)
class Scan:
    """Rows of dq, or of dk, with what gradients of decays need: sums of o x without own pairs, and states. All have two heads, v four."""

    keys: int = 64
    values: int = 64
    element: str = "f16"
    key: bool = False

    def __str__(self) -> str:
        return f"{self.keys}x{self.values} {self.element} {'dk' if self.key else 'dq'}"


@cache
def module_of(scan: Scan) -> ir.Module:
    """The module with the kernel, formed."""
    context = loaded_context()
    with context, ir.Location.unknown():
        traced = trace_linear(LinearDefinition(decay="step"), Inputs(scan.element, scan.keys, scan.values))
        name, prepare = derivative("bwd", ["q", "k", "v", "arg3"], "sm_90a", 0)
        module, host = scheduled(context, traced.text, name, prepare, {"arch": "sm_90a"}, pipeline.TILED_FOR_WARP, "NVIDIA")
        wanted = next(step.kernel for step in host.steps if step.kernel.endswith(f"_{int(scan.key)}_linear_attention"))
        function = function_named(module, wanted)
        function.attributes[attributes.SCHEDULE] = attributes.write({"arch": "sm_90a", "emitter": "warp"})
        return formed(alone(function))


def kernel_of(scan: Scan) -> ir.Operation:
    """The formed kernel."""
    (kernel,) = kernels_of(module_of(scan))
    return kernel


def arguments(scan: Scan, length: int) -> tuple[list[Any], list[np.ndarray]]:
    """Inputs, memory for rows, products and states, and what these are."""
    draw, batch, count = np.random.default_rng(length), 2, -(-length // _INTERVAL)
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[scan.element]

    def drawn(heads: int, columns: int) -> np.ndarray:
        return torch.from_numpy(draw.standard_normal((batch, heads, length, columns))).to(dtype).double().numpy()

    q, k, v, do = drawn(2, scan.keys), drawn(2, scan.keys), drawn(4, scan.values), drawn(4, scan.values)
    steps = -0.3 * draw.random((batch, 4, length))
    rows, products = np.zeros((batch, 4, length, scan.keys)), np.zeros((batch, 4, length))
    states = np.zeros((batch, 4, count, scan.keys, scan.values))
    for b, h in np.ndindex(batch, 4):
        state, (mine, other) = np.zeros((scan.keys, scan.values)), (k, q) if scan.key else (q, k)
        for t in range(length)[:: -1 if scan.key else 1]:
            own = np.exp(steps[b, h, t]) if not scan.key else 1.0
            if not scan.key and t % _INTERVAL == 0:
                states[b, h, t // _INTERVAL] = state
            by = do[b, h, t] if not scan.key else v[b, h, t]
            state = state * own
            rows[b, h, t] = state @ by
            products[b, h, t] = rows[b, h, t] @ mine[b, h // 2, t]
            entering = np.outer(other[b, h // 2, t], v[b, h, t] if not scan.key else do[b, h, t])
            rows[b, h, t] += entering @ by
            state = state + entering
            if scan.key:
                state = state * np.exp(steps[b, h, t])
                if t % _INTERVAL == 0:
                    states[b, h, t // _INTERVAL] = state
    wanted = [rows, products, states.reshape(batch, 4, count * scan.keys, scan.values)]
    made: list[Any] = [np.full(each.shape, np.nan) for each in wanted]
    if scan.keys > 128:  # each program has its own columns of rows, and its own slot of numbers
        made[1] = np.full((scan.keys // 128, *products.shape), np.nan)
    return [q, k, v, steps, do, *made], wanted


def worst(scan: Scan, length: int, orders: int = 2) -> list[float]:
    """rms(error) / rms(result) of each result in the worst of some orders. Raises Fault for a race and the like."""
    kernel, found = kernel_of(scan), []
    given, wanted = arguments(scan, length)
    read = read_kernel(kernel)
    for schedule in list(schedules_of(kernel).values())[:orders]:
        for made in given[-len(wanted) :]:
            made[:] = np.nan
        run_scheduled(read, given, schedule)
        rows, products, states = given[-len(wanted) :]
        pairs = zip([rows, products.sum(0) if products.ndim > 3 else products, states], wanted, strict=True)
        found.append([np.sqrt(np.mean((made - right) ** 2) / (np.mean(right**2) + 1e-30)) for made, right in pairs])
    return [max(each) for each in zip(*found, strict=True)]


@pytest.mark.parametrize(
    "scan",
    [Scan(), Scan(key=True), Scan(128, 64, "bf16"), Scan(64, 128, "f16", key=True), Scan(128, 128, "bf16", key=True), Scan(256, 64)],
    ids=str,
)
def test_products(scan: Scan) -> None:
    of_rows, of_products, exact = _BARS[scan.element]
    for length in (1, 17, 127, 600):
        rows, products, states = worst(scan, length)
        assert rows < of_rows and states < exact
        assert products < of_products or length == 1  # which is 0 then


@pytest.mark.parametrize("scan", [Scan(), Scan(128, 128, "bf16", key=True)], ids=str)
def test_text(scan: Scan) -> None:
    kernel = kernel_of(scan)
    check_text(kernel)
    code = kernel_code(kernel, rules_for(kernel))
    assert "attn::sum_columns(" in code.source and "attn::write_diagonal<" in code.source and not complaints(code)


@pytest.mark.parametrize("name", ["warp.named_sync", "warp.sum_columns", "warp.write_diagonal"])
def test_what_is_missing_is_found(name: str) -> None:
    """Warpgroups meet before weights, sums and diagonals of others are read; without who writes them nothing is there."""
    wide = Scan(128, 64)
    context = loaded_context()
    with context, ir.Location.unknown():
        for number in range(len(find_all(kernel_of(wide), name))):
            module = ir.Module.parse(str(module_of(wide)))
            (kernel,) = kernels_of(module)
            find_all(kernel, name)[number].erase()
            with pytest.raises(Fault):
                run_in_all_orders(kernel, wide)


def run_in_all_orders(kernel: ir.Operation, scan: Scan) -> None:
    """Raises Fault for what some order finds."""
    given, _ = arguments(scan, 200)
    for schedule in schedules_of(kernel).values():
        run_scheduled(read_kernel(kernel), given, schedule)
