"""The evaluator of scheduled kernels: the causal forward gives what attention gives, and planted faults are found in every schedule."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from attn_mlir.mlir import ir
from attn_mlir.reference import InputMaker, Sizes, difference, evaluate
from attn_mlir.reference.warp import Fault, check_registers, kernels_of, read_kernel, run_scheduled, schedules_of
from contexts import loaded_context
from warp_edits import Edit
from warp_faults import FAULTS, HARMLESS, Planted

TEXT = (Path(__file__).parents[1] / "Inputs" / "warp" / "causal-forward.mlir").read_text()
SMALL = Sizes(batch=1, heads=1, kv_heads=1, q_len=320, kv_len=320)
"""Three tiles for one thread block, of 5, 4 and 2 blocks of keys: more than the three stages, so that no other barrier orders their use."""
SCHEDULES = ("fair", "producer 0 first, copies at once", "consumer 1 first, copies late")


@pytest.fixture(scope="module")
def module() -> ir.Module:
    context = loaded_context()
    with context:
        return ir.Module.parse(TEXT)


@cache
def problem(sizes: Sizes) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs, and what attention gives."""
    context = loaded_context()
    with context:
        module = ir.Module.parse(TEXT)
        inputs = InputMaker(sizes).make(module)
        return inputs, evaluate(module, inputs)


def run(kernel: ir.Operation, sizes: Sizes, name: str, blocks: int) -> None:
    """Raises Fault where the kernel is wrong; its kind is "wrong numbers" where nothing else is."""
    inputs, wanted = problem(sizes)
    outputs = [np.full(w.shape, np.nan) for w in wanted]
    run_scheduled(read_kernel(kernel), [*inputs, *outputs], schedules_of(kernel)[name], blocks)
    worst = max(difference(n, got, want).relative for n, got, want in zip(("o", "lse"), outputs, wanted, strict=True))
    if not worst < 2e-3:
        raise Fault("wrong numbers", kernel.location, f"differs by {worst:.1e}")


@pytest.mark.parametrize("sizes", [SMALL, Sizes(2, 2, 2, 130, 77), Sizes(1, 1, 1, 1, 1), Sizes(1, 4, 2, 65, 129)], ids=str)
def test_causal_forward(module: ir.Module, sizes: Sizes) -> None:
    (kernel,) = kernels_of(module)
    for name, blocks in zip(SCHEDULES, (1, 2, 5), strict=True):
        run(kernel, sizes, name, blocks)


def test_registers_are_counted(module: ir.Module) -> None:
    """Scores, sums and weights of a thread, and what is beside them; ptxas takes 168 for the printed kernel."""
    (kernel,) = kernels_of(module)
    assert check_registers(kernel) == {"producer": 0, "consumer": 124}


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.name)
def test_planted_fault_is_found_in_every_schedule(planted: Planted) -> None:
    assert len(FAULTS) >= 36
    context = loaded_context()
    with context:
        found = verdicts(planted)
    assert found and all(kind in planted.kinds for kind in found), found


@pytest.mark.parametrize("change", HARMLESS, ids=lambda change: change.name)
def test_harmless_change_stays_right(change: Planted) -> None:
    context = loaded_context()
    with context:
        assert {*verdicts(change)} == {"nothing"}


def verdicts(planted: Planted) -> list[str]:
    """The kinds under which a fault is found, in each schedule; "nothing" where it is not."""
    module = ir.Module.parse(TEXT)
    planted.edit(Edit(kernels_of(module)[0]))
    try:
        module = ir.Module.parse(module.operation.get_asm(print_generic_op_form=True, assume_verified=True, enable_debug_info=True))
        (kernel,) = kernels_of(module)
        check_registers(kernel)
    except ir.MLIRError:
        return ["verifier"]
    except Fault as fault:
        return [fault.kind if fault.diagnostics[0].line else "without a location"]
    return [_kind(kernel, name) for name in SCHEDULES]


def _kind(kernel: ir.Operation, name: str) -> str:
    try:
        run(kernel, SMALL, name, 1)
    except Fault as fault:
        return fault.kind if fault.diagnostics[0].line else "without a location"
    return "nothing"
