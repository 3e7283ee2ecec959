"""The benchmark of the tuner's model: measured on the CPU, and its table for a GPU with made-up times."""

import contextlib
import dataclasses
import importlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir.backends.nvidia.tuning.program import TUNER
from attn_mlir.backends.tuning.worker import Job

_FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(_FOLDER))
    before = torch.get_num_threads()
    yield importlib.import_module("tuning_model")
    torch.set_num_threads(before)
    for name in ("tuning_model", "tuning_ahead", "tuning_report"):
        sys.modules.pop(name)


class Clock:
    """Times of a GPU that is not there: the model's candidates in another order."""

    def __init__(self, job: Any, inputs: Any, layout: str) -> None:
        pass

    def close(self) -> None:
        pass

    def compile(self, texts: list[str], done: Callable[[], None]) -> list[str]:
        return ["" for _ in texts]

    def prepare(self, text: str) -> Callable[[], str]:
        return lambda: text

    def agree(self, results: Any, reference: Any) -> bool:
        return True

    def time(self, call: Callable[[], str], repeats: int) -> float:
        return 1.0 + len(call()) % 7 + 2.0 * ("block_kv = 48" in call())


def test_on_the_cpu(benchmark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes compile ahead. What the file holds is printed again by --read."""
    report = tmp_path / "report.json"
    given = ["--device", "cpu", "--quick", "--only", "linear attention", "--per-kernel", "5", "--processes", "2", "--json", str(report)]
    assert benchmark.main([*given, "--plot", str(tmp_path / "plot.svg")]) == 0
    (result,) = json.loads(report.read_text())["results"]
    assert result["measured"] == 5 and result["schedules"] == 15 and not result["failed"]
    assert -1 <= result["spearman"] <= 1 and result["top5"] == 1.0 and result["gain"] > 0.9
    told = capsys.readouterr().out
    assert "1 kernels: rank correlation" in told and told.startswith("kernel ")
    assert (tmp_path / "plot.svg").read_text().count("<circle") == 6
    assert benchmark.main(["--read", str(report)]) == 0
    assert capsys.readouterr().out == told


@pytest.fixture
def gpu(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark with made-up times of a GPU."""
    monkeypatch.setattr(benchmark, "tuner_of", lambda device: dataclasses.replace(TUNER, bench=Clock))
    monkeypatch.setattr(benchmark.TuneProblem, "inputs", lambda self, function: [])
    return benchmark


def test_the_table_for_a_gpu(gpu: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--device", "cuda", "--seconds", "100", "--processes", "0"]) == 0
    told = capsys.readouterr().out
    assert told.count("bf16 B4 H16 S4096 D128") == 4 + 4 and told.count("bf16 B4 H32 S4096 D64") == 4
    assert told.count("attention_bwd_2_pairs") == 4 and "12 kernels: rank correlation" in told
    assert gpu.main(["--device", "cuda", "--seconds", "0"]) == 0
    assert capsys.readouterr().err.count("not measured to the end: softmax") == 8


def test_a_run_that_is_cut_leaves_what_it_measured(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stops(search: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu.Search, "decide", stops)
    report = tmp_path / "report.json"
    with pytest.raises(KeyboardInterrupt):
        gpu.main(["--device", "cuda", "--processes", "0", "--json", str(report)])
    assert gpu.main(["--read", str(report)]) == 0
    told = capsys.readouterr()
    (line,) = [line for line in told.out.splitlines() if line.startswith("softmax")]
    assert line.split().count("48") == 2 and line.endswith("(cut)")
    assert "not measured to the end: softmax causal attention bf16 B4 H16" in told.err


def test_a_table_of_failures_says_why(gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Clock, "compile", lambda self, texts, done: ["CompileError: no such chip"] * len(texts))
    assert gpu.main(["--device", "cuda", "--processes", "0", "--only", "linear attention"]) == 1
    assert "failed: CompileError: no such chip" in capsys.readouterr().out


class Slow:
    """A process that compiles what it is told to, when it is told to."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.go = threading.Event()

    def compile(self, job: Job, text: str) -> str:
        self.seen.append(text)
        self.go.wait(30)
        return "" if text != "bad" else "CompileError: bad"

    def kill(self) -> None:
        self.go.set()

    def close(self) -> None:
        pass


def test_what_is_urgent_is_compiled_first_and_once(benchmark: Any) -> None:
    ahead_of, worker, job = importlib.import_module("tuning_ahead"), Slow(), Job("cuda")
    with contextlib.closing(ahead_of.Ahead(1, lambda: worker)) as ahead:
        first = ahead.add(job, "first")
        while not worker.seen:
            time.sleep(0.01)
        for text in ("second", "bad"):
            ahead.add(job, text)
        urgent = ahead.add(job, "bad", urgent=True)
        waiting = ahead_of.Waiting(Clock(job, [], ""), ahead, job, time.monotonic())
        assert waiting.compile(["second"], lambda: None) == [ahead_of.NO_TIME]
        worker.go.set()
        assert (first.result(30), urgent.result(30), ahead.add(job, "second").result(30)) == ("", "CompileError: bad", "")
    assert worker.seen == ["first", "bad", "second"]
