"""What every form of the API does with a traced program: its kernel, its captured values, results without keys."""

import functools
import math
from collections.abc import Hashable
from typing import Any

import torch

from attn_mlir import driver
from attn_mlir.api.inputs import Problem, check_gradients, may_carry_tangents
from attn_mlir.errors import ArgumentError, CompileError
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.captures import Scan
from attn_mlir.mlir import LOCK
from attn_mlir.runtime.capture_bounds import make_plan

_LIMIT = 512


def kernel_of(entry: Entry, device: str) -> driver.Kernel:
    """The kernel of a traced program for a device, compiled at its first use."""
    kernel = entry.kernels.get(device)
    if kernel is None:
        try:
            kernel = driver.compile(entry.traced.text, device)
        except CompileError:
            # Once more with locations, for a message that shows the user's lines.
            kernel = driver.compile(entry.traced.located, device)
        entry.kernels[device] = kernel
    return kernel


def check_captures(entry: Entry, captures: list[Any], problem: Problem, scan: Scan) -> None:
    """Checks the captured values of this call: devices, divisors, and sizes that the functions need."""
    traced = entry.traced
    by_source = {captured.source: (captured.name, value) for captured, value in zip(traced.captures, captures, strict=True)}
    for name, value in by_source.values():
        if isinstance(value, torch.Tensor):
            if value.requires_grad or may_carry_tangents():
                check_gradients({name: value})
            if value.device != problem.device:
                raise ArgumentError(f"the captured tensor `{name}` is on {value.device} but q is on {problem.device}: move it there")
    for source in traced.nonzero:
        if scan.leaves[source[1]] == 0:
            raise ArgumentError(f"the captured number `{by_source[source][0]}` is 0, and a function divides by it")
    for extent in traced.extents:
        if extent.source not in by_source:
            continue
        name, value = by_source[extent.source]
        size = problem.sizes[extent.size]
        if value.shape[extent.dim] < size:
            raise ArgumentError(
                f"the captured tensor `{name}` has size {value.shape[extent.dim]} in dimension {extent.dim}, "
                f"but `{extent.index}` indexes it with 0 to {size - 1}"
            )
    if any(captured.kind == "tensor" for captured in traced.captures):
        _reads(traced.text, tuple(captured.name for captured in traced.captures)).check(problem.sizes, captures)


class _Reads:
    """How a program reads its captured tensors, and for which sizes that was found to be in bounds."""

    def __init__(self, text: str, names: tuple[str, ...]) -> None:
        with LOCK:
            self._plan = make_plan(text, names)
        self._passed: set[Hashable] = set()

    def check(self, sizes: dict[str, int], captures: list[Any]) -> None:
        if not self._plan.reads:
            return
        problem = (sizes["B"], sizes["Hq"], sizes["Hkv"], sizes["Sq"], sizes["Skv"], sizes["D"], sizes["Dv"])
        # Floats do not reach an index but through a cast, which the plan takes for unknown.
        key = (
            problem,
            *(value.shape if isinstance(value, torch.Tensor) else value if isinstance(value, int) else None for value in captures),
        )
        if key not in self._passed:
            self._plan.check(*problem, captures)
            if len(self._passed) >= _LIMIT:
                self._passed.clear()
            self._passed.add(key)
        if self._plan.has_data_checks:
            self._plan.check_data(*problem, captures)


@functools.lru_cache(maxsize=_LIMIT)
def _reads(text: str, names: tuple[str, ...]) -> _Reads:
    with LOCK:
        return _Reads(text, names)


def empty_results(entry: Entry, problem: Problem, v: torch.Tensor, layout: str) -> list[torch.Tensor]:
    """The results where there are no rows or no keys: o is 0, lse is -inf."""
    sizes = problem.sizes
    shape = (sizes["B"], sizes["Hq"], sizes["Sq"])
    if layout == "bshd":
        o = v.new_zeros((shape[0], shape[2], shape[1], sizes["Dv"])).transpose(1, 2)
    else:
        o = v.new_zeros((*shape, sizes["Dv"]))
    fills = [-math.inf if name == "lse" else 0.0 for name in entry.traced.outputs]
    return [o, *(torch.full(shape, fill, dtype=torch.float32, device=v.device) for fill in fills)]
