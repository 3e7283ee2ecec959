"""Counts the blocks that a mask skips, decides in or keeps whole, for any lengths: by halving what a coarse block leaves open.

Interval evaluation is monotone: what it says of a large block (nothing present, everything present) it also says of every block inside of
it, because a block is only ever cut at fixed positions. So a block of many blocks that is decided need not be looked into, and the counts
are those that `classify` would find block by block.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_mlir.passes.intervals.classify import FULL, PARTIAL, SKIP, Blocks
from attn_mlir.passes.regions import piece

Array = Any
_CELLS = 128
"""Cells of a survey on each side, at most."""
_AT_ONCE = 1 << 19
_LIMIT = 1 << 23
"""Blocks that are looked at one by one, at most."""
_GRID = 1 << 18
"""Blocks of a survey that also holds the class of each."""


@dataclass(frozen=True, eq=False)
class Survey:
    """The blocks of one head.

    bounds: int64 [q blocks, 4], begin, full_begin, full_end and end of each row of blocks, in keys.
    partial, full: int64 [rows of cells, columns of cells], how many blocks of each cell are partial and full; the others are skipped.
    cell: blocks of queries and of keys in a cell. shape: how many blocks of queries and of keys there are.
    grid: int8 [q blocks, kv blocks] of SKIP, PARTIAL and FULL; None where these are too many to list.
    undecided: how many of the partial blocks were counted as such without having been looked at.
    """

    bounds: Array
    partial: Array
    full: Array
    cell: tuple[int, int]
    shape: tuple[int, int]
    grid: Array | None
    undecided: int = 0

    @property
    def counts(self) -> tuple[int, int, int]:
        """Skipped, partial and full blocks."""
        partial, full = int(self.partial.sum()), int(self.full.sum())
        return self.shape[0] * self.shape[1] - partial - full, partial, full


def survey(blocks: Blocks, length: int, block: tuple[int, int]) -> Survey:
    """The survey of an attention's `blocks` at one batch entry and head, for `length` keys and blocks of `block` queries and keys."""
    bounds = blocks.bounds()[0, 0].astype(np.int64)
    shape = (len(bounds), -(-length // block[1]))
    cell = (_cell(shape[0]), _cell(shape[1]))
    known = _Known(blocks, bounds, length, block, shape)
    if shape[0] * shape[1] <= _GRID:
        rows, columns = (axis.ravel() for axis in np.indices(shape))
        grid = known.classes(rows, columns, (1, 1)).reshape(shape).astype(np.int8)
        counts = [_add_up(grid == kind, cell) for kind in (PARTIAL, FULL)]
        return Survey(bounds, *counts, cell, shape, grid)
    if known.mask is None:
        return Survey(bounds, *known.count_rows(cell), cell, shape, None)
    return Survey(bounds, *_descend(known, cell), cell=cell, shape=shape, grid=None, undecided=known.undecided)


def _cell(count: int) -> int:
    """A power of two, for at most _CELLS cells."""
    return 1 << max(0, (-(-count // _CELLS) - 1).bit_length())


def _add_up(present: Array, cell: tuple[int, int]) -> Array:
    rows = np.add.reduceat(present.astype(np.int64), np.arange(0, present.shape[0], cell[0]), axis=0)
    return np.add.reduceat(rows, np.arange(0, present.shape[1], cell[1]), axis=1)


class _Known:
    """What is known of blocks of any size."""

    def __init__(self, blocks: Blocks, bounds: Array, length: int, block: tuple[int, int], shape: tuple[int, int]) -> None:
        self.blocks, self.bounds, self.length, self.block, self.shape = blocks, bounds, length, block, shape
        self.mask = piece(blocks.owner, "attn.block_mask")
        self.queries = int(blocks.axes[3].ravel()[-1]) if bounds.size else 0
        self.undecided = 0
        self._merged: dict[int, list[Array]] = {}

    def classes(self, rows: Array, columns: Array, size: tuple[int, int]) -> Array:
        """Of blocks of `size` blocks, given by their numbers; PARTIAL where the blocks inside may differ."""
        return np.concatenate(
            [self._classes(rows[i : i + _AT_ONCE], columns[i : i + _AT_ONCE], size) for i in range(0, len(rows), _AT_ONCE)]
            or [np.empty(0, np.int64)]
        )

    def _classes(self, rows: Array, columns: Array, size: tuple[int, int]) -> Array:
        begin, full_begin, full_end, end = (bound[rows] for bound in self._bounds(size[0]))
        first, last = self._ends(columns, size[1] * self.block[1], self.length)
        found = np.where((first < end) & (last > begin) & (begin < end), PARTIAL, SKIP)
        found[(first >= full_begin) & (last <= full_end)] = FULL
        if self.mask is None:
            return found
        asked = found == PARTIAL
        sides = (*self._ends(rows[asked], size[0] * self.block[0], self.queries), first[asked], last[asked])
        b, h = (axis.ravel() for axis in self.blocks.axes[:2])
        some, every = (np.broadcast_to(x, sides[0].shape) for x in self.blocks.run(self.mask, [b, h, *sides]))
        found[asked] = np.where(~some.astype(bool), SKIP, np.where(every.astype(bool), FULL, PARTIAL))
        return found

    def _ends(self, numbers: Array, size: int, length: int) -> tuple[Array, Array]:
        first = numbers * size
        return first, np.minimum(first + size, length)

    def _bounds(self, size: int) -> list[Array]:
        """The bounds that hold for every row of blocks of `size` rows of blocks."""
        if size not in self._merged:
            merge = (np.minimum, np.maximum, np.minimum, np.maximum)
            starts = np.arange(0, len(self.bounds), size)
            self._merged[size] = [f.reduceat(self.bounds[:, i], starts) for i, f in enumerate(merge)]
        return self._merged[size]

    def count_rows(self, cell: tuple[int, int]) -> tuple[Array, Array]:
        """The partial and the full blocks of each cell, where bounds say all."""
        begin, full_begin, full_end, end = self.bounds.T
        size, count = self.block[1], self.shape[1]
        edges = np.arange(0, count, cell[1])
        full = _inside(-(-full_begin // size), np.where(full_end >= self.length, count, full_end // size), edges, cell[1])
        some = _inside(np.where(begin >= end, count, begin // size), -(-end // size), edges, cell[1])
        starts = np.arange(0, self.shape[0], cell[0])
        full, some = (np.add.reduceat(x, starts, axis=0) for x in (full, np.maximum(some, full)))
        return some - full, full


def _inside(first: Array, last: Array, edges: Array, width: int) -> Array:
    """How many of the blocks [first, last) of each row are in the cells that begin at `edges`."""
    ends = np.maximum(last, first)
    return np.clip(ends[:, None] - edges, 0, width) - np.clip(first[:, None] - edges, 0, width)


def _descend(known: _Known, cell: tuple[int, int]) -> tuple[Array, Array]:
    """The partial and the full blocks of each cell: what is open of a block is halved, until it is one block."""
    cells = tuple(-(-known.shape[i] // cell[i]) for i in range(2))
    rows, columns = (axis.ravel() for axis in np.indices(cells))
    at, size, seen = rows * cells[1] + columns, cell, 0
    partial, full = np.zeros(cells[0] * cells[1], np.int64), np.zeros(cells[0] * cells[1], np.int64)
    while True:
        found = known.classes(rows, columns, size)
        seen += len(rows)
        counted = _blocks_in(known.shape, rows, columns, size)
        np.add.at(full, at[found == FULL], counted[found == FULL])
        undecided = found == PARTIAL
        rows, columns, at, counted = (x[undecided] for x in (rows, columns, at, counted))
        if size == (1, 1) or not len(rows) or seen + 4 * len(rows) > _LIMIT:
            break
        halves = [(i, j) for i in range(1 + (size[0] > 1)) for j in range(1 + (size[1] > 1))]
        steps = tuple(min(2, s) for s in size)
        rows, columns = (np.concatenate([axis * steps[k] + half[k] for half in halves]) for k, axis in enumerate((rows, columns)))
        at, size = np.tile(at, len(halves)), (max(1, size[0] // 2), max(1, size[1] // 2))
        inside = (rows * size[0] < known.shape[0]) & (columns * size[1] < known.shape[1])
        rows, columns, at = rows[inside], columns[inside], at[inside]
    np.add.at(partial, at, counted)
    known.undecided = 0 if size == (1, 1) else int(counted.sum())
    return partial.reshape(cells), full.reshape(cells)


def _blocks_in(shape: tuple[int, int], rows: Array, columns: Array, size: tuple[int, int]) -> Array:
    """How many blocks there are in blocks of `size` blocks; those at the end hold fewer."""
    return np.minimum(size[0], shape[0] - rows * size[0]) * np.minimum(size[1], shape[1] - columns * size[1])
