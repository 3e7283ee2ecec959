"""The state of a running kernel: warpgroups, what they have in flight, and tiles in memory."""

from collections.abc import Callable, Generator, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.reference.warp.clocks import Access, Barrier, Condition, WarpClock

COLUMNS = 32
"""Columns of rows in global memory whose accesses are watched together where some ops write a part of the columns."""
CHUNK = 8
"""Rows of a tile in shared memory whose accesses are watched together."""
Steps = Generator[Condition | None, None, Any]


@dataclass
class Queue:
    """Asynchronous ops that are waited for in order: open ones, then groups."""

    open: list[Any] = field(default_factory=list)
    groups: list[list[Any]] = field(default_factory=list)

    def commit(self) -> None:
        """What is open is a group."""
        self.groups, self.open = [*self.groups, self.open], []

    def older(self, pending: int) -> list[Any]:
        """What is in all but the newest groups."""
        return [item for group in self.groups[: max(0, len(self.groups) - pending)] for item in group]

    def take(self, pending: int) -> list[Any]:
        """What is in all but the newest groups, which leave the queue."""
        count = max(0, len(self.groups) - pending)
        taken, self.groups = self.groups[:count], self.groups[count:]
        return [item for group in taken for item in group]


@dataclass
class Flight:
    """A product, load or store in flight: the accesses of the warps that issued it, its value, and whether it has landed."""

    accesses: list[tuple[WarpClock, Access]]
    value: Any = None
    done: bool = False
    later: list[tuple[WarpClock, Access]] = field(default_factory=list)
    """Of a store: what is over only when it is done altogether."""

    @property
    def reads(self) -> bool:
        """Whether it may still read what it was issued for."""
        return any(access.epoch is None for _, access in self.accesses)

    def finish(self, all_: bool = True) -> None:
        """The accesses are over, as their warps see it."""
        for warp, access in [*self.accesses, *(self.later if all_ else [])]:
            access.epoch = warp.epoch if access.epoch is None else access.epoch


@dataclass
class Buffer:
    """A buffer in shared memory; `part`: as many columns of a row as are told apart, the fewest that something writes or reads alone."""

    number: int
    array: np.ndarray
    part: int = 0


@dataclass
class Tensor:
    """A tensor in global memory: argument `number` of the kernel."""

    number: int
    array: np.ndarray
    parted: bool = False
    """Whether some ops write a part of the columns of rows, so that accesses are watched by columns, too."""

    @property
    def heads(self) -> np.ndarray:
        """[B, H, S, D] or [B, H, S]: the tensor, or its first slot."""
        return self.array[0] if self.array.ndim == 5 else self.array

    def rows(self, batch: int, head: int, row: int, count: int) -> tuple[np.ndarray, int, list[Hashable]]:
        """The rows that exist of `count` from `row` on, how far after `row` they begin, and the names of their parts of memory.

        Of a tensor in slots, those of the first one. Entries that lie a row apart, as in views of packed sequences, share rows.
        """
        heads = self.heads
        begin, end = max(row, 0), max(min(row + count, heads.shape[2]), max(row, 0))
        first, entry = (batch, 0) if heads.strides[0] == heads.strides[2] else (0, batch)
        cells: list[Hashable] = [("global", self.number, entry, head, first + n) for n in range(begin, end)]
        return heads[batch, head, begin:end], begin - row, cells

    def columns(self, cells: list[Any], first: int = 0, count: int | None = None) -> list[Any]:
        """The names of `count` columns of rows from the `first` on, or of all, by those of the rows."""
        if not self.parted:
            return cells
        last = self.array.shape[-1] if count is None else first + count
        return [(*cell, n) for cell in cells for n in range(first // COLUMNS, -(-last // COLUMNS))]


@dataclass
class View:
    """A tile in a stage of a buffer, from a row and a column on."""

    buffer: Buffer
    stage: int
    row: int
    column: int
    array: np.ndarray

    def cells(self) -> Iterable[Hashable]:
        """The names of its parts of memory."""
        rows, part = range(self.row // CHUNK, -(-(self.row + len(self.array)) // CHUNK)), self.buffer.part
        if part >= self.buffer.array.shape[-1]:
            return [(self.buffer.number, self.stage, c) for c in rows]
        columns = range(self.column // part, -(-(self.column + self.array.shape[1]) // part))
        return [(self.buffer.number, self.stage, c, d) for c in rows for d in columns]

    def part(self, begin: int, count: int) -> "View":
        """So many rows of it."""
        return View(self.buffer, self.stage, self.row + begin, self.column, self.array[begin : begin + count])

    def columns(self, begin: int, count: int) -> "View":
        """So many columns of it."""
        return View(self.buffer, self.stage, self.row, self.column + begin, self.array[:, begin : begin + count])


@dataclass
class Joined:
    """Two tiles side by side."""

    first: "View | Joined"
    second: "View | Joined"

    @property
    def array(self) -> np.ndarray:
        """Their columns."""
        return np.concatenate([self.first.array, self.second.array], axis=1)

    def cells(self) -> Iterable[Hashable]:
        """The names of both parts of memory."""
        return [*self.first.cells(), *self.second.cells()]


@dataclass
class Block:
    """What the warpgroups of a thread block share."""

    number: int
    named: dict[int, Barrier] = field(default_factory=dict)


@dataclass
class Warpgroup:
    """A warpgroup of a role. `active` warps run the op at hand; `written`: fragments that ops made since `warp.mma_begin`."""

    name: str
    block: Block
    warps: list[WarpClock]
    values: dict[int, Any]
    location: ir.Location
    active: list[WarpClock] = field(default_factory=list)
    steps: Steps | None = None
    condition: Condition | None = None
    why: Callable[[], str] = str
    products: Queue = field(default_factory=Queue)
    stores: Queue = field(default_factory=Queue)
    copies: Queue = field(default_factory=Queue)
    loads: Queue = field(default_factory=Queue)
    written: dict[int, np.ndarray] = field(default_factory=dict)
    waited: dict[int, int] = field(default_factory=dict)
    map_rank: int = 0

    def made(self, arrays: Iterable[np.ndarray]) -> list[np.ndarray]:
        """Fragments that an op other than a product has written."""
        found = list(arrays)
        self.written.update({id(array): array for array in found})
        return found
