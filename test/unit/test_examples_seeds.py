"""The programs of AttentionEngine and attention_autotuner under examples/, at small sizes, and that they tell wrong results."""

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

_EXAMPLES = Path(__file__).parents[2] / "examples"
_ENGINE = _EXAMPLES / "attention_engine"
_SHARED = ("comparison", "linear", "mha", "mla_decode", "reluattn", "simple_gla")
_SMALL = {
    "mha": "--heads 2 --length 150",
    "mha_cute": "--heads 3 --length 150",
    "mha_inference": "--heads 2 --queries 20 --length 300",
    "gqa": "--heads 8 --groups 2 --length 150",
    "gqa_inference": "--heads 8 --groups 2 --length 300",
    "mla_decode": "--heads 4 --length 70",
    "mla_decode_cute": "--heads 4 --pages 2 --queries 3",
    "reluattn": "--batch 2 --heads 2 --length 150",
    "sigmoidattn": "--heads 2 --length 150",
    "retention": "--heads 2 --length 150",
    "sparseattn": "--batch 1 --heads 2 --length 400",
    "blocksparseattn": "--heads 2 --length 400",
    "mamba2_ngroup1": "--batch 1 --heads 3 --length 100",
    "mamba2": "--batch 1 --heads 2 --length 100",
    "simple_gla": "--batch 1 --heads 2 --length 100",
    "retention_linear": "--heads 2 --length 100",
}


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder of AttentionEngine's programs is that of the program, so that they find each other."""
    monkeypatch.syspath_prepend(str(_ENGINE))
    yield
    for name in _SHARED:
        sys.modules.pop(name, None)


def _main(path: Path) -> Any:
    return runpy.run_path(str(path))["main"]


def test_every_program_is_here() -> None:
    assert {path.stem for path in _ENGINE.glob("*.py")} == {*_SMALL, "comparison", "linear"}


@pytest.mark.parametrize("program", _SMALL)
def test_attention_engine(folder: None, program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(_ENGINE / f"{program}.py")(["--device", "cpu", "--dtype", "float32", *_SMALL[program].split()]) == 0
    assert "relative errors" in capsys.readouterr().out


@pytest.mark.parametrize("program", ["attention", "retnet"])
def test_attention_autotuner(program: str) -> None:
    assert _main(_EXAMPLES / "attention_autotuner" / f"{program}.py")(["--device", "cpu", "--length", "130"]) == 0


def test_wrong_results_are_told(folder: None, capsys: pytest.CaptureFixture[str]) -> None:
    compare = runpy.run_path(str(_ENGINE / "comparison.py"))["compare"]
    x = {"x": torch.randn(4, 4)}
    assert compare(lambda x: x * 2, lambda x: x * 2, x) == 0
    assert compare(lambda x: x * 2, lambda x: x * 2.001, x) == 1
    assert compare(lambda x: x * torch.nan, lambda x: x, x, backward=False) == 1
    assert compare(lambda x: x + x.detach(), lambda x: x * 2, x) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "wrong: dx"
