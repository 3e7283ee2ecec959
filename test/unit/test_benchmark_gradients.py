"""The CPU benchmark of gradients runs, checks what it times, and says why FlexAttention is missing. Nothing here depends on speed."""

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from test_benchmark_cpu import BENCHMARKS, run


def test_quick_run_reports_every_case(tmp_path: Path) -> None:
    done = run("--backward", "--markdown", "--json", str(tmp_path / "report.json"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("## Gradients\n\n- ")
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["gradients"]) == 12 and report["results"] == []
    for result in report["gradients"]:
        assert f"| {result['case']} " in done.stdout
        assert all("ms" in system and len(system["samples_ms"]) == 2 for system in result["systems"].values())
        assert all(e <= b for e, b in zip(result["systems"]["attn_mlir"]["errors"], result["bounds"], strict=True))
    both, backward = (next(r for r in report["gradients"] if r["measure"] == measure) for measure in ("both", "backward"))
    assert both["flops"] / backward["flops"] == pytest.approx(7 / 5)
    assert "FlexAttention does not support backward on CPU" in done.stdout


def test_wrong_gradients_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module: Any = importlib.import_module("cpu_gradients")
    case = module.cases(True)[0]
    true = module.Gradients.systems

    def systems(self: Any) -> dict[str, Any]:
        made = true(self)
        return {**made, "attn_mlir": lambda: made["attn_mlir"]() * 1.001}

    monkeypatch.setattr(module.Gradients, "systems", systems)
    in_turn = lambda calls, rounds, seconds: {name: [float(bool(call()))] for name, call in calls.items()}  # noqa: E731
    for result in module.run_case(case, argparse.Namespace(rounds=1, seconds=0.0), in_turn):
        assert result["systems"]["attn_mlir"]["reason"].startswith("wrong: errors ")
        assert result["systems"]["sdpa"]["ms"] > 0


def test_bound_follows_the_formula_at_the_same_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module: Any = importlib.import_module("cpu_gradients")
    wanted = [torch.full((4,), 2.0, dtype=torch.float64)]
    half = next(case for case in module.cases(True) if case.dtype == torch.bfloat16)
    assert module.allowed(half, wanted, [wanted[0] + 0.01]) == [pytest.approx(2 * 0.01 + 2 * 2**-8)]
    assert module.allowed(module.cases(True)[0], wanted, wanted) == [pytest.approx(4e-5)]
