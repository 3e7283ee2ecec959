"""Functions that jump at exact numbers of positions: kernels for GPUs, whose divisions are products with reciprocals, jump there, too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir

PERIOD, STEPS = torch.tensor([41.0]), torch.tensor([7, -7, 0, 3, -3, 11])
LARGE = torch.arange(130) * 2**40 + 2**40 - 3

FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "floor": lambda i, j: torch.floor((j - i) / 41.0) < 1,
    "bound": lambda i, j: (i - j) / 3 <= 1,
    "equal": lambda i, j: (j - i) / 7 == 2,
    "captured": lambda i, j: torch.floor(j / PERIOD[0]) <= 1,
    "fraction": lambda i, j: torch.frac((j - i) / 3) == 0,
    "product": lambda i, j: torch.floor((j - i) * 0.1) < 1,
    "cast": lambda i, j: ((j - i) / 41).int() <= 0,
    "chosen": lambda i, j: torch.ceil(torch.where(j > i, (j - i) / 41, (i - j) / 3)) <= 1,
}
INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "towards zero": lambda i, j: torch.div(i - j, 3, rounding_mode="trunc") == 0,
    "negative": lambda i, j: torch.div(i - j, -3, rounding_mode="trunc") <= 1,
    "sums": lambda i, j: torch.div(i + j, 4, rounding_mode="trunc") % 2 == 0,
    "captured divisor": lambda i, j: torch.div(3 * (i - j), 2 * STEPS[j % 6] + 1, rounding_mode="trunc") <= 1,
    "beyond 2^24": lambda i, j: torch.div(LARGE[j], 2**40 // 3, rounding_mode="trunc") % 5 <= 1,
    "conditions": lambda i, j: torch.div(i > j, 1, rounding_mode="trunc") > 0,
}


@pytest.mark.parametrize("device", ["cpu", "hip-emulated"])
@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_every_pair_is_on_its_side(name: str, device: str) -> None:
    """v holds unit vectors, so that o tells which keys each query sees."""
    asked = (FLOATS | INTEGERS)[name]
    rows, keys = 64, 130
    wanted = asked(torch.arange(rows)[:, None], torch.arange(keys)).expand(rows, keys)
    dtype = torch.float32 if device == "cpu" else torch.float16
    q, k, v = torch.zeros(1, 1, rows, 16, dtype=dtype), torch.zeros(1, 1, keys, 16, dtype=dtype), torch.eye(keys, dtype=dtype)[None, None]
    seen = attn_mlir.attention(q, k, v, mask_mod=lambda b, h, i, j: asked(i, j), device=device)[0, 0] > 0
    assert torch.equal(seen, wanted)
    assert wanted.any() and not wanted.all()
    weights = torch.where(wanted, 1.0, 2.0).softmax(-1)
    found = attn_mlir.attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where(asked(i, j), 1.0, 2.0), device=device)[0, 0]
    torch.testing.assert_close(found.float(), weights, atol=2e-5, rtol=2e-3)
