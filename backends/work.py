"""Lists of work for kernels on packed tensors: blocks of the rows of all sequences, made on the host once for each call.

Their form is that of `attn_mlir.passes.tiling.work`. They follow from the lengths alone, never from the number of threads, so that sums are
added up in one order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from attn_mlir.backends.graph_capture import is_captured

Array = np.ndarray
FIXED = 2048
"""Keys of a chunk at least, where a sequence is cut by its own length alone."""


_KEPT, _COVERED, _CHECKED = "attn_mlir_work", "attn_mlir_covered", "attn_mlir_checked"


def keep_work(lengths: torch.Tensor) -> None:
    """Says that lengths follow from sizes alone, never change, are not 0, and leave no row out.

    So a list of work may be made of them once, and kernels write each row of their results.
    """
    setattr(lengths, _KEPT, {})


def cover_rows(lengths: torch.Tensor) -> torch.Tensor:
    """The same, of which is said that they leave no row out."""
    setattr(lengths, _COVERED, True)
    return lengths


def leaves_rows(lengths: torch.Tensor) -> bool:
    """Whether there may be rows of no sequence of such lengths."""
    return not (hasattr(lengths, _KEPT) or hasattr(lengths, _COVERED))


def say_checked(begins: torch.Tensor) -> torch.Tensor:
    """The same, of which is said that sequences which begin there were looked at: they may have rows in common."""
    setattr(begins, _CHECKED, True)
    return begins


def is_said_checked(begins: torch.Tensor) -> bool:
    """Whether `say_checked` was asked of it."""
    return hasattr(begins, _CHECKED)


def kept_work(lengths: torch.Tensor, key: tuple[int, int, bool], make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What `make` makes, or made before of such lengths and `key`; who keeps the lengths keeps the lists.

    The order of their items is that of the first call's other lengths: it changes no result.
    """
    kept = getattr(lengths, _KEPT, None)
    if kept is None:
        return make()
    found = kept.get(key)
    if found is None:
        found = make()
        if not lengths.is_cuda:
            kept[key] = found
        elif not is_captured(lengths.device):  # what a graph makes has no contents before it runs
            torch.cuda.current_stream(lengths.device).synchronize()  # calls on other streams take it, too
            kept[key] = found
    return found


@dataclass(frozen=True)
class Groups:
    """The list of a kernel of pairs: items, where the groups of items begin, and how many slots sums over keys need."""

    items: torch.Tensor
    begins: torch.Tensor
    slots: int

    @property
    def count(self) -> int:
        return len(self.begins) - 1


def rows_of(lengths: Array, block: int, weights: Array | None = None, chosen: Array | None = None) -> torch.Tensor:
    """Blocks of `block` rows: those of the sequences of most weight first, and of each the last rows, which see most under a causal mask.

    `weights` are the other side's lengths; `chosen` numbers the sequences that are wanted, None: all.
    """
    numbers = np.arange(len(lengths)) if chosen is None else chosen
    if weights is not None and len(numbers) > 1:
        numbers = numbers[np.argsort(-weights[numbers], kind="stable")]
    own = lengths[numbers].astype(np.int64)
    blocks = -(-own // block)
    owner = np.repeat(np.arange(len(numbers)), blocks)
    left = np.cumsum(blocks)[owner] - np.arange(len(owner)) - 1 if len(owner) else owner
    items = np.zeros((len(owner), 4), np.int32)
    items[:, 0] = numbers[owner]
    items[:, 1] = left * block
    items[:, 2] = np.minimum(items[:, 1] + np.int64(block), own[owner])
    return torch.from_numpy(items)


def groups_of(keys: Array, queries: Array, block: int, count: int, shortest: int) -> Groups:
    """At most `count` groups of about equal work, cut between sequences, or inside at multiples of `block` at least `shortest` keys apart.

    The chunks of one sequence have the slots 0, 1, ... in their order.
    """
    step = -(-shortest // block) * block
    work = keys.astype(np.int64) * np.maximum(queries, 1)
    ends = np.cumsum(work)
    total = int(ends[-1]) if len(ends) else 0
    cuts: list[tuple[int, int]] = [(0, 0)]
    for number in range(1, count if total else 1):
        target = total * number // count
        sequence = int(np.searchsorted(ends, target, side="right"))
        inside = (target - int(ends[sequence] - work[sequence])) // max(1, int(queries[sequence]))
        position = round(inside / step) * step
        cut = (sequence, position) if position < int(keys[sequence]) else (sequence + 1, 0)
        if cut > cuts[-1] and cut[0] < len(keys):
            cuts.append(cut)
    return _cut(keys, cuts)


def fixed_groups(keys: Array, queries: Array, block: int, count: int, most: int) -> Groups:
    """At most `count` groups of about equal work, where a sequence is cut by its own length alone: into at most `most` chunks.

    So sums over the keys of a sequence do not depend on the others: chunks are multiples of `block` of at least FIXED keys.
    """
    least, wide = -(-FIXED // block) * block, keys.astype(np.int64)
    each = (wide + most - 1) // most
    length = np.maximum(least, -(-each // block) * block)
    chunks = -(-wide // length)
    owner = np.repeat(np.arange(len(keys)), chunks)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    items = np.zeros((len(owner), 4), np.int32)
    items[:, 0], items[:, 3] = owner, number
    items[:, 1] = number * length[owner]
    items[:, 2] = np.minimum(items[:, 1] + length[owner], keys[owner])
    work = np.cumsum((items[:, 2] - items[:, 1]).astype(np.int64) * np.maximum(queries[owner], 1))
    total = int(work[-1]) if len(work) else 0
    cuts = np.unique(np.searchsorted(work, [total * n // count for n in range(count)], side="right")) if total else np.zeros(1)
    begins = np.append(np.unique(np.append(cuts, 0)), len(items)).astype(np.int32)
    return Groups(torch.from_numpy(items), torch.from_numpy(begins), int(chunks.max(initial=1)))


def _cut(keys: Array, cuts: Sequence[tuple[int, int]]) -> Groups:
    """The groups that begin at these sequences and keys."""
    inner = [cut for cut in cuts if cut[1]]
    present = np.flatnonzero(keys)
    first = np.stack([present, np.zeros_like(present)], 1)
    starts = np.concatenate([first, np.array(inner, dtype=first.dtype).reshape(-1, 2)])
    starts = starts[np.lexsort((starts[:, 1], starts[:, 0]))]
    items = np.zeros((len(starts), 4), np.int32)
    items[:, :2] = starts
    items[:, 2] = keys[starts[:, 0]]
    same = starts[1:, 0] == starts[:-1, 0]
    items[:-1, 2][same] = starts[1:, 1][same]
    for n in np.flatnonzero(same):  # no more than there are cuts
        items[n + 1, 3] = items[n, 3] + 1
    order = starts[:, 0].astype(np.int64) << 32 | starts[:, 1]
    begins = np.searchsorted(order, np.array([sequence << 32 | position for sequence, position in cuts], np.int64))
    begins = np.append(begins, len(items)).astype(np.int32)
    slots = int(items[:, 3].max(initial=0)) + 1
    return Groups(torch.from_numpy(items), torch.from_numpy(begins), slots)
