"""Forms kernels of the `warp` dialect from programs of test/Inputs, and runs them in the evaluator against float64."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.reference import InputMaker, Sizes, difference, evaluate
from attn_mlir.reference.warp import Fault, check_registers, kernels_of, read_kernel, run_scheduled, schedules_of
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.schedules import Schedule
from attn_mlir.registry import registry
from contexts import loaded_context

INPUTS = Path(__file__).parents[1] / "Inputs"
TILES = (
    "attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,"
    "attn-tile{{block-q={q} block-kv={kv} whole=true}},canonicalize,cse,gpu-narrow-bounds,gpu-lazy-rescale,"
    "gpu-narrow-comparisons,gpu-fold-scale,gpu-exp2,canonicalize,cse,tile-schedule{{target=nvidia}}"
)
"""To tiles as Hopper's pipeline has them, with small blocks."""
TOLERANCES = {"f16": 5e-3, "bf16": 3e-2}
"""Of weights that are rounded, as attn-run has them."""


@dataclass(frozen=True)
class Program:
    """A program: a file of test/Inputs whose q, k, v and o are of f16, and blocks of queries and keys."""

    name: str
    q: int = 128
    kv: int = 64
    element: str = "f16"

    def __str__(self) -> str:
        return f"{self.name} {self.q}x{self.kv}" + ("" if self.element == "f16" else f" {self.element}")

    def text(self) -> str:
        """Its stage 0, in 16 bits."""
        text = (INPUTS / f"{self.name}.mlir").read_text()
        return text.replace("tensor<?x?x?x64xf32>", f"tensor<?x?x?x64x{self.element}>").replace("x32xf32>", f"x64x{self.element}>")


@cache
def formed(program: Program, passes: str) -> ir.Module:
    """The program behind passes that follow `tile-schedule`."""
    context = loaded_context()
    with context:
        module = ir.Module.parse(program.text())
        Pipeline.parse(f"{TILES.format(q=program.q, kv=program.kv)},{passes}", registry()).run(module)
    return module


@cache
def kernel_of(program: Program, passes: str) -> tuple[dict[str, Schedule], Inst]:
    """The schedules of the formed kernel, whose registers are enough, and the kernel as it runs."""
    (kernel,) = kernels_of(formed(program, passes))
    check_registers(kernel)
    return schedules_of(kernel), read_kernel(kernel)


@cache
def problem(program: Program, sizes: Sizes) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs, and what the program gives in float64."""
    context = loaded_context()
    with context:
        module = ir.Module.parse(program.text())
        inputs = InputMaker(sizes).make(module)
        return inputs, evaluate(module, inputs)


def check(program: Program, passes: str, sizes: Sizes, names: tuple[str, ...] = (), blocks: int = 2) -> None:
    """Runs the formed kernel in schedules of these names, all without names; AssertionError where numbers are wrong."""
    known, kernel = kernel_of(program, passes)
    inputs, wanted = problem(program, sizes)
    for name in names or known:
        outputs = [np.full(each.shape, np.nan) for each in wanted]
        run_scheduled(kernel, [*inputs, *outputs], known[name], blocks)
        for n, (got, want) in enumerate(zip(outputs, wanted, strict=True)):
            found = difference(str(n), got, want).relative
            assert found < TOLERANCES[program.element], f"result {n} differs by {found:.1e} in schedule '{name}'"


@cache
def growing(program: Program, sizes: Sizes) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The same where scores grow along the keys, more so for later queries: maxima of rows move all the time."""
    context = loaded_context()
    with context:
        module = ir.Module.parse(program.text())
        q, k, *others = InputMaker(sizes).make(module)
        q = q * np.linspace(0.1, 4, q.shape[2])[:, None]
        k = k * np.linspace(0.1, 8, k.shape[2])[:, None]
        inputs = [q.astype(np.float16).astype(np.float64), k.astype(np.float16).astype(np.float64), *others]
        return inputs, evaluate(module, inputs)


def missed(
    text: str,
    program: Program,
    sizes: Sizes = Sizes(1, 1, 1, 320, 320),  # noqa: B008
    blocks: int = 1,
    given: Callable[[Program, Sizes], tuple[list[np.ndarray], list[np.ndarray]]] = problem,
) -> bool:
    """Whether a kernel that lacks something is found out: as a fault, or by its numbers."""
    inputs, wanted = given(program, sizes)
    context = loaded_context()
    with context:
        module = ir.Module.parse(text)
        (kernel,) = kernels_of(module)
        read = read_kernel(kernel)
        for schedule in schedules_of(kernel).values():
            outputs = [np.full(each.shape, np.nan) for each in wanted]
            try:
                run_scheduled(read, [*inputs, *outputs], schedule, blocks)
            except Fault:
                return True
            if not all(
                difference("o", got, want).relative < TOLERANCES[program.element] for got, want in zip(outputs, wanted, strict=True)
            ):
                return True
    return False
