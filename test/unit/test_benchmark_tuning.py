"""The benchmark of the tuner's model: measured on the CPU, and its table for a GPU with made-up times."""

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir.backends.nvidia.tuning.program import TUNER

_FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(_FOLDER))
    before = torch.get_num_threads()
    yield importlib.import_module("tuning_model")
    torch.set_num_threads(before)
    sys.modules.pop("tuning_model")


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
    report = tmp_path / "report.json"
    given = ["--device", "cpu", "--quick", "--only", "linear attention", "--per-kernel", "5", "--json", str(report)]
    assert benchmark.main([*given, "--plot", str(tmp_path / "plot.svg")]) == 0
    (result,) = json.loads(report.read_text())["results"]
    assert result["measured"] == 5 and not result["failed"] and -1 <= result["spearman"] <= 1 and result["top5"] == 1.0
    assert "1 kernels: rank correlation" in capsys.readouterr().out
    assert (tmp_path / "plot.svg").read_text().count("<circle") == 6


def test_the_table_for_a_gpu(benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(benchmark, "tuner_of", lambda device: dataclasses.replace(TUNER, bench=Clock))
    monkeypatch.setattr(benchmark.Problem, "inputs", lambda self, function: [])
    assert benchmark.main(["--device", "cuda", "--seconds", "100"]) == 0
    told = capsys.readouterr().out
    assert told.count("bf16 B4 H16 S4096 D128") == told.count("bf16 B4 H32 S4096 D64") == 4
    assert told.count("attention_bwd_2_pairs") == 4 and "8 kernels: rank correlation" in told
    assert benchmark.main(["--device", "cuda", "--seconds", "0"]) == 0
    assert capsys.readouterr().err.count("no time left for: softmax") == 8
