"""What kernels for GPUs take on packed tensors: ragged views of these, and lists of work made where the lengths are.

A ragged view of [1, H, T, D] is [T + 1, H, T, D], with the stride of rows for entries, too, from T rows in front of the tensor on: row
T - n + i of entry e is row i of the n rows that end where row e begins. What is behind row T - 1 is out of bounds for a copy engine:
past the end of a sequence, zeros are read and nothing is written, as past the end of a tensor without sequences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir.backends.host import KernelGrid
from attn_mlir.backends.memory import OutputMemory
from attn_mlir.backends.work import kept_work, leaves_rows
from attn_mlir.errors import UnsupportedError
from attn_mlir.passes.tiling.work import COLUMNS


class Ragged:
    """A tensor [1, H, T, ...], or sums of it in slots [slots, 1, H, T, D], as such a view; it has what launches ask of a tensor."""

    __slots__ = ("_address", "_strides", "memory", "shape")

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        entry = 1 if memory.dim() == 5 else 0
        rows = memory.shape[entry + 2]
        strides = list(memory.stride())
        if rows == 1:  # one row has no stride of its own
            strides[entry + 2] = 64 if memory.dim() > 3 else 1
        strides[entry] = strides[entry + 2]
        shape = list(memory.shape)
        shape[entry] = rows + 1
        self.shape, self._strides = torch.Size(shape), tuple(strides)
        self._address = memory.data_ptr() - rows * strides[entry] * memory.element_size()

    def data_ptr(self) -> int:
        """Where the view begins, in front of the tensor; what is read there is inside of it."""
        return self._address

    def stride(self, dim: int | None = None) -> Any:
        """As of a tensor."""
        return self._strides if dim is None else self._strides[dim]

    def dim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    def element_size(self) -> int:
        """Bytes of an element."""
        return self.memory.element_size()

    @property
    def dtype(self) -> torch.dtype:
        return self.memory.dtype

    @property
    def device(self) -> torch.device:
        return self.memory.device

    def first_slot(self) -> "Ragged":
        """The view of the first slot of sums in slots."""
        return Ragged(self.memory[0])


def tensor_of(value: Any) -> Any:
    """The tensor that a ragged view is of; other values as they are."""
    return value.memory if isinstance(value, Ragged) else value


def sequence_count(kernel: KernelGrid, operands: Sequence[Any]) -> int:
    """How many sequences a kernel's packed operands hold; 0 where they are not packed."""
    return len(operands[kernel.lengths[0]]) if kernel.lengths else 0


def extents_of(kernel: KernelGrid, arguments: Sequence[Any]) -> Sequence[int]:
    """Batch, heads and rows of the grid of a kernel, of packed tensors as many rows as the blocks in its list have at most."""
    over = arguments[kernel.over].shape
    if not kernel.lengths:
        return over
    work = arguments[-1] if arguments[-1].dim() == 2 else arguments[-2]  # semaphores come after it
    return 1, over[1], (work.shape[0] - 1) * kernel.block_q


def arguments_of(
    kernel: KernelGrid, operands: Sequence[Any], memory: Sequence[OutputMemory], semaphores: "SemaphoreBlocks | None" = None,
    make: "Callable[..., torch.Tensor] | None" = None,
) -> list[Any]:  # fmt: skip
    """The arguments of a kernel's launch: inputs, outputs, and, for "pairs", the keys of a chunk.

    Those of one on packed tensors are ragged views where it takes such, and a list of work comes last. Rows of no sequence become 0.
    `semaphores`: of a kernel whose programs add to the other side in turn. `make` does what `items_of` does.
    """
    tensors = [*operands, *(each.seen for each in memory)]
    if not kernel.lengths:
        return [*tensors, kernel.block_q] if kernel.grid == "pairs" else tensors
    for each, kind in zip(memory, kernel.outputs, strict=True):
        if kind == "store" and leaves_rows(operands[kernel.lengths[0]]):
            each.seen.zero_()
    seen = [Ragged(value) if number in kernel.ragged else value for number, value in enumerate(tensors)]
    own, *others = (operands[number] for number in kernel.lengths)
    rows, first = operands[kernel.over].shape[2], kernel.grid == "pairs" and semaphores is None

    def made() -> torch.Tensor:
        return (make or items_of)(own, others[0] if others else None, kernel.block_q, rows, first, semaphores)

    return [*seen, made() if semaphores is not None else kept_work(own, (kernel.block_q, rows, first), made)]


@dataclass(frozen=True)
class SemaphoreBlocks:
    """Blocks of `rows` rows of the other side, each of which has semaphores, which tell who adds next; `count` of all sequences."""

    rows: int
    count: int

    @staticmethod
    def of(length: int, rows: int, sequences: int) -> "SemaphoreBlocks":
        """Those of a tensor with so many rows, each of which is of one sequence at most."""
        return SemaphoreBlocks(rows, length // rows + sequences)

    def begins(self, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The first block of each sequence, and whether there are as many as it has: lengths that nobody checked may ask for more."""
        blocks = (lengths.long() + (self.rows - 1)) // self.rows
        ends = blocks.cumsum(0)
        return ends - blocks, ends <= self.count


def items_of(
    own: torch.Tensor, others: torch.Tensor | None, block: int, rows: int, first: bool, semaphores: SemaphoreBlocks | None = None
) -> torch.Tensor:
    """The blocks of `block` rows of sequences with the lengths `own`, of `rows` rows at most together, as a list; nothing waits for a GPU.

    The sequences with the largest lengths of the other side, `others`, come first, and of each its last blocks, or, with `first`, its
    first ones: those that see most under a causal mask. The list has as many items as there may be, and one more row with how many
    there are. Items past these have no rows; their sequence is one of the list. With `semaphores`, slots are the first of these blocks of
    each sequence; one that has none left has no items, so that no two sequences wait for the same counter. Raises UnsupportedError without
    sequences.
    """
    count, device = len(own), own.device
    if not count:
        raise UnsupportedError("kernels on packed sequences need one at least: offsets [0, 0] are those of one without rows")
    blocks = (own + (block - 1)) // block
    slots = torch.zeros_like(own)
    if semaphores is not None and others is not None:
        slots, fits = semaphores.begins(others)
        blocks = blocks * fits
    order = torch.argsort(others, descending=True, stable=True) if others is not None else torch.arange(count, device=device)
    ends = blocks[order].cumsum(0)
    most = rows // block + count
    number = torch.arange(most, device=device)
    place = torch.searchsorted(ends, number, right=True).clamp_(max=count - 1)
    owner, end = order[place], ends[place]
    length = own[owner]
    inside = number - end + blocks[owner] if first else end - 1 - number
    begin = torch.where(number < ends[-1], inside * block, length)
    made = torch.stack([owner, begin, torch.minimum(begin + block, length), slots[owner]], 1)
    last = torch.nn.functional.pad(ends[-1:].clamp(max=most), (0, COLUMNS - 1))
    return torch.cat([made, last[None]]).to(torch.int32)
