"""attn-resolve-masks against dense evaluation of the same masks: sound always, exact on the masks people use."""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attn_mlir.passes.intervals.classify import Blocks, classify
from attn_mlir.passes.regions import find_all
from known_masks import known_masks, runtime_masks
from masks import MaskFn, dense_classes, resolved, share_exact

BLOCKS = ((16, 16), (32, 64), (7, 13))
BOUNDS_SUFFICE = {
    "causal",
    "causal bottom right",
    "sliding window",
    "two-sided window",
    "prefix",
    "packed documents",
    "block diagonal",
    "chunked causal",
}
INEXACT = {"global and sliding": 0.99, "tiled neighborhood": 0.95}  # blocks classified exactly; all of them elsewhere


def _check(mask: MaskFn, captures: Sequence[Any], module: Any, sq: int, skv: int, block_q: int, block_kv: int) -> float:
    """Asserts soundness; the share of blocks whose class is exact."""
    exact = dense_classes(mask, captures, sq, skv, block_q, block_kv)
    return share_exact(exact, classify(module.operation, captures, sq, skv, block_q, block_kv), skv)


@pytest.mark.parametrize("name", known_masks(173))
def test_known_mask(name: str) -> None:
    mask, captures = known_masks(173)[name]
    module = resolved(mask, captures)
    for length in (173, 256):
        mask, captures = known_masks(length)[name]
        for block in BLOCKS:
            assert _check(mask, captures, module, length, length, *block) >= INEXACT.get(name, 1.0), (length, block)


@pytest.mark.parametrize("name", runtime_masks())
def test_sizes_known_only_at_run_time(name: str) -> None:
    mask, captures = runtime_masks()[name]
    module = resolved(mask, captures)
    for block in BLOCKS:
        assert _check(mask, captures, module, 173, 256, *block) == 1.0, block
    for other in ([-c for c in captures], [1 for _ in captures]):
        _check(mask, other, module, 40, 50, 7, 13)


@pytest.mark.parametrize("name", ["block diagonal", "chunked causal", "shifted blocks"])
def test_runtime_sizes_give_bounds(name: str) -> None:
    mask, captures = runtime_masks()[name]
    assert not find_all(resolved(mask, captures).operation, "attn.block_mask")


@pytest.mark.parametrize(("sq", "skv"), [(1, 100), (40, 101), (150, 33), (5, 1)])
@pytest.mark.parametrize("name", sorted((BOUNDS_SUFFICE | {"mini causal"}) - {"packed documents"}))
def test_unequal_lengths(name: str, sq: int, skv: int) -> None:
    mask, captures = known_masks(173)[name]
    assert _check(mask, captures, resolved(mask, captures), sq, skv, 16, 16) == 1.0


@pytest.mark.parametrize("name", known_masks(173))
def test_block_mask_only_where_bounds_are_not_exact(name: str) -> None:
    mask, captures = known_masks(173)[name]
    assert bool(find_all(resolved(mask, captures).operation, "attn.block_mask")) == (name not in BOUNDS_SUFFICE)


def test_two_dimensional_gather() -> None:
    dense = np.random.default_rng(0).random((60, 90)) < 0.05
    dense[16:32, 16:64] = True

    def mask(b: Any, h: Any, q: Any, k: Any, table: Any) -> Any:
        return table[q, k] & (q >= 0)

    assert _check(mask, [dense], resolved(mask, [dense]), 60, 90, 16, 16) == 1.0


