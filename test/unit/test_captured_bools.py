"""Captured bools: an argument of the program, so that another value needs no other kernel, on every device and in compiled graphs."""

from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir.errors import UnsupportedError


class Flagged:
    """A score function of a bool, and what it gives."""

    def __init__(self) -> None:
        self.doubled = True

    def function(self) -> Any:
        doubled = self.doubled
        return lambda s, b, h, i, j: torch.where((i < j) | doubled, s * (1.0 + doubled), s)

    def wanted(self, q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q * (1.0 + self.doubled), q, q)


@pytest.mark.parametrize("device", ["cpu", "cuda-emulated", "hip-emulated", "hip-interpreted"])
def test_another_value_is_read_at_the_next_call(device: str) -> None:
    q, flagged = torch.randn(1, 2, 40, 64, dtype=torch.float16), Flagged()
    for flagged.doubled in (True, False, True):
        o = attn_mlir.attention(q, q, q, score_mod=flagged.function(), device=device)
        assert (o.float() - flagged.wanted(q.float())).abs().max() < 5e-3


def test_gradients() -> None:
    q, flagged = torch.randn(1, 2, 40, 8, dtype=torch.float64, requires_grad=True), Flagged()
    for flagged.doubled in (True, False):
        (made,) = torch.autograd.grad(attn_mlir.attention(q, q, q, score_mod=flagged.function()).square().sum(), q)
        (wanted,) = torch.autograd.grad(flagged.wanted(q).square().sum(), q)
        assert (made - wanted).abs().max() < 1e-10


def test_programs_have_them_as_arguments() -> None:
    made = attn_mlir.Attention(score_mod=Flagged().function())
    assert [str(captured.kind) for captured in made._traced().traced.captures] == ["bool"]


def test_compiled_graphs() -> None:
    def run(q: torch.Tensor, doubled: bool) -> torch.Tensor:
        return attn_mlir.attention(q, q, q, score_mod=lambda s, b, h, i, j: s * (1.0 + doubled))

    q, flagged = torch.randn(1, 2, 40, 8), Flagged()
    for flagged.doubled in (True, False):
        assert (torch.compile(run, fullgraph=True)(q, flagged.doubled) - flagged.wanted(q)).abs().max() < 1e-5


def test_libraries_refuse_them(tmp_path: Path) -> None:
    made = attn_mlir.Attention(score_mod=Flagged().function())
    with pytest.raises(UnsupportedError, match="is a bool"):
        attn_mlir.compile_ahead(made, attn_mlir.InputSpec(torch.float32, 64), out=tmp_path / "lib.so", name="flagged")
