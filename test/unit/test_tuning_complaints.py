"""What the tuner says where candidates fail: a fault that is in all of them must not pass for a kernel with nothing to gain."""

import contextlib
import dataclasses
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir.api.attention import Attention
from attn_mlir.backends.cpu.tuning.bench import CpuBench
from attn_mlir.backends.fields import Fields
from attn_mlir.backends.gpu.bench import GpuBench
from attn_mlir.backends.nvidia.tuning.program import TUNER
from attn_mlir.backends.tuning import report as reports
from attn_mlir.backends.tuning.program import tune_module, tune_texts
from attn_mlir.backends.tuning.worker import Job
from attn_mlir.tools import attn_tune
from attn_mlir.tools.problems import ready_made
from fake_bench import FakeBench

TEXT = ready_made("softmax", "f16", 128, 128, True)
INPUTS = [torch.empty(4, 16, 4096, 128, dtype=torch.float16, device="meta")] * 3


def is_untuned(choices: Fields) -> bool:
    """The untuned schedule leaves the emitter open; the model's candidates name it."""
    return "emitter" not in choices


def tuned(bench: Any, path: Path) -> tuple[dict[str, Fields], list[reports.TuneReport], str]:
    """What was chosen, the reports, and the one warning, or ""."""
    with warnings.catch_warnings(record=True) as all_said:
        warnings.simplefilter("always")
        chosen, found = tune_module(TUNER, TEXT, Job("cuda"), INPUTS, path=str(path), bench=bench)
    said = [each for each in all_said if each.category is UserWarning]
    assert len(said) <= 1
    return chosen, found, str(said[0].message) if said else ""


def even(choices: Fields) -> float:
    return 1.0


def test_where_all_compile_run_and_agree_nothing_is_said(tmp_path: Path) -> None:
    chosen, (report,), said = tuned(FakeBench(even), tmp_path / "tune.json")
    assert chosen["attention"] and said == report.complaint == ""


def test_where_nothing_runs_the_reason_is_told_and_nothing_kept(tmp_path: Path) -> None:
    chosen, (report,), said = tuned(FakeBench(even, lambda _: "UnsupportedError: device 'cuda:0' has no tuner"), tmp_path / "tune.json")
    assert not chosen and not report.choices and report.unusable and not (tmp_path / "tune.json").exists()
    count = len(report.trials)
    assert count > 10
    assert f"tuning attention found nothing and leaves it untuned: {count} of {count} schedules failed" in said
    assert f"{count} x UnsupportedError: device 'cuda:0' has no tuner, all for the same reason" in said
    assert "attn_mlir.doctor" in said and "nothing ran; " in str(report)


def test_where_the_untuned_schedule_fails_it_is_said(tmp_path: Path) -> None:
    bench = FakeBench(even, lambda choices: "CompileError: spilled" if is_untuned(choices) else "")
    chosen, (report,), said = tuned(bench, tmp_path / "tune.json")
    assert chosen["attention"] and report.unusable
    assert said.startswith(
        "tuning attention: the untuned schedule does not run (CompileError: spilled), the others were compared with each"
    )


def test_where_most_fail_the_reasons_are_told_by_their_number(tmp_path: Path) -> None:
    def problem(choices: Fields) -> str:
        if is_untuned(choices) or choices["block_kv"] == 128:
            return ""
        return f"CompileError: {choices['block_kv']} columns" if choices["block_kv"] != 64 else "does not end within 20 s"

    chosen, (report,), said = tuned(FakeBench(even, problem), tmp_path / "tune.json")
    failed = sum(report.failed.values())
    assert chosen["attention"] and 2 * failed >= len(report.trials) and not report.unusable
    assert said.startswith(f"tuning attention could compare few schedules: {failed} of {len(report.trials)} schedules failed: ")
    (entry,) = json.loads((tmp_path / "tune.json").read_text())["entries"].values()
    assert entry["failed"] == failed and sum(entry["reasons"].values()) == failed


def test_many_reasons_are_counted() -> None:
    trials = [reports.Trial({}, 1.0, problem=f"reason {number}") for number in range(5)]
    said = reports.TuneReport("attention", {}, trials=trials).complaint
    assert "1 x reason 0; 1 x reason 1; 1 x reason 2; 2 further reasons. " in said and "same reason" not in said


_REASON = "UnsupportedError: device 'cuda:0' has no tuner"
_REFUSES = f"""
import json, sys
for line in sys.stdin:
    print(json.dumps({_REASON!r} if "text" in json.loads(line) else ""), flush=True)
"""
"""A process that takes the inputs and refuses each program."""


def test_a_process_that_refuses_every_candidate_is_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As when the process that runs candidates first was given another device than the tuner's: no candidate was ever run."""

    class Bench(GpuBench):
        def compile(self, texts: Sequence[str], done: Callable[[], None]) -> list[str]:
            return [""] * len(texts)

    bench = Bench(Job("cuda"), [], "bhsd")
    monkeypatch.setattr(bench._trial, "_command", [sys.executable, "-c", _REFUSES])
    with contextlib.closing(bench):
        chosen, _, said = tuned(bench, tmp_path / "tune.json")
    assert not chosen
    assert f"x RuntimeError: in a process of its own: {_REASON}, all for the same reason" in said


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates do not compile on the CPU."""
    monkeypatch.setattr(CpuBench, "compile", lambda self, texts, done: ["CompileError: no such instruction"] * len(texts))


def test_a_user_is_told_once_and_gets_the_untuned_result(broken: None) -> None:
    q = torch.randn(1, 1, 20, 16)
    attention = Attention(tune=True)
    with pytest.warns(UserWarning, match=r"tuning attention found nothing.*no such instruction, all for the same reason") as said:
        results = [attention(q, q, q) for _ in range(3)]
    assert len(said) == 1
    torch.testing.assert_close(results[2], Attention()(q, q, q))


def test_texts_stay_where_nothing_runs() -> None:
    tuner = dataclasses.replace(TUNER, bench=lambda *_: Closing(even, lambda _: "no"), refusal=lambda _: "", busy=lambda _: False)
    with pytest.warns(UserWarning, match="found nothing"):
        assert tune_texts(tuner, (TEXT, TEXT), Job("cuda"), INPUTS, "bhsd", "", True) == (TEXT, TEXT)


class Closing(FakeBench):
    """A fake that can be closed, as a backend's bench is."""

    def close(self) -> None:
        pass


SIZES = ("--q-len", "40", "--heads", "1", "--dim", "16", "--top", "3")


def test_the_command_fails_where_nothing_runs(broken: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "plot.svg"
    assert attn_tune.main(["softmax", *SIZES, "--plot", str(plot)]) == 1
    told = capsys.readouterr().out
    assert "skipped: " in told and "warning: tuning attention found nothing and leaves it untuned" in told and "chosen" not in told
    assert plot.exists()


def test_the_command_fails_where_the_untuned_schedule_does(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    usual = CpuBench.compile

    def compiled(self: CpuBench, texts: Sequence[str], done: Callable[[], None]) -> list[str]:
        return [
            "CompileError: spilled" if number == 0 and len(texts) > 2 else problem
            for number, problem in enumerate(usual(self, texts, done))
        ]

    monkeypatch.setattr(CpuBench, "compile", compiled)
    assert attn_tune.main(["softmax", *SIZES]) == 1
    told = capsys.readouterr().out
    assert "warning: tuning attention: the untuned schedule does not run (CompileError: spilled)" in told and "chosen: " in told
