"""Attention and recurrences over two and four processes: equal to the dense formulas, forward and backward, and what goes wrong on one.

All tests share four processes: starting them and compiling are nearly all that this costs.
"""

from collections.abc import Iterator

import pytest

from ranks import Ranks
from ring_cases import MASKS

ALL = ("contiguous", "zigzag", "ranges")
CASES = [
    ("softmax", "causal"), ("sigmoid", "window"), ("relu_normalized", "late"), ("layer_norm", "documents"), ("two_sums", "chunks"),
    ("range_scaled", "prefix"), ("sinks", "both_sides"), ("retention", "none"), ("distances", "causal"),
]  # fmt: skip
"""Rows of each kind, and every mask; benchmarks/distributed_check.py has all pairs."""


class Two:
    """The first two of four processes."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def run(self, name: str, *arguments: object) -> list[object]:
        return self.ranks.run(name, *arguments, ranks=2)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(4, tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def two(four: Ranks) -> Two:
    return Two(four)


@pytest.mark.parametrize(("row", "mask"), CASES)
def test_equal_to_the_dense_formula(two: Two, row: str, mask: str) -> None:
    assert two.run("ring_cases:compare", row, mask, ALL) == [[], []]


def test_cases_have_every_mask() -> None:
    assert {mask for _, mask in CASES} == set(MASKS)


def test_a_mesh_of_two_dimensions_and_four_ranks(four: Ranks) -> None:
    assert four.run("ring_cases:on_four") == [[]] * 4


def test_only_keys_that_are_seen_are_sent(two: Two) -> None:
    (first, _), (second, _) = two.run("ring_cases:sent", "window", 128, "contiguous")  # type: ignore[misc]
    assert (first, second) == (19 * 2 * 8 * 4, 0)  # the last 19 keys of rank 0, in float32
    (first, _), (second, messages) = two.run("ring_cases:sent", "causal", 128, "contiguous")  # type: ignore[misc]
    assert (first, second, messages) == (64 * 2 * 8 * 4, 0, 0)


@pytest.mark.parametrize("strategy", ["all_gather", "ulysses"])
def test_other_strategies(two: Two, strategy: str) -> None:
    assert two.run("ring_cases:compare", "sinks", "both_sides", ALL, 61, strategy) == [[], []]


@pytest.mark.parametrize(("row", "mask", "queries", "lengths"), [("sinks", "causal", 1, (50, 0)), ("two_sums", "window", 3, (5, 40))])
def test_decoding_with_the_cache_on_two_ranks(two: Two, row: str, mask: str, queries: int, lengths: tuple[int, ...]) -> None:
    for errors in two.run("ring_cases:decoded", row, mask, queries, lengths):
        assert max(errors) < 2e-6  # type: ignore[call-overload]


def test_dtensors(two: Two) -> None:
    assert two.run("ring_cases:of_dtensors") == [0, 0]


def test_inside_of_torchs_context_parallel(two: Two) -> None:
    assert all(error < 1e-6 for error in two.run("ring_cases:in_context_parallel"))  # type: ignore[operator]


def test_one_operator_of_a_graph(two: Two) -> None:
    assert all(error < 1e-6 for error in two.run("ring_cases:compiled", "bshd", "zigzag"))  # type: ignore[operator]


def test_two_weights_with_dropout(two: Two) -> None:
    """The bits are those of one process, and what is captured has gradients."""
    assert two.run("ring_dropout_cases:compare", True, True, ("zigzag", "ranges"), 61) == [[], []]


def test_seeds_that_ranks_draw(two: Two) -> None:
    assert two.run("ring_dropout_cases:drawn") == [(True, False)] * 2


@pytest.mark.parametrize(
    ("ends", "total"),
    [((20, 27, 27, 70, 90), 96), ((64,), 64), ((16, 32, 48, 64), 64), ((3,), 64)],
    ids=["cut anywhere", "one", "cut nowhere", "on one rank"],
)
def test_packed_documents(four: Ranks, ends: tuple[int, ...], total: int) -> None:
    """Each has the result that it has alone, with dropout; of the first case, one is empty, and rows behind the last belong to none."""
    assert four.run("ring_packed_cases:compare", ends, total, ALL, True) == [[]] * 4


def test_documents_that_ranks_do_not_share_are_not_sent(four: Ranks) -> None:
    key = 2 * 8 * 4
    assert four.run("ring_packed_cases:sent") == [[0, 16 * key], [0, (5 + 11) * key], [0, (5 + 11) * key], [0, 5 * key]]


def test_recurrences(two: Two) -> None:
    """With decays of channels, which have all that those of heads have."""
    assert two.run("ring_linear_cases:compare", "channel", True) == [[], []]


def test_delta_rules(four: Ranks) -> None:
    """Also of fewer positions than ranks."""
    for length in (75, 3):
        assert four.run("ring_linear_cases:compare_delta", length, False, True) == [[]] * 4


def test_training_a_model_of_transformers(two: Two) -> None:
    """The losses of examples/context_parallel_training.py are those of one process."""
    (mine, alone), (other, _) = two.run("ring_training_cases:losses")  # type: ignore[misc]
    assert mine == other
    assert mine == pytest.approx(alone, abs=1e-4)
    assert alone[-1] < alone[0]


def test_every_rank_hears_of_what_is_wrong_on_one(four: Ranks) -> None:
    """At once, and all ranks are good for another call."""
    *others, odd = four.run("ring_fault_cases:faults")
    for name, (told, seconds) in others[0].items():
        assert seconds < 60, name
        assert all(other[name][0] == told for other in others), name
        own = odd[name][0]
        refused = told == "rank 3 of the mesh's dimension refused the arguments of its call: see its error"
        assert (own != told and own != "no error") if refused else (own == told and ("differ" in told or "the ranks hold" in told)), name
    assert others[0]["batch"][0] == "ranks of the mesh's dimension differ in the batch size: 1 on rank 0, 2 on rank 3"
    assert others[0]["another call"][0] == "ranks of the mesh's dimension differ: rank 0 calls ring_attention, rank 3 decode_attention"


def test_what_has_no_ring(four: Ranks) -> None:
    """All ranks raise the same error, which says what to do."""
    told = four.run("ring_fault_cases:refused")
    assert told == [told[0]] * 4
    for message, wanted in zip(told[0], ('strategy="all_gather"', "cut documents where they end", 'use "ring"'), strict=True):
        assert wanted in message


def test_other_lengths_than_in_the_last_call(four: Ranks) -> None:
    """Which most ranks learn while they compute with the old ones."""
    assert all(error < 1e-6 for error in four.run("ring_fault_cases:shorter"))


def test_a_rank_that_dies_is_an_error_on_the_others(four: Ranks) -> None:
    """The last of this file's tests: the processes are of no use behind it."""
    four.send("ring_fault_cases:dies", "between", ranks=4)
    assert [four.answer(rank) for rank in range(3)] == [("value", "error")] * 3
