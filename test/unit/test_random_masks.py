"""Masks and positions as users write them, random ones too: every generated kernel passes clang's front end, on any machine.

`benchmarks/fuzz_masks.py` does the same for as many as one likes, and runs them.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from generated_code import complaints, kernels, traced
from random_masks import Captured, Masks, value

WIDTH, HEIGHT = 13, 11
_IDS = torch.arange(9, dtype=torch.int32)
_SMALL = -torch.arange(9, dtype=torch.int8)


def neighbourhood(b: Any, h: Any, q: Any, k: Any) -> Any:
    columns = abs((q % WIDTH).clamp(3, WIDTH - 4) - k % WIDTH) <= 3
    return columns & (abs((q // WIDTH).clamp(1, HEIGHT - 2) - k // WIDTH) <= 1)


def of_batch(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Bounds of loops that follow from an element, of which only a box is known."""
    return _IDS[b] // 12 * 12 + 12 - _IDS[b] <= k


def shifted(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (((q + k) >> 40) <= (abs(_IDS[k % 9]) & (1 << q % 7))) & (abs(_SMALL[q % 9]) >= k - q)


def wide(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Numbers beyond 32 bits."""
    return ((q * 1_000_003 * (k + 1)) % 97 <= 60) & (torch.maximum(q * 70_000_000_000, k * 3) // 70_000_000_000 >= k)


def never_equal(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Blocks are looked at one by one, in branches within branches."""
    return k != abs(q)


@pytest.mark.parametrize("mask", [neighbourhood, of_batch, shifted, wide, never_equal])
def test_masks(mask: Callable[..., Any]) -> None:
    found = kernels(traced(mask))
    assert {code.language for code in found} == {"cuda", "hip"}  # none goes through TileLang
    assert [complaints(code) for code in found] == [""] * len(found)


def drawn(seed: int) -> tuple[Callable[..., Any], Callable[..., Any] | None, Captured]:
    """A random mask, with every fourth seed also a score_mod that reads a table at a random place."""
    masks = Masks(random.Random(seed))
    condition, place, table = masks.condition(3), masks.integer(3), torch.linspace(-1, 1, 16)

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return value(condition, masks.captured, {"b": b, "h": h, "q": q, "k": k}) & (k >= 0)

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        number = value(place, masks.captured, {"b": b, "h": h, "q": q, "k": k})
        return s + table[number % 16] + 0.01 * (number % 7)

    return mask, score if seed % 4 == 1 else None, masks.captured


@pytest.mark.parametrize("seed", range(5))
def test_random_masks(seed: int) -> None:
    mask, score, _ = drawn(seed)
    # Scores that read tables at computed places may need more shared memory than an AMD GPU has; that is an error of its own.
    for code in kernels(traced(mask, score), vendors=("nvidia", "amd") if score is None else ("nvidia",)):
        assert not complaints(code)
