"""The example of a jvp through attention, at a small size."""

import importlib.util
from pathlib import Path

import torch


def test_the_derivative_along_a_flow_is_that_of_the_formula() -> None:
    path = Path(__file__).parents[2] / "examples" / "meanflow_jvp.py"
    spec = importlib.util.spec_from_file_location("meanflow_jvp", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    error, _, _ = example.run(257, torch.float64)
    assert error < 1e-12
