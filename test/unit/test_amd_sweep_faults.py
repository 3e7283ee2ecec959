"""Every fault planted in a printed sweep over chunks is caught by the emulation: as an error of its checks, or by wrong values."""

from collections.abc import Iterator

import pytest
import torch

from amd_planting import wrong_with
from amd_sweep_faults import FAULTS, Fault
from amd_tools import needs_host_clang
from attn_mlir.backends.amd import driver
from linear_programs import Linear, error, inputs, recurrence

pytestmark = needs_host_clang
PROGRAM = Linear(k=64, v=64, chunk=0, element="f16", initial=True, final=True)
HEADS = {"q": 1, "k": 2, "v": 2, "decay": 2}


@pytest.fixture
def programs() -> Iterator[None]:
    """Kernels of one test are not those of another."""
    driver._PROGRAMS.clear()
    yield
    driver._PROGRAMS.clear()


def wrong_results() -> list[str]:
    """Which results are wrong."""
    given = {n: torch.tensor(x).to(torch.float16 if n in "qkv" else torch.float32) for n, x in inputs(PROGRAM, 1, HEADS, 100).items()}
    got = driver.compile_derivative(PROGRAM.text(), "", (), False, "hip-emulated").run(list(given.values()))
    wanted = recurrence(PROGRAM, {n: x.double().numpy() for n, x in given.items()})
    return [name for (name, want), found in zip(wanted.items(), got, strict=True) if not error(found.double().numpy(), want) < 0.002]


@pytest.mark.usefixtures("programs")
def test_without_a_fault_all_is_right() -> None:
    assert not wrong_results()


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_planted_fault_is_caught(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong_with(fault, monkeypatch, wrong_results)
