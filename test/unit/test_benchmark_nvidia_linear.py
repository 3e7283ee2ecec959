"""The benchmark of linear attention runs (here: on the CPU), checks what it times, and compares with recorded times."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("nvidia_linear")


def test_quick_run_on_a_cpu(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    options = ("--quick", "--device", "cpu", "--rounds", "1", "--launches", "1", "--cases", "simple_gla,gla", "--parts", "forward")
    assert script.main([*options, "--json", str(path)]) == 0
    assert "| simple_gla | 128 | forward |" in capsys.readouterr().out
    rows = json.loads(path.read_text())["rows"]
    assert all(row["systems"]["attn_mlir"]["errors"]["o"] < 4e-3 and row["systems"]["attn_mlir"]["ms"] > 0 for row in rows)
    assert rows[0]["systems"]["eager"]["errors"]["o"] < 3e-2 and "memory" in rows[1]["systems"]["eager"]["reason"]


def test_single_precision_has_floors_and_bounds_of_its_own(script: Any, tmp_path: Path) -> None:
    path, floors = tmp_path / "report.json", []
    options = ("--quick", "--device", "cpu", "--rounds", "1", "--launches", "1", "--cases", "simple_gla", "--parts", "forward")
    for dtype in ("bfloat16", "float32"):
        assert script.main([*options, "--dtype", dtype, "--json", str(path)]) == 0
        (row,) = json.loads(path.read_text())["rows"]
        floors.append(row["floor_ms"])
    assert row["dtype"] == "float32" and row["systems"]["attn_mlir"]["errors"]["o"] < 1.5e-6
    assert 1.9 < floors[1] / floors[0] < 6.1


def test_few_heads_are_swept_in_segments(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--few", "--quick", "--device", "cpu", "--rounds", "1", "--launches", "1", "--cases", "simple_gla", "--lengths", "1024")
    assert script.main([*options, "--segments", "0,512"]) == 0
    forward, backward = capsys.readouterr().out.splitlines()[2:]
    assert "| simple_gla | 1 | 1024 | forward |" in forward and "| simple_gla | 1 | 1024 | backward |" in backward
    assert all(" (1) |" in row and " (2) |" in row for row in (forward, backward))


def test_wrong_results_get_no_time(script: Any) -> None:
    case = script.Case("simple_gla", 1, 64, 2, 2, 16, 16)
    x = case.inputs("cpu")
    do = torch.ones(1, 64, 2, 16).bfloat16()
    wanted, gradients = script.exact(case, x, do)
    found, call = script._prepare("backward", lambda x: 1.01 * script.eager(case, x), x, do, (wanted, gradients, 4e-3))
    assert call is None and {"o", "dq", "dk", "dv", "dg"} == set(found["errors"]) and found["reason"].startswith("wrong")


def test_recorded_times_stand_in_for_what_is_not_installed(script: Any) -> None:
    systems = {"attn_mlir": {"ms": 0.5}, "peer": {"reason": "mamba_ssm is not installed"}}
    row = {"case": "mamba2", "direction": "forward", "batch": 8, "length": 4096, "dtype": "bfloat16", "floor_ms": 0.15, "systems": systems}
    assert (
        script.table([row]).splitlines()[-1] == "| mamba2 | 4096 | forward | 0.500 | 0.150 |  | 1.402 (mamba_ssm, recorded) | 2.80 | 2.0 |"
    )
