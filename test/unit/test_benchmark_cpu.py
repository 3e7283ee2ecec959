"""The CPU benchmark runs, checks what it times, and reports what it cannot time. Nothing here depends on speed."""

import dataclasses
import importlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from processes import run_python

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
QUICK = ("--quick", "--rounds", "2", "--seconds", "0.0005")


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parent / "python"), **environment}
    return run_python(BENCHMARKS / "cpu_attention.py", *QUICK, *options, env=environment)


def test_quick_run_reports_every_case(tmp_path: Path) -> None:
    done = run("--no-flex", "--markdown", "--json", str(tmp_path / "report.json"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("## Measurements\n\n- ")
    report = json.loads((tmp_path / "report.json").read_text())
    assert {"date", "commit", "cpu", "threads", "torch"} <= report["machine"].keys()
    assert len(report["results"]) == 10
    for result in report["results"]:
        assert f"| {result['case']} " in done.stdout
        assert result["systems"]["attn_mlir"]["error"] <= result["bound"]
        timed = [name for name, system in result["systems"].items() if "ms" in system]
        assert "attn_mlir" in timed and len(timed) == 2
        assert all(len(result["systems"][name]["samples_ms"]) == 2 for name in timed)
    assert "- FlexAttention: left out of this run" in done.stdout


def test_without_a_compiler_flex_says_so(tmp_path: Path) -> None:
    done = run("--only", "full B1 H4", "--json", str(tmp_path / "report.json"), CXX="no-such-compiler")
    assert done.returncode == 0, done.stderr
    (result,) = json.loads((tmp_path / "report.json").read_text())["results"]
    assert result["systems"]["flex"].keys() == {"how", "reason"}
    assert "FlexAttention: fails: " in done.stdout
    assert result["ratio"] is not None


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("cpu_attention")


@pytest.mark.parametrize("wrong", ["zeros", "nan", "shape"])
def test_wrong_results_are_not_timed(benchmark: Any, wrong: str) -> None:
    reference = torch.randn(1, 2, 3, 4, dtype=torch.float64)
    some_nan = reference.float().index_fill(3, torch.tensor([1]), torch.nan)
    result = {"zeros": torch.zeros(1, 2, 3, 4), "nan": some_nan, "shape": reference[..., :2]}
    assert "reason" not in benchmark.prepare(lambda: reference.float(), reference, 1e-6)
    assert benchmark.prepare(lambda: result[wrong], reference, 1e-6)["reason"].startswith("wrong: error ")


def test_bound_follows_the_formula_at_the_same_precision(benchmark: Any) -> None:
    case = benchmark.Case("main", "softcap", 1, 1, 1, 4, 4, 4, torch.bfloat16)
    reference = torch.full((4,), 2.0, dtype=torch.float64)
    assert benchmark.error_bound(case, reference, reference + 0.01) == pytest.approx(3 * 0.01 + 2 * 2**-8)
    assert benchmark.error_bound(dataclasses.replace(case, dtype=torch.float32), reference, reference) == pytest.approx(2e-5)
