"""attn-resolve-masks on `attn.pairs`: which rows see a block of keys, against dense evaluation of the same masks."""

from collections.abc import Sequence
from typing import Any

import pytest

from attn_mlir.passes.intervals.classify import classify
from attn_mlir.passes.regions import find_all
from known_masks import known_masks, runtime_masks
from masks import MaskFn, dense_classes, resolved, share_exact

BLOCKS = ((64, 16), (32, 64), (7, 13))
# Blocks classified exactly; all of them for the other masks.
INEXACT = {"global and sliding": 0.99, "tiled neighborhood": 0.95, "shared prefix": 0.99}
BOUNDS_SUFFICE = {"causal", "causal bottom right", "sliding window", "two-sided window", "prefix"}


def _check(mask: MaskFn, captures: Sequence[Any], module: Any, sq: int, skv: int, block_q: int, block_kv: int) -> float:
    """Asserts soundness; the share of blocks whose class is exact."""
    exact = dense_classes(mask, captures, sq, skv, block_q, block_kv).T
    return share_exact(exact, classify(module.operation, captures, sq, skv, block_q, block_kv), sq)


@pytest.mark.parametrize("name", known_masks(173))
def test_known_mask(name: str) -> None:
    mask, captures = known_masks(173)[name]
    module = resolved(mask, captures, pairs=True)
    for length in (173, 256):
        mask, captures = known_masks(length)[name]
        for block in BLOCKS:
            assert _check(mask, captures, module, length, length, *block) >= INEXACT.get(name, 1.0), (length, block)


@pytest.mark.parametrize("name", runtime_masks())
def test_sizes_known_only_at_run_time(name: str) -> None:
    mask, captures = runtime_masks()[name]
    module = resolved(mask, captures, pairs=True)
    for block in BLOCKS:
        assert _check(mask, captures, module, 173, 256, *block) == 1.0, block
    for other in ([-c for c in captures], [1 for _ in captures]):
        _check(mask, other, module, 40, 50, 7, 13)


@pytest.mark.parametrize(("sq", "skv"), [(1, 100), (40, 101), (150, 33), (5, 1)])
@pytest.mark.parametrize("name", sorted(BOUNDS_SUFFICE))
def test_unequal_lengths(name: str, sq: int, skv: int) -> None:
    mask, captures = known_masks(173)[name]
    assert _check(mask, captures, resolved(mask, captures, pairs=True), sq, skv, 16, 16) == 1.0


@pytest.mark.parametrize("name", sorted(BOUNDS_SUFFICE))
def test_bounds_alone_suffice(name: str) -> None:
    mask, captures = known_masks(173)[name]
    assert not find_all(resolved(mask, captures, pairs=True).operation, "attn.block_mask")
