"""Every fault planted in a printed chunk scan is caught by the emulation: as an error of its checks, or by wrong values."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from amd_planting import wrong_with
from amd_scan_faults import FAULTS, FLOAT32_FAULTS, Fault
from amd_tools import needs_host_clang
from attn_mlir.backends.amd import driver
from linear_programs import Linear, error, inputs, recurrence

pytestmark = needs_host_clang
PROGRAM = Linear(k=64, v=64, chunk=0, element="f16", initial=True, final=True)
FLOAT32 = replace(PROGRAM, element="f32")
HEADS = {"q": 1, "k": 2, "v": 2, "decay": 2}


@pytest.fixture
def programs() -> Iterator[None]:
    """Kernels of one test are not those of another."""
    driver._PROGRAMS.clear()
    yield
    driver._PROGRAMS.clear()


def wrong_results(program: Linear = PROGRAM) -> list[str]:
    """Which results are wrong."""
    dtype, bar = (torch.float16, 0.002) if program.element == "f16" else (torch.float32, 1e-6)
    given = {n: torch.tensor(x).to(dtype if n in "qkv" else torch.float32) for n, x in inputs(program, 1, HEADS, 100).items()}
    got = driver.compile_derivative(program.text(), "", (), False, "hip-emulated").run(list(given.values()))
    wanted = recurrence(program, {n: x.double().numpy() for n, x in given.items()})
    return [name for (name, want), found in zip(wanted.items(), got, strict=True) if not error(found.double().numpy(), want) < bar]


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("program", [PROGRAM, FLOAT32], ids=lambda program: program.element)
def test_without_a_fault_all_is_right(program: Linear) -> None:
    assert not wrong_results(program)


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_planted_fault_is_caught(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong_with(fault, monkeypatch, wrong_results)


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("fault", FLOAT32_FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_in_what_is_of_f32_is_caught(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong_with(fault, monkeypatch, lambda: wrong_results(FLOAT32))
