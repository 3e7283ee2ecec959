"""Packed sequences whose pairs go through memory: long ones where they lie, short ones of about one length as entries of a batch."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attn_mlir.backends.allocation import empty
from attn_mlir.backends.gpu import pair_chunks
from attn_mlir.backends.gpu.pair_chunks import PairChunk, PairSizes, chunks, range_of
from attn_mlir.backends.gpu.pair_products import STEP, PairsInMemory
from attn_mlir.backends.graph_capture import is_captured
from attn_mlir.errors import ArgumentError

Array = np.ndarray
PADDED = 1.25
"""Pairs of a batch, of which each sequence has as many rows as the longest, times those of its sequences, at most."""
SPARE = 1 << 23
"""Or pairs of heads that are padding: fewer take a GPU no longer than the launches of one more batch take the host. Measured on an H200
on 2026-11-27 (docs/notes/serving-h100.md).
"""


@dataclass(frozen=True)
class PackedPart:
    """Sequences, whose numbers are in `order`, as tensors [n, H, rows, D] and chunks of these."""

    order: torch.Tensor
    chunks: list[PairChunk]
    operands: Mapping[int, torch.Tensor]
    targets: Callable[[Sequence[torch.Tensor]], Mapping[int, torch.Tensor]]
    """Where sums go, by the numbers of results, which it is given."""
    store: Callable[[Sequence[torch.Tensor], Mapping[int, torch.Tensor]], None]
    """Brings these to the results."""
    first: int
    """The first packed query of one sequence."""
    places: torch.Tensor | None = None
    """Of several, whose `targets` are memory of their own, the packed row of each query [n, rows]; past its end, one past all."""


class PackedPairs:
    """The sequences of a step's operands. Their lengths are read where the host can see them, which waits for a GPU."""

    def __init__(self, described: PairsInMemory, operands: Sequence[Any], sizes: PairSizes, most: int = 0, apart: bool = False) -> None:
        """`most`: pairs of a chunk (0: as `chunks` has it); `apart`: each sequence is computed by itself.

        Raises ArgumentError where a CUDA graph is being captured.
        """
        given = [operands[number] for number in described.sequences]
        if is_captured(given[0].device):
            raise ArgumentError(
                "gradients of packed sequences with heads of more than 256 columns read the lengths on the host, which a CUDA graph cannot "
                "wait for while it is captured: capture the forward pass alone, or give the sequences as entries of a batch, with a mask"
            )
        self._described, self._operands, self._sizes, self._most = described, operands, sizes, most
        self._apart = apart
        read = torch.stack(given).cpu().numpy().astype(np.int64)
        totals = np.array([[sizes.queries], [sizes.queries], [sizes.keys], [sizes.keys]])
        self._first, self._count, self._first_key, self._key_count = np.clip(read, 0, totals)
        # What nobody checked may lie outside of the tensors.
        self._count = np.minimum(self._count, sizes.queries - self._first)
        self._key_count = np.minimum(self._key_count, sizes.keys - self._first_key)
        self._device = given[0].device
        self._known = {**dict(enumerate(operands)), **dict(zip(described.sequences, read, strict=True))}

    def parts(self) -> Iterator[PackedPart]:
        """All sequences that have queries and keys, in parts of similar ones."""
        groups = self._groups()
        if not groups:
            return
        # All indices go to the device at once: a copy from memory of the host waits for what runs there.
        places = [self._places(group) if len(group) > 1 else () for group in groups]
        arrays = [np.concatenate(groups), *(array for own in places for array in own)]
        ends = np.cumsum([array.size for array in arrays])
        sent = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays])).to(self._device)
        order, begin, number = sent[: int(ends[0])].int(), 0, 1
        for group, own in zip(groups, places, strict=True):
            numbers = order[begin : begin + len(group)]
            begin += len(group)
            if len(group) == 1:
                yield self._alone(int(group[0]), numbers)
                continue
            indices = [sent[int(ends[n - 1]) : int(ends[n])].view(arrays[n].shape) for n in range(number, number + len(own))]
            number += len(own)
            yield self._together(group, numbers, indices)

    def _places(self, group: Array) -> list[Array]:
        """Of queries and then of keys: the rows of each sequence in a batch of these, and of those that exist entry, row and packed row.

        The last ones are packed rows of queries again. There rows past the end of a sequence are one past all, before its own last one.
        """
        found = []
        for begins, counts, step in ((self._first, self._count, 1), (self._first_key, self._key_count, STEP)):
            own = counts[group][:, None]
            steps = np.arange(-(-int(own.max()) // step) * step)
            rows = begins[group][:, None] + np.minimum(steps, own - 1)
            entry, row = np.nonzero(steps < own)
            found += [rows, entry, row, rows[entry, row]]
        own = self._count[group][:, None]
        steps = np.arange(int(own.max()))
        return [*found, np.where(steps < own, self._first[group][:, None] + steps, self._sizes.queries)]

    def _groups(self) -> list[Array]:
        """The numbers of sequences that are computed together."""
        numbers = np.flatnonzero((self._count > 0) & (self._key_count > 0))
        numbers = numbers[np.lexsort((self._count[numbers], self._key_count[numbers]))]
        most, groups, begin = (self._most or pair_chunks.MOST_PAIRS) // self._sizes.heads, list[Array](), 0
        meet = _overlap(self._first_key[numbers], self._key_count[numbers]) or _overlap(self._first[numbers], self._count[numbers])
        for end in range(1, len(numbers) + 1):
            if end < len(numbers) and not (meet or self._apart):
                queries, keys = self._count[numbers[begin : end + 1]], self._key_count[numbers[begin : end + 1]]
                pairs, own = len(queries) * int(queries.max()) * int(keys.max()), int((queries * keys).sum())
                if pairs <= most and (pairs <= PADDED * own or (pairs - own) * self._sizes.heads <= SPARE):
                    continue
            groups.append(numbers[begin:end])
            begin = end
        return groups

    def _chunks(self, sizes: PairSizes, group: Array) -> list[PairChunk]:
        keys = self._described.keys
        if keys is None:
            return list(chunks(sizes, None, self._most))

        def ranged(begin: int, end: int) -> tuple[int, int]:
            found = [range_of(keys, self._known, self._sizes, begin, end, int(number)) for number in group]
            return min(a for a, _ in found), max(b for _, b in found)

        return list(chunks(sizes, ranged, self._most))

    @functools.cached_property
    def _sides(self) -> dict[int, bool]:
        """The tensors that are multiplied and summed, and whether they are of queries."""
        described = self._described
        sides = {number: side == 0 for product in described.products for side, number in enumerate(product)}
        return {**sides, **{term: each.kind == "key" for each in described.sums for term in each.terms}}

    def _alone(self, number: int, order: torch.Tensor) -> PackedPart:
        """One sequence: parts of the packed tensors."""
        rows = {
            True: slice(int(self._first[number]), int(self._first[number] + self._count[number])),
            False: slice(int(self._first_key[number]), int(self._first_key[number] + self._key_count[number])),
        }
        sizes = PairSizes(1, self._sizes.heads, int(self._count[number]), self._sizes.key_heads, int(self._key_count[number]))

        def targets(results: Sequence[torch.Tensor]) -> Mapping[int, torch.Tensor]:
            return {each.result: results[each.result][:, :, rows[each.kind == "query"]] for each in self._described.sums}

        operands = {place: self._operands[place][:, :, rows[side]] for place, side in self._sides.items()}
        return PackedPart(order, self._chunks(sizes, np.array([number])), operands, targets, lambda results, made: None, rows[True].start)

    def _together(self, group: Array, order: torch.Tensor, indices: Sequence[torch.Tensor]) -> PackedPart:
        """Sequences as entries of a batch; `indices` are those of `_places`. What is past the end of a sequence has weights of 0."""
        by_side = {True: indices[:4], False: indices[4:8]}
        counts = {side: own[0].shape[1] for side, own in by_side.items()}
        sizes = PairSizes(len(group), self._sizes.heads, counts[True], self._sizes.key_heads, counts[False])

        def targets(results: Sequence[torch.Tensor]) -> Mapping[int, torch.Tensor]:
            made = {}
            for each in self._described.sums:
                result = results[each.result]
                shape = (len(group), result.shape[1], counts[each.kind == "query"], result.shape[3])
                made[each.result] = empty(shape, dtype=torch.float32, device=result.device)
            return made

        def store(results: Sequence[torch.Tensor], made: Mapping[int, torch.Tensor]) -> None:
            for each in self._described.sums:
                _, entry, row, place = by_side[each.kind == "query"]
                result = results[each.result][0].transpose(0, 1)
                result.index_put_((place,), made[each.result][entry, :, row].to(result.dtype))

        operands = {place: _gathered(self._operands[place], by_side[side][0]) for place, side in self._sides.items()}
        return PackedPart(order, self._chunks(sizes, group), operands, targets, store, 0, indices[-1])


def _gathered(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Of a packed tensor [1, H, T, D] the rows [n, r] of each head, as [n, H, r, D]."""
    heads = torch.arange(tensor.shape[1], device=tensor.device)
    return tensor[0][heads[None, :, None], rows[:, None, :]]


def _overlap(begins: Array, counts: Array) -> bool:
    """Whether sequences have rows in common, of which each adds to what the others made."""
    order = np.argsort(begins)
    return bool(np.any(begins[order][1:] < (begins + counts)[order][:-1]))