def test_nested_gather_and_lengths() -> None:
    rng = np.random.default_rng(1)
    page, kind = rng.integers(0, 9, 80), np.arange(9) // 3

    def mask(b: Any, h: Any, q: Any, k: Any, page: Any, kind: Any) -> Any:
        return kind[page[k // 8]] <= q // 8 + 1

    _check(mask, [page, kind], resolved(mask, [page, kind]), 50, 80, 8, 8)


def test_batch_and_head() -> None:
    lengths = np.array([5, 40, 17])

    def mask(b: Any, h: Any, q: Any, k: Any, lengths: Any) -> Any:
        return (k < lengths[b]) & (q - k <= h * 8)

    bounds = classify(resolved(mask, [lengths]).operation, [lengths], 32, 50, 8, 8, batch=3, heads=2).bounds
    assert bounds[:, 0, 0, 3].tolist() == [5, 40, 17]
    assert bounds[1, :, 3, 0].tolist() == [24, 16]


def test_million_by_million_takes_a_handful_of_operations() -> None:
    length = 1 << 20
    module = resolved(lambda b, h, q, k: q >= k)
    blocks = Blocks(module.operation, [], (length, length), (128, 1), 1, 1)
    bounds = blocks.bounds()
    assert bounds.shape == (1, 1, 8192, 4)
    assert blocks.steps < 10
    assert bounds[0, 0, -1].tolist() == [0, 0, length - 127, length]


def _segments(b: Any, h: Any, q: Any, k: Any) -> Any:
    return functools.reduce(operator.or_, [(k >= 3 * i) & (k < 3 * i + 2) & (q >= i) for i in range(300)])


def _parity(b: Any, h: Any, q: Any, k: Any) -> Any:
    return functools.reduce(operator.xor, [(k >= 3 * i) & (q >= i) for i in range(30)])


def _nested(b: Any, h: Any, q: Any, k: Any) -> Any:
    return functools.reduce(lambda inner, i: ((q >= i) & inner) | (k == i), range(400), q >= k)


@pytest.mark.parametrize("mask", [_segments, _parity, _nested])
def test_long_masks_are_resolved(mask: MaskFn) -> None:
    _check(mask, [], resolved(mask), 40, 50, 8, 8)


def _random_mask(rng: np.random.Generator) -> MaskFn:
    """A random formula over q, k, a length and two tensors; the same tree each time it is applied."""
    seed = int(rng.integers(1 << 30))

    def mask(b: Any, h: Any, q: Any, k: Any, n: Any, doc: Any, flag: Any) -> Any:
        local = np.random.default_rng(seed)

        def index(depth: int) -> Any:
            choice = local.integers(12) if depth else local.integers(4)
            match choice:
                case 0 | 1:
                    return q
                case 2:
                    return k
                case 3:
                    return k + n
                case 4 | 5:
                    return index(depth - 1) - index(depth - 1)
                case 6:
                    return index(depth - 1) * int(local.choice([-3, -1, 2, 5]))
                case 7:
                    return index(depth - 1) // int(local.choice([-4, 3, 16]))
                case 8:
                    return index(depth - 1) % int(local.choice([-5, 7, 32]))
                case 9:
                    return abs(index(depth - 1))
                case 10:
                    return index(depth - 1).clip(2, 20)
            return doc[index(depth - 1).clip(0, 63)]

        def condition(depth: int) -> Any:
            match local.integers(9) if depth else local.integers(4):
                case 0:
                    return index(2) >= int(local.integers(-5, 40))
                case 1:
                    return index(2) < index(1) + 0
                case 2:
                    return (index(2) == index(1)) & (q >= 0)
                case 3:
                    return flag[q // 2] & (q + k >= 0)
                case 4 | 5:
                    return condition(depth - 1) & condition(depth - 1)
                case 6 | 7:
                    return condition(depth - 1) | condition(depth - 1)
            return ~condition(depth - 1)

        return condition(2) & (q + k >= 0)

    return mask


@pytest.mark.parametrize("seed", range(150))
def test_random_masks_are_sound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask = _random_mask(rng)
    captures = [int(rng.integers(-3, 20)), rng.integers(-20, 60, 64), rng.random(40) < 0.5]
    module = resolved(mask, captures, cuts=seed % 3)
    for shape in ((45, 61, 8, 8), (61, 30, 7, 13)):
        _check(mask, captures, module, *shape)
