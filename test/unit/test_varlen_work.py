"""The lists of work of kernels on packed tensors: every row is in one item, every key in one, and groups have about equal work."""

import numpy as np
import pytest

from attn_mlir.backends.cpu.parts import cuts_of, lists_of
from attn_mlir.backends.work import fixed_groups, groups_of, rows_of

RNG = np.random.default_rng(5)


def lengths_of(kind: str) -> np.ndarray:
    match kind:
        case "empty":
            return np.zeros(0, np.int32)
        case "nothing":
            return np.zeros(7, np.int32)
        case "one huge":
            return np.concatenate([RNG.integers(0, 9, 300), [20_000], RNG.integers(0, 9, 300)]).astype(np.int32)
    return RNG.integers(0, 2000, 500).astype(np.int32)


KINDS = ["empty", "nothing", "one huge", "any"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [1, 16, 32])
def test_rows_are_in_one_item_each(kind: str, block: int) -> None:
    lengths = lengths_of(kind)
    weights = RNG.permutation(lengths)
    items = rows_of(lengths, block, weights).numpy()
    seen = [np.zeros(n, int) for n in lengths]
    for sequence, begin, end, _ in items:
        assert 0 < end - begin <= block and begin % block == 0
        seen[sequence][begin:end] += 1
    assert all((each == 1).all() for each in seen)
    order = weights[items[:, 0]]
    assert (np.diff(order) <= 0).all()
    same = np.diff(items[:, 0]) == 0
    assert (np.diff(items[:, 1])[same] < 0).all()


def test_chosen_sequences_alone() -> None:
    items = rows_of(np.array([3, 4, 5], np.int32), 4, chosen=np.array([0, 2])).numpy()
    assert sorted(map(tuple, items[:, :3])) == [(0, 0, 3), (2, 0, 4), (2, 4, 5)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 8, 64])
def test_keys_are_in_one_item_each(kind: str, count: int) -> None:
    keys, queries = lengths_of(kind), lengths_of(kind)
    groups = groups_of(keys, queries, 32, count, 256)
    items, begins = groups.items.numpy(), groups.begins.numpy()
    assert begins[0] == 0 and begins[-1] == len(items) and (np.diff(begins) >= 0).all() and groups.count <= count
    seen = [np.zeros(n, int) for n in keys]
    slots: dict[int, list[int]] = {}
    for sequence, begin, end, slot in items:
        assert begin < end and begin % 32 == 0
        seen[sequence][begin:end] += 1
        slots.setdefault(int(sequence), []).append(int(slot))
    assert all((each == 1).all() for each in seen)
    assert all(found == list(range(len(found))) for found in slots.values())
    assert groups.slots == max(map(len, slots.values()), default=1)


def test_one_huge_sequence_is_cut_evenly() -> None:
    keys = lengths_of("one huge")
    groups = groups_of(keys, keys, 32, 8, 256)
    work = [
        sum(int(end - begin) * int(keys[sequence]) for sequence, begin, end, _ in groups.items.numpy()[a:b])
        for a, b in zip(groups.begins[:-1], groups.begins[1:], strict=True)
    ]
    assert groups.count == 8 and max(work) < 1.1 * sum(work) / 8


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 8])
def test_fixed_groups_cut_a_sequence_by_its_own_length(kind: str, count: int) -> None:
    keys, queries = lengths_of(kind), lengths_of(kind)
    groups = fixed_groups(keys, queries, 32, count, 8)
    items, begins = groups.items.numpy(), groups.begins.numpy()
    assert 1 <= groups.count <= count and begins[0] == 0 and begins[-1] == len(items)
    assert not len(items) or (np.diff(begins) > 0).all()
    assert groups.slots == max([1, *(items[:, 3] + 1)]) <= 8
    for number in np.flatnonzero(keys)[:: max(1, len(keys) // 20)]:
        alone = fixed_groups(keys[number : number + 1], queries[number : number + 1], 32, 1, 8).items.numpy()
        mine = items[items[:, 0] == number]
        assert (mine[:, 1:] == alone[:, 1:]).all() and len(mine) == len(alone)
        assert mine[0, 1] == 0 and mine[-1, 2] == keys[number] and (mine[1:, 1] == mine[:-1, 2]).all()


@pytest.mark.parametrize("wanted", [0, 3])
def test_parts_of_sequences_have_entries_of_their_own(wanted: int) -> None:
    """Every row has all parts of its sequence, and combines them from the first entry on."""
    keys, rows = np.array([9000, 20_000, 8192, 300_000]), np.array([1, 5, 16, 20])
    numbers, cuts = np.array([3, 5, 6, 9]), cuts_of(keys, wanted)
    items, parts = lists_of(numbers, rows, cuts, 16)
    found, combine = items.numpy(), parts.combine.numpy()
    assert parts.rows == 20 and parts.entries == cuts[0].sum() == len(np.unique(found[:, 3]))
    for number, own, count, length in zip(numbers, rows, *cuts, strict=True):
        mine, ends = found[found[:, 0] == number], combine[combine[:, 0] == number]
        assert (ends[:, 1] == np.arange(own)).all() and (ends[:, 4] == count).all()
        for begin in range(0, own, 16):
            block = mine[mine[:, 1] == begin]
            assert (block[:, 3] == ends[0, 3] + np.arange(count)).all() and (block[:, 4] == length * np.arange(count)).all()
            assert (block[:-1, 5] == block[1:, 4]).all() and block[-1, 5] == 2**31 - 1 and (block[:, 2] == min(begin + 16, own)).all()
