"""What the programs of a kernel work on: the grid of a launch, and on packed tensors its lists of work, for several kernels perhaps."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from attn_mlir.backends.cpu import slots
from attn_mlir.backends.cpu.parts import Parts, cuts_of, lists_of
from attn_mlir.backends.cpu.pipeline import FEW_ROWS
from attn_mlir.backends.cpu.slots import SlotGrid, choose_grid, fits
from attn_mlir.backends.host import KernelGrid
from attn_mlir.backends.program import ResultShapes
from attn_mlir.backends.work import fixed_groups, groups_of, rows_of

_GROUP, _ = FEW_ROWS
"""Heads of a group in one block."""


@dataclass(frozen=True)
class Choices:
    """What a caller asks for on packed tensors.

    `splits`: how many parts the keys of few queries are seen in; 0: chosen by their number. `invariant`: sums over the keys of a sequence
    are cut by its own length alone.
    """

    splits: int = 0
    invariant: bool = False


@dataclass(frozen=True)
class LaunchWork:
    """One launch: its grid and lists.

    `rows` > 0: by the kernel for sequences of at most so many queries; `heads` > 0: by that for one query each, whose rows are the heads
    of a group, one for each of so many key heads. `parts`: by the kernels that see keys in parts, `lists` being that of the parts.
    """

    grid: SlotGrid
    lists: tuple[torch.Tensor, ...] = ()
    rows: int = 0
    heads: int = 0
    parts: Parts | None = None

    def seen(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor [1, Hq, T, ...] as the kernel sees it."""
        return tensor[0].unflatten(0, (self.heads, -1)).movedim(2, 0) if self.heads else tensor


def works_of(
    kernel: KernelGrid,
    operands: Sequence[Any],
    made: ResultShapes,
    size: int,
    few: Iterable[int],
    choices: Choices = Choices(),
    splits: Callable[[int, bool], bool] | None = None,
) -> list[LaunchWork]:
    """The launches of a kernel. `size`: the bytes of all inputs; `few`: of how many rows there are kernels for short sequences.

    `splits` tells whether there are kernels for keys in parts, for so many rows, or with the heads of a group as rows.
    """
    width = max((dtype.itemsize for dtype in made.dtypes), default=4)
    if not kernel.lengths:
        over = operands[kernel.over].shape
        if kernel.grid == "chunks":
            over = (kernel.sequences_of(operands), *over[1:])
        return [LaunchWork(choose_grid(kernel, over, made.shapes, width, size))]
    own, *others = (operands[number].numpy() for number in kernel.lengths)
    heads = operands[kernel.over].shape[1]
    if kernel.grid == "pairs":
        return [_pairs(kernel, heads, (own, others[0]), made, (width, size), choices)]
    works, longer = [], np.ones(len(own), bool)
    for rows in few if kernel.grid == "rows" else ():  # those of an attention
        key_heads = operands[kernel.keys].shape[1]
        chosen = np.flatnonzero(longer & (own <= rows) & (own > 0))
        longer &= own > rows
        if splits is not None and choices.splits != 1 and len(chosen):
            by_heads = rows == 1 and heads != key_heads
            cuts = cuts_of(others[0][chosen], choices.splits)
            if (several := cuts[0] > 1).any() and splits(_GROUP if by_heads else rows, by_heads):
                group = heads // key_heads
                lengths = np.full_like(own[chosen], group) if by_heads else own[chosen]
                block = _GROUP if by_heads else rows
                items, parts = lists_of(chosen[several], lengths[several].astype(np.int64), (cuts[0][several], cuts[1][several]), block)
                grid = SlotGrid(1, key_heads if by_heads else heads, len(items), block)
                works.append(LaunchWork(grid, (items,), block, key_heads if by_heads else 0, parts))
                chosen = chosen[~several]
        if len(chosen) and rows == 1 and heads != key_heads:
            group = heads // key_heads
            items = rows_of(np.full_like(own, group), _GROUP, others[0], chosen)
            works.append(LaunchWork(SlotGrid(1, key_heads, len(items), _GROUP), (items,), _GROUP, key_heads))
        elif len(chosen):
            items = rows_of(own, rows, others[0], chosen)
            works.append(LaunchWork(SlotGrid(1, heads, len(items), rows), (items,), rows))
    chosen = np.flatnonzero(longer) if works else None
    items = rows_of(own, kernel.block_q, others[0] if others else None, chosen)
    if len(items) or not works:
        grid = choose_grid(kernel, (1, heads, len(items) * kernel.block_q), made.shapes, width, size)
        works.append(LaunchWork(grid, (items,)))
    return works


def _pairs(
    kernel: KernelGrid, heads: int, lengths: tuple[Any, Any], made: ResultShapes, sizes: tuple[int, int], choices: Choices
) -> LaunchWork:
    """As many groups as keep the machine busy, and fit into memory with their sums. `sizes`: bytes of one element, and of all inputs."""
    count, (width, size) = -(-slots.PROGRAMS // max(1, heads)), sizes
    if choices.invariant:
        groups = fixed_groups(*lengths, kernel.block_q, count, slots.MOST_SLOTS)
        levels = [SlotGrid(1, heads, groups.count, kernel.block_q, level, groups.slots, True) for level in (0, 2, 3)]
        grid = next((grid for grid in levels[:2] if _scatters_fit(kernel, grid, made, width, size)), levels[2])
        return LaunchWork(grid, (groups.items, groups.begins))
    while True:
        groups = groups_of(*lengths, kernel.block_q, count, slots.MIN_KEYS)
        for level in (0, 2):
            grid = SlotGrid(1, heads, groups.count, kernel.block_q, level, groups.slots)
            if fits(kernel, grid, made.shapes, width, size):
                return LaunchWork(grid, (groups.items, groups.begins))
        if count == 1:
            return LaunchWork(SlotGrid(1, heads, groups.count, kernel.block_q, 3, 1), (groups.items, groups.begins))
        count //= 2


def _scatters_fit(kernel: KernelGrid, grid: SlotGrid, made: ResultShapes, width: int, size: int) -> bool:
    """Whether what scatters need fits into memory; slots of sums there are as many as there must be."""
    return fits(kernel, replace(grid, sums=1), made.shapes, width, size)


def covers(kernel: KernelGrid, operands: Sequence[Any]) -> bool:
    """Whether every row of the tensors belongs to a sequence."""
    return int(operands[kernel.lengths[0]].sum()) == operands[kernel.over].shape[2]
