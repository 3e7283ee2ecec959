"""Ring attention on two processes, and on four in a mesh of two dimensions: equal to the dense formula, forward and backward."""

from collections.abc import Iterator

import pytest

from ranks import Ranks
from ring_cases import MASKS

ALL = ("contiguous", "zigzag", "ranges")
CASES = [
    ("softmax", "causal"), ("sigmoid", "window"), ("relu_normalized", "late"), ("layer_norm", "documents"), ("two_sums", "chunks"),
    ("range_scaled", "prefix"), ("sinks", "both_sides"), ("retention", "none"),
]  # fmt: skip
"""Rows of each kind, and every mask; benchmarks/distributed_check.py has all pairs."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(2, tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()


@pytest.mark.parametrize(("row", "mask"), CASES)
def test_equal_to_the_dense_formula(two: Ranks, row: str, mask: str) -> None:
    assert two.run("ring_cases:compare", row, mask, ALL) == [[], []]


def test_cases_have_every_mask() -> None:
    assert {mask for _, mask in CASES} == set(MASKS)


def test_only_keys_that_are_seen_are_sent(two: Ranks) -> None:
    (first, _), (second, _) = two.run("ring_cases:sent", "window", 128, "contiguous")
    assert (first, second) == (19 * 2 * 8 * 4, 0)  # the last 19 keys of rank 0, in float32
    (first, _), (second, messages) = two.run("ring_cases:sent", "causal", 128, "contiguous")
    assert (first, second, messages) == (64 * 2 * 8 * 4, 0, 0)


@pytest.mark.parametrize("strategy", ["all_gather", "ulysses"])
def test_other_strategies(two: Ranks, strategy: str) -> None:
    assert two.run("ring_cases:compare", "sinks", "both_sides", ALL, 61, strategy) == [[], []]
