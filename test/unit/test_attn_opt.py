"""attn-opt from Python: what a process start would hide or make slow."""

import subprocess
import sys
from pathlib import Path

import pytest

from attn_mlir.tools import attn_opt
from attn_mlir.tools.attn_opt import main

INPUTS = Path(__file__).resolve().parents[1] / "Inputs"


def test_starts_without_torch() -> None:
    """Every RUN line starts the tool; importing torch would make each a second slower."""
    code = (
        "import sys; from attn_mlir.tools.attn_opt import main; main([sys.argv[1], '-p', 'attn-pipeline']); print('torch' in sys.modules)"
    )
    path = str(INPUTS / "alibi-causal-softmax.mlir")
    process = subprocess.run(
        [sys.executable, "-c", code, path],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(INPUTS.parents[1] / "python")},
    )
    assert process.stdout.splitlines()[-1] == "False"


def test_every_input_survives_the_core_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(INPUTS / "alibi-causal-softmax.mlir"), "--attn-pipeline"]) == 0
    text = capsys.readouterr().out
    assert '"tile.store"' in text
    assert "attn." not in text.replace("attn.attention", "")


def test_flags_run_in_command_line_order(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(INPUTS / "alibi-causal-softmax.mlir")
    assert main([path, "--cse", "-p", "attn-simplify,symbol-dce", "--canonicalize=max-iterations=2", "--timing", "-o", "/dev/null"]) == 0
    order = [line.split()[-1] for line in capsys.readouterr().err.splitlines() if "%" in line]
    assert order == ["cse", "attn-simplify", "symbol-dce", "canonicalize{max-iterations=2}"]


def test_a_bug_in_the_tool_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(path: str) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(attn_opt.source, "read", fail)
    assert main([]) == 1
    error = capsys.readouterr().err
    assert error.startswith("attn-opt: internal error: RuntimeError: planted (test_attn_opt.py:")
    assert error.count("\n") == 1


def test_output_goes_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.mlir"
    assert main([str(INPUTS / "online-causal-softmax.mlir"), "-o", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert main([str(path)]) == 0
    assert capsys.readouterr().out == path.read_text()


def test_explain_replaces_the_ir(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(INPUTS / "alibi-causal-softmax.mlir"), "--attn-explain"]) == 0
    text = capsys.readouterr().out
    assert text.strip()
    assert "func.func" not in text
