"""The processes of the tuner: those that compile candidates, and the one that runs them first. No GPU is needed."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir.backends import disk_cache
from attn_mlir.backends.gpu.bench import GpuBench
from attn_mlir.backends.gpu.trial import TrialProcess, inputs_of
from attn_mlir.backends.nvidia import driver
from attn_mlir.backends.tuning.processes import shared_cache
from attn_mlir.backends.tuning.worker import Job, compile_program

# ---- compiling in other processes


def test_a_worker_tells_what_is_wrong() -> None:
    assert "CompileError" in compile_program("module { nonsense }", Job("cuda"))
    assert driver.current_target().arch.startswith("sm_")


def test_candidates_are_compiled_in_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay for further candidates, until the bench is closed."""
    steps: list[int] = []
    with contextlib.closing(GpuBench(Job("cuda"), [], "bhsd", processes=2)) as bench:
        problems = bench.compile(["module { nonsense }"] * 3, lambda: steps.append(1))
        processes = [worker._process for worker in bench._workers]
        problems += bench.compile(["module { nonsense }"], lambda: steps.append(1))
        assert [worker._process for worker in bench._workers] == processes and len(processes) == 2
    assert len(steps) == 4
    assert all("CompileError" in problem for problem in problems)
    assert all(process is not None and process.poll() is not None for process in processes)


def test_a_process_that_dies_costs_one_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with contextlib.closing(GpuBench(Job("cuda"), [], "bhsd", 1)) as bench:
        assert bench.compile(["module {}"] * 2, lambda: None) == ["the compiling process died"] * 2


def test_a_process_that_dies_tells_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last line of what it wrote to stderr: without it, nobody knows what all candidates suffer from."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho Traceback >&2; echo 'ImportError: libcuda.so' >&2; exit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with contextlib.closing(GpuBench(Job("cuda"), [], "bhsd", 1)) as bench:
        assert bench.compile(["module {}"], lambda: None) == ["the compiling process died: ImportError: libcuda.so"]


# ---- running candidates in a process of their own

_PROCESS = """
import json, sys, time
for line in sys.stdin:
    text = json.loads(line).get("text", "")
    if text == "hangs":
        time.sleep(60)
    if text == "dies":
        sys.exit("first line\\nFatal: no driver")
    print(json.dumps("" if text in ("", "ends") else text), flush=True)
"""


def test_a_candidate_that_does_not_end_is_given_up() -> None:
    trial = TrialProcess(Job("cuda"), [], "bhsd", [sys.executable, "-c", _PROCESS], seconds=4.0)
    with contextlib.closing(trial):
        assert trial.run("ends") == ""
        assert trial.run("hangs") == "does not end within 4 s"
        assert trial.run("ends") == ""
        assert trial.run("dies") == "the process that ran it died: Fatal: no driver"
        assert trial.run("CudaError: misaligned address") == "CudaError: misaligned address"
        assert trial.run("OutOfMemoryError: two at once") == ""


def test_where_no_other_process_can_run_candidates_it_is_said() -> None:
    trial = TrialProcess(Job("cuda"), [], "bhsd", [sys.executable, "-c", "raise SystemExit('no driver')"])
    with contextlib.closing(trial), pytest.warns(UserWarning, match=r"run in this process alone.*it does not start: no driver") as told:
        assert trial.run("hangs") == trial.run("hangs") == ""
    assert [each.category for each in told].count(UserWarning) == 1


def test_what_candidates_are_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floats of the same places in memory, integers of the same values, numbers."""
    given = [torch.zeros(2, 3, 4).transpose(0, 1), torch.zeros(()).expand(5, 2), torch.arange(6).view(2, 3), 0.25, 7]
    told: list[dict[str, Any]] = []
    trial = TrialProcess(Job("cuda", "bwd", ("q",), True), given, "bshd", [sys.executable, "-c", _PROCESS])
    with contextlib.closing(trial):
        monkeypatch.setattr(trial, "_ask", lambda message, seconds: told.append(json.loads(json.dumps(message))) or "")
        assert trial.run("ends") == ""
        made = inputs_of(told[0])
    assert Job.from_json(told[0]) == Job("cuda", "bwd", ("q",), True)
    assert (told[0]["function"], told[0]["wrt"], told[0]["layout"], told[1]) == ("bwd", ["q"], "bshd", {"text": "ends"})
    assert [x.stride() for x in made[:3]] == [x.stride() for x in given[:3]]  # type: ignore[union-attr]
    assert made[0].abs().sum() > 0 and torch.equal(made[2], given[2]) and made[3:] == [0.25, 7]  # type: ignore[arg-type]


def test_without_a_disk_cache_there_is_one_for_the_time_being(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_MLIR_CACHE", "off")
    with shared_cache():
        folder = disk_cache.directory()
        assert folder is not None and folder.is_dir()
    assert disk_cache.directory() is None
