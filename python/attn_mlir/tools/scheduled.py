"""How attn-run executes kernels of the `warp` dialect: on the inputs of the functions that they compute, in several schedules."""

import re

import numpy as np

from attn_mlir.diagnostics import DiagnosticError, at
from attn_mlir.dialects.regions import walk
from attn_mlir.mlir import ir
from attn_mlir.reference.compare import Difference, difference, worst
from attn_mlir.reference.scalar import element_type
from attn_mlir.reference.warp import arguments_of, check_registers, function_of, kernels_of, read_kernel, run_scheduled, schedules_of
from attn_mlir.tools.runs import EvaluatedRun, Runs
from attn_mlir.tools.source import Source

_TOLERANCES = {"f16": 5e-3, "bf16": 3e-2}
_BLOCKS = 2
_KERNEL = re.compile(r'^\s*"warp\.kernel"\(', re.MULTILINE)


def holds_kernel(given: Source) -> bool:
    """Whether a text has kernels whose types are bytes of memory, so that they must stay what they are."""
    return _KERNEL.search(given.text) is not None


def check_kernels(module: ir.Module, runs: Runs, tolerance: float | None) -> bool:
    """Runs the scheduled kernels of a module, prints how far they are from their functions, and says whether all are close enough.

    Raises `reference.warp.Fault` for what is wrong with a schedule, and DiagnosticError for a kernel of a function that has not been run.
    """
    right = True
    for kernel in kernels_of(module):
        name, function = (ir.StringAttr(kernel.attributes[key]).value for key in ("sym_name", "function"))
        if not function_of(kernel):
            continue
        if function not in runs.known:
            raise DiagnosticError([at(kernel.location, "error", f"nothing to compare with: there is no function @{function} to run")])
        check_registers(kernel)
        allowed = tolerance if tolerance is not None else _TOLERANCES.get(str(element_type(arguments_of(kernel)[0])), 3e-5)
        close = True
        for run in runs.known[function]:
            found, count = _differences(kernel, run)
            print(f"@{name} {run.sizes}  {'  '.join(map(str, found))}  in {count} schedules")
            close &= all(each.within(allowed) for each in found)
        print("PASS" if close else f"FAIL: an error is above {allowed:g}")
        right &= close
    return right


def _differences(kernel: ir.Operation, run: EvaluatedRun) -> tuple[list[Difference], int]:
    """The largest errors over all schedules, and how many these are."""
    given, wanted = len(run.inputs), len(run.wanted)
    own = sum(op.name == "warp.next_tile" for op in walk(kernel))
    if len(arguments_of(kernel)) - min(own, 1) != given + wanted:
        message = f"takes {len(arguments_of(kernel))} arguments; @{run.function} has {given} and {wanted} results"
        raise DiagnosticError([at(kernel.location, "error", f"'warp.kernel' {message}")])
    found = []
    chosen, read = schedules_of(kernel, seeds=1), read_kernel(kernel)
    for schedule in chosen.values():
        outputs = [np.full(each.shape, np.nan) for each in run.wanted]
        run_scheduled(read, [*run.inputs, *outputs], schedule, _BLOCKS)
        found.append([difference(*each) for each in zip(run.names, outputs, run.wanted, strict=True)])
    return worst(found), len(chosen)
