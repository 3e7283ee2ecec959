"""Rows divided by their length by programs of the NVIDIA backend, emulated, against float64."""

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir.api.unit_rows import unit_rows
from linear_reference import error

EMULATED = "cuda-emulated"


@needs_host_clang
@pytest.mark.parametrize(("dtype", "columns", "factor"), [(torch.bfloat16, 64, 1.0), (torch.float16, 128, 128**-0.5)])
def test_rows_and_gradient(dtype: torch.dtype, columns: int, factor: float) -> None:
    """An odd length, and rows that lie apart in memory; nothing but the result's own rounding is left."""
    x = torch.randn(2, 37, 3, 2 * columns).to(dtype)[..., :columns].requires_grad_()
    exact = x.detach().double().requires_grad_()
    want = factor * exact / (exact.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    found = unit_rows(x, 1e-6, EMULATED, factor)
    assert found is not None
    upstream = torch.randn_like(found)
    found.backward(upstream)
    want.backward(upstream.double())
    rounding = torch.finfo(dtype).eps / 2
    assert error(found, want) < rounding
    assert x.grad is not None
    assert error(x.grad, exact.grad) < rounding


@needs_host_clang
def test_a_row_of_zeros_stays_one() -> None:
    x = torch.zeros(1, 3, 1, 64, dtype=torch.bfloat16, requires_grad=True)
    found = unit_rows(x, 1e-6, EMULATED)
    assert found is not None
    found.sum().backward()
    assert x.grad is not None
    assert torch.equal(found, torch.zeros_like(found))
    assert error(x.grad, torch.full_like(x, 1000.0, dtype=torch.float64)) < 5e-3


def test_pytorch_does_it_elsewhere() -> None:
    x = torch.randn(1, 3, 1, 64)
    assert unit_rows(x, 1e-6, EMULATED) is None
    assert unit_rows(x.bfloat16(), 1e-6, None) is None
    assert unit_rows(x.bfloat16()[:, :0], 1e-6, EMULATED) is None
    with torch.autograd.forward_ad.dual_level():
        assert unit_rows(x.bfloat16(), 1e-6, EMULATED) is None
