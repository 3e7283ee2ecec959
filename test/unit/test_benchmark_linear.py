"""The benchmark of linear attention on the CPU runs, and checks what it times. Nothing here depends on speed."""

import argparse
import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from processes import run_python

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_quick_run_reports_every_case(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parent / "python")}
    options = ["--quick", "--rounds", "2", "--seconds", "0.0005", "--markdown", "--json", str(tmp_path / "report.json")]
    done = run_python(BENCHMARKS / "cpu_linear.py", *options, env=environment)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["results"]) == 6
    for result in report["results"]:
        assert f"| {result['case']} " in done.stdout
        assert max(result["errors"]) < 2e-5
        assert all(len(samples) == 2 for samples in result["samples_ms"].values())


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("cpu_linear")


def test_wrong_results_are_not_timed(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "linear_attention", lambda q, k, v, decay: 0 * v + 0 * (q.sum() + k.sum() + decay.sum()))
    results = benchmark.run_case(benchmark.cases(True)[0], None)
    assert [result["reason"].startswith("wrong: errors") for result in results] == [True] * 3


def test_the_formula_does_not_depend_on_chunks(benchmark: Any) -> None:
    for case in benchmark.cases(True):
        inputs = [x.double() for x in case.inputs()]
        whole, steps = (benchmark.chunked(*inputs, chunk=chunk) for chunk in (64, 1))
        assert benchmark.error(whole, steps) < 1e-12


def test_few_heads_are_also_timed_as_whole_sequences(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more threads than heads, the scan without segments takes a turn; the table shows it in its last column."""
    asked: list[int | None] = []

    def formula(q: Any, k: Any, v: Any, decay: Any, segment_size: int | None = None) -> Any:
        asked.append(segment_size)
        return benchmark.chunked(q, k, v, decay, 16)

    monkeypatch.setattr(benchmark, "linear_attention", formula)
    for threads, whole in ((4, False), (5, True)):
        monkeypatch.setattr(benchmark.torch, "get_num_threads", lambda threads=threads: threads)
        results = benchmark.run_case(benchmark.cases(True)[0], argparse.Namespace(rounds=1, seconds=0.0))
        assert [("whole" in result["ms"], benchmark.row(result, 1.0, 1.0)[-1] != "-") for result in results] == [(whole, whole)] * 3
        assert (0 in asked) is whole
