"""The example of shared prefixes, at a small size."""

import importlib.util
from pathlib import Path

import torch


def test_merging_with_the_prefix_is_attending_to_all() -> None:
    path = Path(__file__).parents[2] / "examples" / "shared_prefix.py"
    spec = importlib.util.spec_from_file_location("shared_prefix", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    given = example.inputs(100, [1, 17, 5], heads=4, dim=16)
    torch.testing.assert_close(example.cascade(*given), example.one_by_one(*given), atol=1e-5, rtol=1e-5)
