"""Every fault planted in what the AMD backend prints is caught by the emulation: as an error of its checks, or by wrong values."""

from collections.abc import Iterator

import pytest
import torch

from amd_emitter_faults import FAULTS, Fault
from amd_planting import wrong_with
from amd_tools import needs_host_clang
from attn_mlir.backends.amd import driver
from gpu_cases import CASES, Sizes, failures, formula, inputs, ours, results

pytestmark = needs_host_clang
SIZES = Sizes(1, 4, 2, 300, 430, 32, 32)


@pytest.fixture
def launchers() -> Iterator[None]:
    """Kernels of one test are not those of another."""
    yield
    for program in driver._PROGRAMS.values():
        program._launchers.clear()


def wrong_results(fault: Fault) -> dict[str, str]:
    """What is wrong with the results of the fault's attention."""
    case = CASES[fault.case]
    leaves = inputs(case, SIZES, torch.float16)
    leaves[0] *= fault.scale
    run, dense = ours(case, SIZES, device="hip-emulated"), formula(case, SIZES)
    if fault.backward:
        got, eager, exact = results(run, leaves), results(dense, leaves), results(dense, [x.double() for x in leaves])
    else:
        with torch.no_grad():
            got, eager, exact = [run(*leaves)], [dense(*leaves)], [dense(*[x.double() for x in leaves])]
    return failures(got, eager, exact, case.factor, ["o", "dq", "dk", "dv"][: len(got)])


@pytest.mark.parametrize(
    "fault", {(f.case, f.scale, f.backward): f for f in FAULTS}.values(), ids=lambda f: f"{f.case}-{f.scale}-{f.backward}"
)
def test_without_a_fault_all_is_right(fault: Fault) -> None:
    assert not wrong_results(fault)


@pytest.mark.usefixtures("launchers")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_planted_fault_is_caught(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in driver._PROGRAMS.values():
        program._launchers.clear()
    assert wrong_with(fault, monkeypatch, lambda: wrong_results(fault))
