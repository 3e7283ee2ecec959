"""Where the positions of a sequence lie: the ranges of positions that each rank holds."""

import itertools
from collections.abc import Sequence
from typing import Any

from attn_mlir.errors import ArgumentError

Range = tuple[int, int]
Placement = str | Sequence[Any]
"""A name, or for each rank its range (begin, end), or a list of its ranges in the order in which it holds them."""
Ranges = tuple[tuple[Range, ...], ...]
"""For each rank the ranges that it holds; neighbours are joined, and none is empty."""
NAMES = ("contiguous", "zigzag")


def ranges_of(placement: Placement, length: int, ranks: int) -> Ranges:
    """The ranges of a sequence of `length` positions. Raises ArgumentError for placements that do not hold each position once.

    "contiguous": chunks as `torch.chunk` cuts them, and DTensors are sharded; "zigzag": of 2 n chunks rank r holds r and 2 n - 1 - r.
    """
    if placement == "contiguous":
        size = -(-length // ranks)
        return tuple(_joined([(min(r * size, length), min((r + 1) * size, length))]) for r in range(ranks))
    if placement == "zigzag":
        cuts = [number * length // (2 * ranks) for number in range(2 * ranks + 1)]
        chunks = list(itertools.pairwise(cuts))
        return tuple(_joined([chunks[r], chunks[2 * ranks - 1 - r]]) for r in range(ranks))
    return _given(placement, length, ranks)


def contiguous(lengths: Sequence[int]) -> Ranges:
    """The ranges of shards of these lengths that follow each other."""
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    return tuple(_joined([(end - length, end)]) for end, length in zip(ends, lengths, strict=True))


def placed(placement: Placement, lengths: Sequence[int], name: str) -> Ranges:
    """The ranges of shards that have these lengths. Raises ArgumentError where the placement gives others; `name` says of which tensor."""
    if placement == "contiguous":
        return contiguous(lengths)
    ranges = ranges_of(placement, sum(lengths), len(lengths))
    wanted = [held(each) for each in ranges]
    if wanted != list(lengths):
        kind = f'"{placement}"' if isinstance(placement, str) else "a list of ranges"
        raise ArgumentError(
            f"the ranks hold {list(lengths)} positions of {name}, but placement={kind} gives {wanted} of {sum(lengths)}: cut it with "
            "attn_mlir.distributed.shard"
        )
    return ranges


def held(ranges: Sequence[Range]) -> int:
    """How many positions ranges have."""
    return sum(end - begin for begin, end in ranges)


def _given(placement: Any, length: int, ranks: int) -> Ranges:
    if isinstance(placement, str) or not isinstance(placement, Sequence):
        raise ArgumentError(f"placement is {', '.join(map(repr, NAMES))} or a list with the ranges of each rank; got {placement!r}")
    if len(placement) != ranks:
        raise ArgumentError(f"placement lists the ranges of {len(placement)} ranks, but the mesh's dimension has {ranks}")
    every = [_ranges(each, rank) for rank, each in enumerate(placement)]
    end = 0
    for begin, stop in sorted(one for each in every for one in each):
        if begin != end:
            what = "is held twice" if begin < end else "is held by no rank"
            raise ArgumentError(f"placement: position {min(begin, end)} {what}")
        end = stop
    if end != length:
        raise ArgumentError(f"placement has ranges up to {end}, but the sequence has {length} positions")
    return tuple(_joined(each) for each in every)


def _ranges(given: Any, rank: int) -> list[Range]:
    single = isinstance(given, Sequence) and len(given) == 2 and all(isinstance(x, int) for x in given)
    every = [given] if single else given
    try:
        found = [(int(begin), int(end)) for begin, end in every]
    except (TypeError, ValueError):
        raise ArgumentError(f"placement: rank {rank} has {given!r}, which is no range (begin, end) or list of these") from None
    for begin, end in found:
        if not 0 <= begin <= end:
            raise ArgumentError(f"placement: rank {rank} has the range {(begin, end)}, which must have 0 <= begin <= end")
    return [one for one in found if one[0] < one[1]]


def _joined(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Without empty ranges; those that follow each other are one."""
    found: list[Range] = []
    for begin, end in ranges:
        if found and found[-1][1] == begin and begin < end:
            found[-1] = (found[-1][0], end)
        elif begin < end:
            found.append((begin, end))
    return tuple(found)
