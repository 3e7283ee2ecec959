"""The examples of linear attention, at small sizes."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("program", ["mamba2_ngroup1", "retention_linear"])
def test_programs_of_attention_engine(program: str) -> None:
    errors = example("linear_attention_engine").run(program, 70)
    assert max(errors.values()) < 2e-6, errors


def test_an_invented_recurrence_learns_and_decodes() -> None:
    module = example("invented_recurrence")
    losses, student, _ = module.identify(20, 64)
    assert losses[-1] < 0.3 * losses[0]
    assert module.decoding_error(student, 16) < 1e-5
