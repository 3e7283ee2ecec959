"""The memory of outputs: results that kernels write, or that programs add to, each where it does not meet the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from attn_mlir.backends.allocation import empty, empty_heads, in_order

Device = str | torch.device

_FEW = 1 << 14
"""Results of no more elements are added up in float64, which takes no time that could be measured."""


@dataclass(frozen=True)
class OutputMemory:
    """The memory of an output: the result itself, or [slots, result]."""

    tensor: torch.Tensor
    seen: torch.Tensor
    """As the kernel sees it."""
    slots: bool = False
    one_by_one: bool = False
    """Whether slots are added up one by one however few elements there are: further slots of zeros then change nothing."""

    def result(self) -> torch.Tensor:
        """The result; slots are added up in their order."""
        if not self.slots:
            return self.tensor
        if self.tensor.is_cuda:  # the order of this sum follows from the shape
            return self.tensor.sum(0)
        if self.tensor[0].numel() <= _FEW and not self.one_by_one:
            return _sum_of_few(self.tensor)
        total = self.tensor[0] + self.tensor[1]  # not in place, so that the slots can go
        for slot in self.tensor[2:]:
            total.add_(slot)
        return total


def _sum_of_few(slots: torch.Tensor) -> torch.Tensor:
    """The sum of slots of few elements, whose terms may cancel, in float64: halves are folded, an order that follows from their number."""
    sums = slots.to(torch.float64, copy=True)
    left = len(sums)
    while left > 1:
        half = left // 2
        sums[:half] += sums[left - half : left]
        left -= half
    return sums[0].to(slots.dtype, copy=True)


def allocate(
    kind: str,
    shape: torch.Size,
    dtype: torch.dtype,
    device: Device,
    order: str,
    slots: tuple[int, int, int],
    programs: tuple[int, int, int],
    *,
    fresh: Callable[[torch.Tensor], torch.Tensor] | None = None,
    cleared: bool = True,
) -> OutputMemory:
    """The memory of an output; `kind` as in `host.KernelGrid`, `order` is that of its memory.

    `slots`: how many there are along chunks, batch and heads, where `programs` are how many the kernel sees; one slot for all is seen with
    stride 0. Results are no views, so that they may be changed in place. `fresh` is given new memory before it is first written.
    Sums in one place begin with zeros, or are not `cleared`: then the first program stores its own.
    """
    match kind:
        case "store":
            made = empty_heads(shape, dtype, order, device)
            made = made if fresh is None else fresh(made)
            return OutputMemory(made, made)
        case "accumulate" if slots[0] == 1:
            made = empty_heads(shape, dtype, order, device)
            made = made if fresh is None else fresh(made)
            made = made.zero_() if cleared else made
            return OutputMemory(made, made.expand(programs[0], *shape))
        case "accumulate":
            sizes = shape if order == "bhsd" else [shape["bhsd".index(letter)] for letter in order]
            made = _zeros((slots[0], *sizes), dtype, device, fresh)
            made = made if order == "bhsd" else in_order(made, order, 1)
            return OutputMemory(made, made, True)
    if slots == (1, 1, 1):
        made = _zeros(shape, dtype, device, fresh) if cleared else empty(shape, dtype=dtype, device=device)
        made = made if cleared or fresh is None else fresh(made)
        return OutputMemory(made, made.expand(*programs, *shape))
    made = _zeros((*slots, *shape), dtype, device, fresh)
    return OutputMemory(made.flatten(0, 2), made.expand(*programs, *shape), True)


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: Device, fresh: Callable[[torch.Tensor], torch.Tensor] | None) -> torch.Tensor:
    if fresh is None:
        return torch.zeros(shape, dtype=dtype, device=device)
    return fresh(empty(shape, dtype=dtype, device=device)).zero_()
