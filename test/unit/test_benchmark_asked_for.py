"""The script that measures what users of other libraries have asked for."""

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("asked_for")


def test_masks_that_are_long_take_no_memory(script: Any) -> None:
    what, answer = next(script.long_masks("cpu"))
    assert what == "block mask of 806,000 positions"
    ms, memory = answer.split(", ")
    assert float(ms.removesuffix(" ms")) < 100 and float(memory.removesuffix(" MiB")) < 16


def test_derivatives_are_right(script: Any) -> None:
    found = dict(script.derivatives("cpu"))
    assert len(found) == 2 and all(float(answer.split()[2]) < 1e-5 for answer in found.values())


def test_nothing_is_compiled_for_new_lengths(script: Any) -> None:
    (_, answer), *_ = script.new_lengths("cpu")
    assert float(answer.split()[-2]) < 150
