"""The example that trains a transformer: the same losses as PyTorch, and gradients of the same bits for every number of threads."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture(scope="module")
def example() -> Any:
    path = Path(__file__).parents[2] / "examples" / "tiny_transformer.py"
    spec = importlib.util.spec_from_file_location("tiny_transformer", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tiny_transformer"] = module
    spec.loader.exec_module(module)
    return module


def test_losses_are_those_of_pytorch(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    runs = example.main(["--steps", "25"])
    ours, theirs = runs.values()
    assert max(abs(a - b) for a, b in zip(ours.losses, theirs.losses, strict=True)) < 1e-4
    assert ours.losses[-1] < ours.losses[0] - 1.0
    torch.testing.assert_close(ours.slopes, theirs.slopes, rtol=1e-4, atol=1e-5)
    assert not torch.equal(ours.slopes, 2.0 ** -torch.arange(1.0, 5.0)), "slopes are learned"
    assert "largest difference" in capsys.readouterr().out


def test_gradients_are_the_same_bits_for_every_number_of_threads(example: Any) -> None:
    """Of the attention alone: on some processors PyTorch's own matrix products round differently with more threads."""
    torch.manual_seed(0)
    inputs = [*torch.randn(3, 4, 4, 64, 16), torch.rand(4)]
    upstream = torch.randn(4, 4, 64, 16)

    def gradients(threads: int) -> list[torch.Tensor]:
        leaves = [value.clone().requires_grad_() for value in inputs]
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            o = example.compiled(*leaves)
            return [o.detach(), *torch.autograd.grad(o, leaves, upstream)]
        finally:
            torch.set_num_threads(before)

    assert all(torch.equal(one, two) for one, two in zip(gradients(1), gradients(2), strict=True))
