"""Which keys of a shard the queries of another one see: what is computed, and what is sent."""

import dataclasses
from collections.abc import Callable, Sequence

from attn_mlir.distributed.placement import Range, Ranges

_BLOCKS, _ROWS = 16, 128
"""How many parts of a range of queries are looked at, of a multiple of how many rows."""
Sees = Callable[[Range, Range], Range]
"""The keys, a range within the second one (empty: begin = end), that queries of the first range may see."""


@dataclasses.dataclass(frozen=True)
class KernelRun:
    """One run of a kernel: the queries of a range, and some keys of a message."""

    query: Range
    """Positions in the whole sequence."""
    rows: Range
    """Places in the rank's own shard of queries."""
    keys: Range
    columns: Range
    """Places in the message (of a rank's own keys: in its shard)."""


@dataclasses.dataclass(frozen=True)
class Message:
    """The keys of one rank that another one needs, and what it computes of them."""

    places: tuple[Range, ...]
    """Places in the shard of the rank that holds them, in order; the message has them one after another."""
    work: tuple[KernelRun, ...]

    @property
    def length(self) -> int:
        """How many keys it has."""
        return sum(end - begin for begin, end in self.places)


def message(queries: Sequence[Range], keys: Sequence[Range], sees: Sees) -> Message:
    """What a rank with `queries` needs of a rank that holds `keys`."""
    places, work = list[Range](), list[KernelRun]()
    at = sent = 0
    for begin, end in keys:
        seen = [sees(query, (begin, end)) for query in queries]
        present = [one for one in seen if one[0] < one[1]]
        if present:
            first, last = min(one[0] for one in present), max(one[1] for one in present)
            places.append((at + first - begin, at + last - begin))
            row = 0
            for query, one in zip(queries, seen, strict=True):
                rows = (row, row + query[1] - query[0])
                row = rows[1]
                if one[0] < one[1]:
                    kept = seeing(query, one, sees)
                    places_ = (rows[0] + kept[0] - query[0], rows[0] + kept[1] - query[0])
                    work.append(KernelRun(kept, places_, one, (sent + one[0] - first, sent + one[1] - first)))
            sent += last - first
        at += end - begin
    return Message(tuple(places), tuple(work))


def seeing(query: Range, key: Range, sees: Sees) -> Range:
    """The queries that may see some of the keys, but for `_BLOCKS`th parts of the range."""
    size = max(-(-(query[1] - query[0]) // _BLOCKS // _ROWS) * _ROWS, _ROWS)
    blocks = [(begin, min(begin + size, query[1])) for begin in range(query[0], query[1], size)]
    found = [block for block in blocks if (seen := sees(block, key))[0] < seen[1]]
    return (found[0][0], found[-1][1]) if found else query


def own(message_: Message) -> Message:
    """The message of a rank to itself: its keys stay where they are in its shard."""
    work = []
    for each in message_.work:
        sent = 0
        for begin, end in message_.places:
            if sent <= each.columns[0] < sent + end - begin:
                move = begin - sent
                work.append(dataclasses.replace(each, columns=(each.columns[0] + move, each.columns[1] + move)))
                break
            sent += end - begin
    return Message(message_.places, tuple(work))


def in_halves(work: Sequence[KernelRun]) -> tuple[tuple[KernelRun, ...], tuple[KernelRun, ...]]:
    """Work in two halves: what a rank does while others' keys come, and while its gradients go."""
    if len(work) == 1:
        (one,) = work
        half = (one.query[1] - one.query[0]) // 2
        work = [
            dataclasses.replace(one, query=(one.query[0] + a, one.query[0] + b), rows=(one.rows[0] + a, one.rows[0] + b))
            for a, b in ((0, half), (half, one.query[1] - one.query[0]))
            if a < b
        ]
    middle = len(work) // 2
    return tuple(work[:middle]), tuple(work[middle:])


@dataclasses.dataclass(frozen=True)
class RingSteps:
    """What one rank does: at step t it works on keys of rank - t, and sends its own to rank + t."""

    received: tuple[Message, ...]
    """By step; step 0 is the rank's own."""
    sent: tuple[Message, ...]


def steps(rank: int, queries: Ranges, keys: Ranges, sees: Sees) -> RingSteps:
    """The steps of a rank."""
    count = len(keys)
    received = [message(queries[rank], keys[(rank - t) % count], sees) for t in range(count)]
    sent = [message(queries[(rank + t) % count], keys[rank], sees) for t in range(count)]
    return RingSteps((own(received[0]), *received[1:]), tuple(sent))
