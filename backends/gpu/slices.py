"""Launches of one kernel on slices of the columns of v, each of which makes a slice of o; see `gpu.passes.slice_values`."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from attn_mlir.backends.gpu.attributes import LAUNCH_COLUMNS, LAUNCH_VALUES
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.memory import OutputMemory
from attn_mlir.backends.program import ResultShapes


def is_sliced(unit: GpuKernel) -> bool:
    """Whether a kernel sees a slice of v."""
    return LAUNCH_COLUMNS in unit.schedule


def _begins(unit: GpuKernel, operands: Sequence[Any]) -> list[int]:
    """Where slices begin; the last one ends with v, and may make columns once more that another one made."""
    count, columns = operands[int(unit.schedule[LAUNCH_VALUES])].shape[-1], int(unit.schedule[LAUNCH_COLUMNS])
    return [min(begin, count - columns) for begin in range(0, count, columns)]


def _with_values(unit: GpuKernel, operands: Sequence[Any], begin: int) -> list[Any]:
    """The operands with the slice of v that begins there."""
    number, columns = int(unit.schedule[LAUNCH_VALUES]), int(unit.schedule[LAUNCH_COLUMNS])
    return [value[..., begin : begin + columns] if n == number else value for n, value in enumerate(operands)]


def slices_of(unit: GpuKernel, operands: list[Any], memory: Sequence[OutputMemory]) -> Iterator[tuple[list[Any], Sequence[OutputMemory]]]:
    """The operands and outputs of each launch: as they are, or slices of v and of o."""
    if not is_sliced(unit):
        yield operands, memory
        return
    columns = int(unit.schedule[LAUNCH_COLUMNS])
    for begin in _begins(unit, operands):
        outputs = [
            dataclasses.replace(each, seen=each.seen[..., begin : begin + columns]) if each.seen.dim() == 4 else each for each in memory
        ]
        yield _with_values(unit, operands, begin), outputs


def sliced_calls(unit: GpuKernel, inputs: Sequence[Any], made: ResultShapes) -> Iterator[tuple[list[Any], ResultShapes]]:
    """The inputs of calls of a program whose kernel is sliced, and what each of them makes."""
    columns = int(unit.schedule[LAUNCH_COLUMNS])
    shapes = tuple(torch.Size([*shape[:-1], columns]) if head else shape for shape, head in zip(made.shapes, made.heads, strict=True))
    for begin in _begins(unit, inputs):
        yield _with_values(unit, inputs, begin), dataclasses.replace(made, shapes=shapes)


def joined(results: Sequence[Sequence[torch.Tensor]], made: ResultShapes) -> list[torch.Tensor]:
    """What such calls make together: columns side by side, of the last one those that no other has; row outputs of the first."""
    whole = []
    for number, (shape, head) in enumerate(zip(made.shapes, made.heads, strict=True)):
        slices = [each[number] for each in results]
        if not head:
            whole.append(slices[0])
            continue
        left = shape[-1] - sum(each.shape[-1] for each in slices[:-1])
        whole.append(torch.cat([*slices[:-1], slices[-1][..., slices[-1].shape[-1] - left :]], -1))
    return whole
