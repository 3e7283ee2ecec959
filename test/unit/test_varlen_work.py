"""The lists of work of kernels on packed tensors: every row is in one item, every key in one, and groups have about equal work."""

import numpy as np
import pytest

from attn_mlir.backends.work import groups_of, rows_of

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
