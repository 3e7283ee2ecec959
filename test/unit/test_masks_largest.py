"""The largest integers as "no limit" in masks: ends of key ranges that are computed of them do not wrap around."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import masks

MOST, LIMITS = sys.maxsize, torch.tensor([sys.maxsize, -sys.maxsize - 1, 3])
EVERY: dict[str, Callable[..., Any]] = {
    "to the right": lambda b, h, i, j: j - i <= MOST,
    "distance": lambda b, h, i, j: abs(i - j) <= MOST,
    "last key": lambda b, h, i, j: j <= MOST,
    "literal": lambda b, h, i, j: (j <= 9223372036854775807) & (j - i >= -9223372036854775807),
    "from the left": lambda b, h, i, j: i - j >= -MOST,
    "doubled": lambda b, h, i, j: 2 * j <= MOST,
    "tensor": lambda b, h, i, j: (j <= LIMITS[b]) & (j - i <= LIMITS[b]) & (i - j > LIMITS[b + 1]),
    "rows of a tensor": lambda b, h, i, j: j - 5 <= LIMITS[i // 100],
    "or": lambda b, h, i, j: (j - i <= MOST) | (j >= 30),
    "blocks": lambda b, h, i, j: (j - i <= MOST) | ((h == 0) & (j % 3 == 0)),
    "blocks of tensors": lambda b, h, i, j: (j - i <= LIMITS[b]) & ((j % 3 < 2) | (2 * i - j >= -MOST)),
    "not": lambda b, h, i, j: ~(j - i > MOST),
    "window": masks.sliding_window(MOST, MOST),
    "tensors": masks.sliding_window(LIMITS[0], LIMITS[0], "bottom_right"),
}


@pytest.mark.parametrize("name", EVERY)
def test_every_key(name: str) -> None:
    q, k, v = (torch.randn(1, 2, length, 8, requires_grad=True) for length in (37, 53, 53))
    found, wanted = [attn_mlir.attention(q, k, v, mask_mod=mask) for mask in (EVERY[name], None)]
    torch.testing.assert_close(found, wanted)
    if name in ("distance", "tensor"):
        torch.testing.assert_close(*[torch.autograd.grad(o.square().sum(), (q, k, v)) for o in (found, wanted)])


def test_no_key() -> None:
    q, k, v = (torch.randn(1, 2, length, 8) for length in (37, 53, 53))
    for mask in (lambda b, h, i, j: j - i >= MOST, lambda b, h, i, j: j - 1 <= LIMITS[1], lambda b, h, i, j: j - i < -MOST):
        assert not attn_mlir.attention(q, k, v, mask_mod=mask).any()


def test_remainders_of_large_numbers_stay() -> None:
    """Only what is added to positions is kept near them."""
    seeds = torch.tensor([(1 << 62) + 12345, (1 << 62) + 54321])

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        return ((seeds[h] + i) % 7 <= 3) & (j <= (seeds[h] % 5) * 9 + i)

    q, k, v = (torch.randn(1, 2, length, 8) for length in (37, 53, 53))
    h, i, j = torch.arange(2)[:, None, None], torch.arange(37)[:, None], torch.arange(53)
    scores = (q @ k.mT * 8**-0.5).masked_fill(~mask(0, h, i, j), -torch.inf)
    torch.testing.assert_close(attn_mlir.attention(q, k, v, mask_mod=mask), torch.softmax(scores, -1).nan_to_num(0.0) @ v)


HASHES: dict[str, Callable[..., Any]] = {
    "product": lambda b, h, i, j: j * 288230376151711744 >= 0,
    "shift": lambda b, h, i, j: (j << 58) >= (i << 58),
    "quotient": lambda b, h, i, j: (j * 1152921504606846976) // 1152921504606846976 == j,
    "products": lambda b, h, i, j: (j * 1073741824) * 1073741824 >= (i * 1073741824) * 1073741824,
    "hash": lambda b, h, i, j: ((i * 6364136223846793005 + j * 1442695040888963407) >> 33) % 3 != 0,
}


@pytest.mark.parametrize("name", HASHES)
def test_products_that_wrap_around(name: str) -> None:
    """Integers have 64 bits, as torch's: a mask that hashes positions by large constants sees what is left of their products."""
    q, k, v = (torch.randn(1, 2, length, 8) for length in (150, 170, 170))
    present = HASHES[name](0, 0, torch.arange(150)[:, None], torch.arange(170)).expand(150, 170)
    assert present.any() and not present.all()
    scores = (q @ k.mT * 8**-0.5).masked_fill(~present, -torch.inf)
    torch.testing.assert_close(attn_mlir.attention(q, k, v, mask_mod=HASHES[name]), torch.softmax(scores, -1).nan_to_num(0.0) @ v)
