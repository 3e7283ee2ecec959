"""The examples of linear attention, at small sizes, and those in its documentation."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
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


def test_programs_of_the_documentation() -> None:
    """A reader copies them from the first to the last."""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "linear-attention.md").read_text(), re.DOTALL)
    read: dict[str, Any] = {}
    for program in programs:
        exec(program, read)
    assert len(programs) > 1 and read["o"].shape == (2, 4, 1000, 64) and read["o"].isfinite().all()
