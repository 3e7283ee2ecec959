"""Parts of the keys, for few queries with long caches: how many, and the lists of work of packed sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

Array = np.ndarray
LEAST, PART, MOST_PARTS = 8192, 2048, 64
"""Keys from which on there are parts, keys of a part at least, and parts at most."""
_ALL = 2**31 - 1


@dataclass(frozen=True)
class Parts:
    """Partial results of packed sequences: [entries, H, rows, ...], and the list that combines them, an item for each row."""

    entries: int
    rows: int
    combine: torch.Tensor


def parts_of(keys: int, wanted: int = 0) -> tuple[int, int]:
    """How many parts, and how many keys each has; `wanted` parts, or 0: parts of PART keys, of twice as many where MOST_PARTS do not do.

    That follows from the number of keys alone, not from threads, heads or batch, so that the same sequence has the same bits everywhere.
    """
    if not keys:
        return 1, 0
    if wanted:
        length = -(-keys // min(wanted, keys))
    elif keys < LEAST:
        return 1, keys
    else:
        length = PART
        while keys > length * MOST_PARTS:
            length *= 2
    return -(-keys // length), length


def cuts_of(keys: Array, wanted: int) -> tuple[Array, Array]:
    """`parts_of` each of these numbers of keys."""
    different, place = np.unique(keys, return_inverse=True)
    cuts = np.array([parts_of(int(each), wanted) for each in different], np.int64).reshape(-1, 2)[place]
    return cuts[:, 0], cuts[:, 1]


def lists_of(numbers: Array, rows: Array, cuts: tuple[Array, Array], block: int) -> tuple[torch.Tensor, Parts]:
    """The list of parts of these sequences, in blocks of so many rows, and what combines them. `cuts`: parts, and keys of one.

    The last part of a sequence ends where the sequence does, however long that becomes.
    """
    counts, lengths = cuts
    entry = np.cumsum(counts) - counts
    blocks = -(-rows // block)
    each = counts * blocks
    owner = np.repeat(np.arange(len(numbers)), each)
    inside = np.arange(len(owner)) - np.repeat(np.cumsum(each) - each, each)
    part, begin = inside % counts[owner], inside // counts[owner] * block
    last = part == counts[owner] - 1
    end = np.where(last, _ALL, (part + 1) * lengths[owner])
    columns = [numbers[owner], begin, np.minimum(begin + block, rows[owner]), entry[owner] + part, part * lengths[owner], end]
    owner = np.repeat(np.arange(len(numbers)), rows)
    row = np.arange(len(owner)) - np.repeat(np.cumsum(rows) - rows, rows)
    combine = [numbers[owner], row, row + 1, entry[owner], counts[owner], np.zeros_like(row)]
    return _listed(columns), Parts(int(counts.sum()), int(rows.max(initial=0)), _listed(combine))


def _listed(columns: Sequence[Array]) -> torch.Tensor:
    return torch.from_numpy(np.stack(columns, 1).astype(np.int32))
