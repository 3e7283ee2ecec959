"""Ring attention on two processes, and on four in a mesh of two dimensions: equal to the dense formula, forward and backward."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ranks import Ranks
from ring_cases import MASKS

ALL = ("contiguous", "zigzag", "ranges")
CASES = [
    ("softmax", "causal"), ("sigmoid", "window"), ("relu_normalized", "late"), ("layer_norm", "documents"), ("two_sums", "chunks"),
    ("range_scaled", "prefix"), ("sinks", "both_sides"), ("retention", "none"), ("distances", "causal"),
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


@pytest.mark.parametrize(("row", "mask", "queries", "lengths"), [("sinks", "causal", 1, (50, 0)), ("two_sums", "window", 3, (5, 40))])
def test_decoding_with_the_cache_on_two_ranks(two: Ranks, row: str, mask: str, queries: int, lengths: tuple[int, ...]) -> None:
    for errors in two.run("ring_cases:decoded", row, mask, queries, lengths):
        assert max(errors) < 2e-6


def test_dtensors(two: Ranks) -> None:
    assert max(two.run("ring_cases:of_dtensors")) == 0


def test_inside_of_torchs_context_parallel(two: Ranks) -> None:
    assert max(two.run("ring_cases:in_context_parallel")) < 1e-6


def test_inside_of_compile(two: Ranks) -> None:
    assert max(two.run("ring_cases:compiled", "bshd", "zigzag")) < 1e-6


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("heads", "differ in the number of heads of q: 2 on rank 0, 3 on rank 1"),
        ("functions", "differ in the functions: rank 1 has another one than rank 0"),
        ("placement", "differ in the placement"),
        ("ranges", "the ranks hold [16, 16] positions of k and v, but placement=a list of ranges gives [10, 22] of 32"),
    ],
)
def test_every_rank_hears_of_what_differs(two: Ranks, what: str, told: str) -> None:
    for message in two.run("ring_cases:differing", what):
        assert told in message


def test_a_mesh_of_two_dimensions_and_four_ranks(tmp_path: Path) -> None:
    ranks = Ranks(4, tmp_path)
    try:
        assert ranks.run("ring_cases:on_four") == [[]] * 4
    finally:
        ranks.close()


def test_a_rank_that_dies_is_an_error_on_the_others(tmp_path: Path) -> None:
    ranks = Ranks(2, tmp_path, timeout=20)
    try:
        ranks.send("ring_cases:left_alone")
        assert ranks.answer(0) == ("value", "error")
    finally:
        ranks.close()
