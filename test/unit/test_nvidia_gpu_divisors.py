"""Masks that divide positions by captured numbers, of any sign and size, on a GPU against the dense formula; gradients, too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
from gpu_cases import GPU, learning, qkv

pytestmark = GPU


def _masks(n: int) -> dict[str, Callable[..., Any]]:
    """Every row keeps its own key, so that none is empty."""
    return {
        "blocks": lambda b, h, q, k: q // n == k // n,
        "strided": lambda b, h, q, k: (q % n == k % n) | (q // n == k // n),
        "both": lambda b, h, q, k: ((q - k) // n >= 0) | (q == k),
    }


@pytest.mark.parametrize("name", _masks(1))
@pytest.mark.parametrize("n", [1, 7, 32, 1000, 1 << 40, -1, -5, -(1 << 40)])
def test_captured_divisors(name: str, n: int) -> None:
    mask = _masks(n)[name]
    q, k, v = learning(qkv(1, 2, 2, 300))
    o = attn_mlir.attention(q, k, v, mask_mod=mask)
    positions = torch.arange(300, device="cuda")
    kept = mask(0, 0, positions[:, None], positions[None, :])
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    wanted = torch.nn.functional.scaled_dot_product_attention(*exact, attn_mask=kept)
    grad = torch.randn_like(o)
    found = torch.autograd.grad(o, (q, k, v), grad)
    expected = torch.autograd.grad(wanted, exact, grad.double())
    for ours, reference in zip((o, *found), (wanted, *expected), strict=True):
        assert ours.isfinite().all()
        # Rows of one key have gradients of 0.
        assert (ours.double() - reference).abs().max() <= 4e-3 * reference.abs().max() + 1e-5
