"""What the mask analysis may and may not conclude about fully masked rows, and about signs."""

from typing import Any

import numpy as np
import pytest

from attn_mlir.passes.intervals.expr import Pool
from attn_mlir.passes.regions import find_all
from masks import MaskFn, resolved


def _proves_rows(mask: MaskFn, captures: list[Any]) -> bool:
    attention = find_all(resolved(mask, captures).operation, "attn.attention")[0]
    return attention.attributes["rows_nonempty"].value


SIZES = ((1, 1), (1, 9), (9, 1), (30, 12), (12, 30))
TABLE = np.arange(64)
PROVABLE: dict[str, tuple[MaskFn, list[Any]]] = {
    "causal": (lambda b, h, q, k: q >= k, []),
    "first key": (lambda b, h, q, k: k == 0, []),
    "prefix": (lambda b, h, q, k, n: (k < n) | (q >= k), [5]),
    "sink and window": (lambda b, h, q, k: ((q - k <= 4) | (k < 2)) & (q >= k), []),
    "mini causal": (lambda b, h, q, k: q % 8 >= k % 8, []),
    "remainder": (lambda b, h, q, k: (q >= k) & (k % 3 == 0), []),
    "same or not": (lambda b, h, q, k: (q // 4 == k // 4) | (q // 4 != k // 4), []),
    "not below": (lambda b, h, q, k: ~(q < k), []),
}
UNPROVABLE: dict[str, tuple[MaskFn, list[Any]]] = {
    "anti-causal": (lambda b, h, q, k: q <= k, []),
    "strictly causal": (lambda b, h, q, k: q > k, []),
    "window, fewer keys than rows": (lambda b, h, q, k: (q >= k) & (q - k <= 4), []),
    "window of runtime width": (lambda b, h, q, k, w: (q >= k) & (q - k <= w), [-1]),
    "short prefix": (lambda b, h, q, k, n: k < n, [0]),
    "documents": (lambda b, h, q, k, doc: (doc[q] == doc[k]) & (q >= k), [TABLE]),
    "block diagonal": (lambda b, h, q, k: q // 4 == k // 4, []),
    "fourth key": (lambda b, h, q, k: k == 3, []),
}


@pytest.mark.parametrize("name", PROVABLE)
def test_rows_proved_nonempty_are(name: str) -> None:
    mask, captures = PROVABLE[name]
    assert _proves_rows(mask, captures)
    for sq, skv in SIZES:
        present = mask(0, 0, np.arange(sq)[:, None], np.arange(skv)[None, :], *captures)
        assert np.broadcast_to(present, (sq, skv)).any(axis=1).all()


@pytest.mark.parametrize("name", UNPROVABLE)
def test_rows_that_can_be_empty_are_not_proved(name: str) -> None:
    mask, captures = UNPROVABLE[name]
    assert not _proves_rows(mask, captures)
    rows = [np.broadcast_to(mask(0, 0, np.arange(q)[:, None], np.arange(k)[None, :], *captures), (q, k)).any(axis=1) for q, k in SIZES]
    assert not np.concatenate(rows).all()


def test_signs() -> None:
    pool = Pool()
    x, y = pool.leaf("var", "x", 0), pool.leaf("var", "y", -3)
    pool.assume(x, upper=y + 10)
    assert pool.proves(y - x + 10)
    assert pool.proves(pool.most(y, x))
    assert pool.proves(x - pool.least(x, y))
    assert pool.proves(x % 5 + x // 3)
    assert pool.proves(pool.node("select", (pool.node("ge0", (y,)), x, x + 1)))
    for unknown in (y, pool.least(x, y), x - pool.most(x, y), -(x % 5), x - 1, y // 3, x - y):
        assert not pool.proves(unknown)


def test_sums_are_in_normal_form() -> None:
    pool = Pool()
    x, y = pool.leaf("var", "x", 0), pool.leaf("var", "y", 0)
    assert (x - y) + y is x
    assert x - (x // 8) * 8 is x % 8
    assert (x + 3) - ((x + 3) // y) * y is (x + 3) % y
    assert (x * 4 + y + 9) // 4 is x + (y + 1) // 4 + 2
    assert (x * 8 + y) % 8 is y % 8
    assert ~~pool.at_least(x, y) is pool.at_least(x, y)
    assert pool.least(x, x + 1, y, pool.most(x, y)) is pool.least(x, y)
