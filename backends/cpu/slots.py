"""Where the programs of a kernel add up their sums, so that the result has the same bits for any number of threads.

Programs that run at the same time add into slots of their own, which are added up in a fixed order at the end. Where slots
would take too much memory, programs share them and run one after another.
"""

import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from attn_mlir.backends import memory
from attn_mlir.backends.cpu.pages import in_large_pages
from attn_mlir.backends.host import KernelGrid
from attn_mlir.backends.memory import OutputMemory

PROGRAMS = max(8, 4 * (os.cpu_count() or 1))
"""How many programs keep this machine busy, whatever number of threads is used; chunks of keys are made until there are as many."""
MIN_KEYS = 256
"""Keys of a chunk, or 8 blocks where these are large and there are programs for all processors: each costs one more pass over the sums of
queries, which weighs more where products are fast."""
MOST_SLOTS = 8
"""Slots of sums over the keys of one sequence, where they are cut by its own length alone."""
_MEMORY = 64 << 20


@dataclass(frozen=True)
class SlotGrid:
    """The programs of a launch: blocks (or chunks) of `size` rows, heads, batch."""

    batch: int
    heads: int
    blocks: int
    size: int
    level: int = 0
    """What runs one after another: 0 nothing, 1 the batch, 2 also the heads, 3 everything."""
    sums: int = 0
    """How many slots sums over keys need; 0: one for each block."""
    invariant: bool = False
    """Whether a row's sum must not depend on the number of slots, of which some are zeros."""

    @property
    def programs(self) -> int:
        return self.batch * self.heads * self.blocks

    def ranges(self) -> list[tuple[int, int]]:
        """The programs (the batch is outermost) of each launch."""
        count = (1, self.batch, self.batch * self.heads, 1)[self.level]
        each = self.programs // count
        return [(i * each, (i + 1) * each) for i in range(count)]

    def slots(self, disjoint: Sequence[bool]) -> tuple[int, int, int]:
        """How many slots a scatter needs along chunks, batch and heads; `disjoint` is by chunk, head and batch."""
        if self.level == 3:
            return 1, 1, 1
        return (
            1 if disjoint[0] else self.blocks,
            1 if disjoint[2] or self.level >= 1 else self.batch,
            1 if disjoint[1] or self.level >= 2 else self.heads,
        )


def choose_grid(kernel: KernelGrid, over: Sequence[int], outputs: Sequence[torch.Size], width: int, inputs: int) -> SlotGrid:
    """The grid over an argument of shape `over`; depends on sizes only, never on the number of threads.

    The batch of "chunks" may be sequences.
    `outputs` are the results' shapes, `width` the bytes of an element of sums, `inputs` the bytes of all inputs.
    """
    return _chosen(kernel, tuple(over[:3]), tuple(outputs), width, max(_MEMORY, inputs), PROGRAMS)


@functools.lru_cache(1024)
def _chosen(kernel: KernelGrid, over: tuple[int, ...], outputs: tuple[torch.Size, ...], width: int, most: int, programs: int) -> SlotGrid:
    """The grid whose slots take `most` bytes, and which has so many `programs` if it can; remembered: it takes longer than a launch."""
    batch, heads, length = over
    blocks = kernel.blocks_of(length)
    if kernel.grid == "chunks":
        return SlotGrid(batch, heads, kernel.blocks, kernel.block_q)
    if kernel.serial:
        return SlotGrid(batch, heads, blocks, kernel.block_q, 3)
    grids = []
    for level, free in enumerate((batch * heads, heads, 1)):
        if kernel.grid == "pairs":
            least = max(MIN_KEYS, 8 * kernel.block_q)
            each = max(-(-length // least), min(-(-length // MIN_KEYS), -(-programs // (4 * max(1, free)))))
            wanted = max(1, min(-(-programs // max(1, free)), each))
            for chunks in {wanted, 1}:
                blocks_each = -(-blocks // chunks)
                grids.append(SlotGrid(batch, heads, -(-blocks // blocks_each), blocks_each * kernel.block_q, level))
        else:
            grids.append(SlotGrid(batch, heads, blocks, kernel.block_q, level))

    def rank(grid: SlotGrid) -> tuple[int, int, int]:
        free = (batch * heads, heads, 1)[grid.level] * grid.blocks
        return -min(free, programs), grid.level, _bytes(kernel, grid, outputs, width)

    fitting = [grid for grid in grids if _bytes(kernel, grid, outputs, width) <= most]
    if fitting:
        return min(fitting, key=rank)
    if kernel.grid == "pairs":
        return SlotGrid(batch, heads, 1, blocks * kernel.block_q, 3)
    return SlotGrid(batch, heads, blocks, kernel.block_q, 3)


def fits(kernel: KernelGrid, grid: SlotGrid, outputs: Sequence[torch.Size], width: int, inputs: int) -> bool:
    """Whether the slots of a grid take no more memory than they may; for the arguments see `choose_grid`."""
    return _bytes(kernel, grid, outputs, width) <= max(_MEMORY, inputs)


def _bytes(kernel: KernelGrid, grid: SlotGrid, outputs: Sequence[torch.Size], width: int) -> int:
    """What the slots take besides the results."""
    total = 0
    for kind, disjoint, shape in zip(kernel.outputs, kernel.disjoint, outputs, strict=True):
        slots = {"accumulate": grid.sums or grid.blocks, "scatter": math.prod(grid.slots(disjoint)) if disjoint else 1}.get(kind, 1)
        total += (slots - 1) * math.prod(shape) * width
    return total


def allocate(kernel: KernelGrid, output: int, grid: SlotGrid, shape: torch.Size, dtype: torch.dtype, order: str) -> OutputMemory:
    """The memory of an output of a launch; see `memory.allocate`."""
    kind = kernel.outputs[output]
    sums = grid.sums or grid.blocks
    slots = grid.slots(kernel.disjoint[output]) if kind == "scatter" else (sums, 1, 1)
    blocks = sums if kind == "accumulate" else grid.blocks
    made = memory.allocate(kind, shape, dtype, "cpu", order, slots, (blocks, grid.batch, grid.heads), fresh=in_large_pages)
    return replace(made, one_by_one=True) if kind == "accumulate" and grid.invariant else made
