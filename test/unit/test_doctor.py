"""`python -m attn_mlir.doctor`, what is imported when, and what a wheel holds."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import doctor
from attn_mlir.backends.cpu import doctor as cpu
from attn_mlir.backends.cpu import jit
from attn_mlir.findings import Finding, tried

ROOT = Path(__file__).parents[2]


def found(report: dict[str, list[Finding]], name: str) -> Finding:
    return next(finding for findings in report.values() for finding in findings if finding.name == name)


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    text = capsys.readouterr().out
    for title in ("installation", "kernel cache", "backend cpu", "backend nvidia", "backend amd", "what computes"):
        assert f"\n{title}\n" in f"\n{text}"
    assert torch.__version__ in text and str(Path(attn_mlir.__file__).parent) in text
    assert doctor.main(["--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert {finding["state"] for findings in made.values() for finding in findings} <= {"ok", "note", "missing", "wrong"}
    assert made["what computes"][0]["state"] == "ok" and "agree with float64 to" in made["what computes"][0]["text"]


@pytest.mark.parametrize("wrong", ["numbers", "an error"])
def test_attention_that_is_wrong_fails(wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = attn_mlir.attention

    def attention(*given: Any, **options: Any) -> Any:
        if wrong == "numbers":
            return right(*given, **options) * 1.001
        raise attn_mlir.CompileError("nothing compiles here")

    monkeypatch.setattr(attn_mlir, "attention", attention)
    assert doctor.main([]) == 1
    text = capsys.readouterr().out
    assert "FAIL attention on cpu" in text and ("are off by 1.0e-03" if wrong == "numbers" else "nothing compiles here") in text


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_devices", lambda emulated: [])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    monkeypatch.setattr(jit, "openmp", lambda: None)
    monkeypatch.setenv("ATTN_MLIR_CPU", "abacus")
    monkeypatch.setenv("ATTN_MLIR_CLANG", str(tmp_path / "clang++"))
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(shared))
    with pytest.warns(RuntimeWarning, match="chmod go-w"):
        report = doctor.examine()
    assert found(report, "transformers").state == "missing"
    assert found(report, "folder") == Finding(
        "folder", "wrong", f"{shared} is not used: it must be a folder that this user alone may write to"
    )
    assert found(report, "clang for AMD GPUs").state == "missing"
    (broken,) = report["backend cpu"]  # a backend whose own report fails
    assert broken.state == "wrong" and "ATTN_MLIR_CPU is avx512 or avx2 or amx" in broken.text
    monkeypatch.setenv("ATTN_MLIR_CPU", "avx2")
    monkeypatch.setenv("ATTN_MLIR_CACHE", "off")
    assert {finding.name: finding.state for finding in cpu.findings()}["threads"] == "note"
    assert found(doctor.examine(), "folder").state == "note"


def test_a_package_without_its_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on Windows, where a checkout holds texts in place of symbolic links."""
    monkeypatch.setattr(attn_mlir, "__file__", str(tmp_path / "__init__.py"))
    finding = tried("attn-mlir", doctor._own, "wrong")
    assert finding.state == "wrong" and "lacks dialects, passes, backends" in finding.text and "core.symlinks" in finding.text


def test_optional_packages_are_imported_when_they_are_needed() -> None:
    program = """
import sys
import attn_mlir
assert "torch" not in sys.modules, "import attn_mlir alone imports torch"
import torch
before = set(sys.modules)
q = torch.randn(1, 2, 5, 8, requires_grad=True)
attn_mlir.attention(q, q, q, mask_mod=attn_mlir.masks.causal()).sum().backward()
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    made = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    imported = set(made.stdout.split())
    assert "attn_mlir" in imported
    assert not imported & {"tilelang", "tvm", "matplotlib", "transformers", "triton", "pytest", "hypothesis", "lit", "scipy", "pandas"}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("try_wheel", ROOT / ".ci" / "try_wheel.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_wheel_holds_every_source_file(script: ModuleType, tmp_path: Path) -> None:
    names = script.sources()
    for wanted in ("passes/online_rewrite.py", "dialects/attn/ops.py", "backends/nvidia/hopper/attn_hopper.cuh", "py.typed"):
        assert f"attn_mlir/{wanted}" in names
    wheel = script.build(tmp_path, isolated=False)
    assert script.missing(wheel) == []
