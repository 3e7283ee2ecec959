"""Where the programs of a kernel add up their sums, so that the result has the same bits for any number of threads.

Programs that run at the same time add into slots of their own, which are added up in a fixed order at the end. Where slots
would take too much memory, programs share them and run one after another.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attn_mlir.backends.cpu.steps import Kernel

_PROGRAMS = max(8, 4 * (os.cpu_count() or 1))
"""How many programs keep this machine busy, whatever number of threads is used; chunks of keys are made until there are as many."""
_MIN_KEYS = 256
"""Keys of a chunk: each costs one more pass over the sums of queries."""
_MEMORY = 64 << 20


@dataclass(frozen=True)
class Grid:
    """The programs of a launch: blocks (or chunks) of `size` rows, heads, batch."""

    batch: int
    heads: int
    blocks: int
    size: int
    level: int = 0
    """What runs one after another: 0 nothing, 1 the batch, 2 also the heads, 3 everything."""

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


def choose_grid(kernel: Kernel, over: Sequence[int], outputs: Sequence[torch.Size], width: int, inputs: int) -> Grid:
    """The grid over an argument of shape `over`; depends on sizes only, never on the number of threads.

    `outputs` are the results' shapes, `width` the bytes of an element of sums, `inputs` the bytes of all inputs.
    """
    batch, heads, length = over[:3]
    blocks = -(-length // kernel.block_q)
    if kernel.serial:
        return Grid(batch, heads, blocks, kernel.block_q, 3)
    grids = []
    for level, free in enumerate((batch * heads, heads, 1)):
        if kernel.grid == "pairs":
            most = max(1, min(-(-_PROGRAMS // max(1, free)), -(-length // _MIN_KEYS)))
            for chunks in {most, 1}:
                blocks_each = -(-blocks // chunks)
                grids.append(Grid(batch, heads, -(-blocks // blocks_each), blocks_each * kernel.block_q, level))
        else:
            grids.append(Grid(batch, heads, blocks, kernel.block_q, level))

    def rank(grid: Grid) -> tuple[int, int, int]:
        free = (batch * heads, heads, 1)[grid.level] * grid.blocks
        return -min(free, _PROGRAMS), grid.level, _bytes(kernel, grid, outputs, width)

    limit = max(_MEMORY, inputs)
    fitting = [grid for grid in grids if _bytes(kernel, grid, outputs, width) <= limit]
    if fitting:
        return min(fitting, key=rank)
    if kernel.grid == "pairs":
        return Grid(batch, heads, 1, blocks * kernel.block_q, 3)
    return Grid(batch, heads, blocks, kernel.block_q, 3)


def _bytes(kernel: Kernel, grid: Grid, outputs: Sequence[torch.Size], width: int) -> int:
    """What the slots take besides the results."""
    total = 0
    for kind, disjoint, shape in zip(kernel.outputs, kernel.disjoint, outputs, strict=True):
        slots = {"accumulate": grid.blocks, "scatter": math.prod(grid.slots(disjoint)) if disjoint else 1}.get(kind, 1)
        total += (slots - 1) * math.prod(shape) * width
    return total


@dataclass(frozen=True)
class Memory:
    """The memory of an output: the result itself, or [slots, result]."""

    tensor: torch.Tensor
    seen: torch.Tensor
    """As the kernel sees it."""
    slots: bool = False

    def result(self) -> torch.Tensor:
        """The result; slots are added up in their order."""
        if not self.slots:
            return self.tensor
        total = self.tensor[0] + self.tensor[1]  # not in place, so that the slots can go
        for slot in self.tensor[2:]:
            total.add_(slot)
        return total


def allocate(kernel: Kernel, output: int, grid: Grid, shape: torch.Size, dtype: torch.dtype, transposed: bool) -> Memory:
    """The memory of an output; `transposed` puts heads inside positions. Results are no views, so that they may be changed in place."""
    match kernel.outputs[output]:
        case "store":
            made = empty(shape, dtype, transposed)
            return Memory(made, made)
        case "accumulate" if grid.blocks == 1:
            made = empty(shape, dtype, transposed).zero_()
            return Memory(made, made.unsqueeze(0))
        case "accumulate":
            sizes = (shape[0], shape[2], shape[1], shape[3]) if transposed else shape
            made = torch.zeros((grid.blocks, *sizes), dtype=dtype, device="cpu")
            made = made.transpose(2, 3) if transposed else made
            return Memory(made, made, True)
    slots = grid.slots(kernel.disjoint[output])
    if slots == (1, 1, 1):
        made = torch.zeros(shape, dtype=dtype, device="cpu")
        return Memory(made, made.expand(grid.blocks, grid.batch, grid.heads, *shape))
    made = torch.zeros((*slots, *shape), dtype=dtype, device="cpu")
    return Memory(made.flatten(0, 2), made.expand(grid.blocks, grid.batch, grid.heads, *shape), True)


def empty(shape: Sequence[int], dtype: torch.dtype, transposed: bool) -> torch.Tensor:
    """A new tensor; `transposed`: one of [B, H, S, D] whose memory is [B, S, H, D]."""
    if not transposed:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    _, heads, length, columns = shape
    return torch.empty_strided(tuple(shape), (heads * length * columns, columns, heads * columns, 1), dtype=dtype, device="cpu")
