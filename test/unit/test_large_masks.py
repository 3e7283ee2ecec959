"""Scores for which a mask puts a large finite number in place of -inf, on emulated GPUs: rounding of its multiples must not overflow."""

from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir import attention

DEVICES = ["cuda-emulated", pytest.param("hip-emulated", marks=needs_host_clang)]
FACTOR = torch.tensor([[1.3, 0.7]])
NUMBERS = (-2e9, -1e10, -1e20, -1e30)
"""Some of which a multiple of log2(e) rounds up, others down."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("factor", [False, True])
def test_windows(factor: bool, device: str) -> None:
    """The first block of keys that late queries meet has no key in their window."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 200, 64).half() for _ in range(3))
    positions = torch.arange(200)
    seen = (positions[:, None] - positions).abs() <= 20
    scale = FACTOR[:, :, None, None].double() if factor else 1.0
    right = ((q.double() @ k.double().mT / 8).masked_fill(~seen, -torch.inf) * scale).softmax(-1) @ v.double()
    for low in NUMBERS:

        def score(s: Any, b: Any, h: Any, i: Any, j: Any, low: float = low) -> Any:
            kept = torch.where((i - j).abs() <= 20, s, low)
            return kept * FACTOR[b, h] if factor else kept

        found = attention(q, k, v, score_mod=score, device=device)
        assert (found.double() - right).abs().max() < 4e-3, low


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_nothing_else(device: str) -> None:
    """A row of equal numbers, however large, has equal weights."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 100, 64).half() for _ in range(3))
    for low in NUMBERS:
        found = attention(q, k, v, score_mod=lambda s, b, h, i, j, low=low: torch.where(i < 50, s, low), device=device)
        assert (found[:, :, 50:].double() - v.double().mean(2, keepdim=True)).abs().max() < 2e-3, low


def test_literal_numbers() -> None:
    """As constants of the program, not captured ones."""
    q, k, v = (torch.randn(1, 1, 100, 64).half() for _ in range(3))
    found = attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where(i < 50, s, -1e30), device="cuda-emulated")
    assert (found[:, :, 50:].double() - v.double().mean(2, keepdim=True)).abs().max() < 2e-3
