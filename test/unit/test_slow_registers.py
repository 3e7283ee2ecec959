"""Kernels whose registers do not suffice say so once nvcc has made them: once, with the user's line; or are refused."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir.api.describe import slow_of
from attn_mlir.backends.nvidia import driver as nvidia
from attn_mlir.backends.nvidia import program as nvidia_program
from attn_mlir.backends.nvidia.compile import Cubin
from attn_mlir.errors import PerformanceWarning, UnsupportedError
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.program import Traced
from attn_mlir.runtime import programs
from attn_mlir.tools import attn_translate
from generated_code import traced
from machine_code import needs_nvcc

WIDTH, HEIGHT = 32, 32


def neighbourhood(b: Any, h: Any, q: Any, k: Any) -> Any:
    columns = abs((q % WIDTH).clamp(3, WIDTH - 4) - k % WIDTH) <= 3
    return columns & (abs((q // WIDTH).clamp(3, HEIGHT - 4) - k // WIDTH) <= 3)


def constant(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q // 48 == k // 48) & (q >= k)


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels are not compiled, and loading one does nothing."""
    monkeypatch.setattr(nvidia, "_PROGRAMS", {})
    monkeypatch.setattr(nvidia_program, "CudaLauncher", lambda *arguments: object())
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(tmp_path))
    monkeypatch.delenv("ATTN_MLIR_STRICT", raising=False)
    compiled(monkeypatch, 2968)


def compiled(monkeypatch: pytest.MonkeyPatch, spills: int) -> None:
    """What nvcc makes of every kernel."""
    monkeypatch.setattr(nvidia_program, "compile_all", lambda codes: [Cubin(b"x", 128, spills) for _ in codes])


def fresh(form: Traced) -> programs.Program:
    """A program that no other test has compiled."""
    found = programs.find(programs.register(form))
    return dataclasses.replace(found, kernels={}, derivatives={}, slow={}, located=form.located)


def load(program: Any, device: int = 0) -> None:
    """What the first launch of each kernel does."""
    made = getattr(program, "program", program)
    for name in made.units:
        made._load(name, torch.device("cuda", device), device)


def test_told_once_with_the_line() -> None:
    program = fresh(traced(neighbourhood))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel = program.kernel("cuda")  # nvcc has not run
    with pytest.warns(PerformanceWarning) as told:
        load(kernel)
    (message,) = [str(each.message) for each in told]
    assert "attention is slower than it could be: its registers do not suffice, 2968 bytes of spills" in message
    assert "the integer divisions in the mask" in message and "test_slow_registers.py:27" in message, message
    assert "ATTN_MLIR_STRICT=1" in message and told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(kernel)
        load(kernel, 1)
        program.kernel("cuda")
    assert "slow: its registers do not suffice" in kernel.explain()
    entry = Entry(traced(neighbourhood))
    entry.programs[0] = program
    assert slow_of(entry).startswith("slow: attention: its registers do not suffice, 2968 bytes")


def test_kernels_found_on_disk_tell_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    first = fresh(traced(constant))
    with pytest.warns(PerformanceWarning, match="the integer divisions in the mask") as told:
        load(first.kernel("cuda"))
    assert "at run time" not in str(told[0].message)
    monkeypatch.setattr(nvidia, "_PROGRAMS", {})  # as in another process
    monkeypatch.setattr(nvidia_program, "compile_all", lambda codes: pytest.fail("it is on disk"))
    with pytest.warns(PerformanceWarning, match="its registers do not suffice"):
        load(fresh(traced(constant)).kernel("cuda"))


def test_derivatives() -> None:
    program = fresh(traced())
    with pytest.warns(PerformanceWarning) as told:
        load(program.derivative("cuda", "bwd", "q+k+v"))
    messages = [str(each.message) for each in told]
    assert len(messages) == len(set(messages)) == 3 and all("divisions" not in each for each in messages)


def test_programs_for_longer_sequences_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel: Any = fresh(traced(neighbourhood)).kernel("cuda")
    longer: Any = nvidia.compile_program(traced(neighbourhood).text, "attention", more={"length": 1 << 15})
    monkeypatch.setattr(nvidia_program.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(longer, "run", lambda inputs, layout: load(longer) or [])
    kernel.program._longer, kernel.program.compile_longer = 1, lambda keys: longer
    q = torch.zeros(1, 1, 2, 64)
    with pytest.warns(PerformanceWarning, match="its registers do not suffice"):
        kernel.program.run([q, q, q], "bhsd")


def test_programs_for_widened_keys_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel: Any = fresh(traced(neighbourhood)).kernel("cuda")
    wide: Any = nvidia.compile_program(traced(neighbourhood).text, "attention", more={"length": 1 << 15})
    monkeypatch.setattr(nvidia_program.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(nvidia_program.widened_ahead, "pays", lambda inputs: True)
    monkeypatch.setattr(wide, "run", lambda inputs, layout: load(wide) or [])
    monkeypatch.setattr(kernel.program, "_widened", list)
    kernel.program._longer, kernel.program.compile_wide = 0, lambda: wide
    q = torch.zeros(1, 1, 2, 64)
    with pytest.warns(PerformanceWarning, match="its registers do not suffice"):
        kernel.program.run([q, q, q], "bhsd")


def test_few_spills_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(monkeypatch, 128 * 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(fresh(traced(neighbourhood)).kernel("cuda"))


def test_strict_mode_refuses_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_MLIR_STRICT", "1")
    program = fresh(traced(neighbourhood))
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=r"2968 bytes of spills.*test_slow_registers.py:27"):
            load(program.kernel("cuda"))


@needs_nvcc
def test_what_nvcc_says(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, report = tmp_path / "in.mlir", tmp_path / "report"
    path.write_text(traced(neighbourhood).located)
    arguments = [str(path), "--to", "cubin", "--report", "-o", str(report)]
    assert attn_translate.main(arguments) == 0
    told = capsys.readouterr().err
    assert "remark: attention is slower than it could be: its registers do not suffice" in told and "test_slow_registers.py:27" in told
    assert "  slow           its registers do not suffice" in report.read_text()
    monkeypatch.setenv("ATTN_MLIR_STRICT", "1")
    assert attn_translate.main(arguments) == 1 and "error: attention is slower" in capsys.readouterr().err
