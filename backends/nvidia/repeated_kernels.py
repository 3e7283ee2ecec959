"""The short way through a program of several kernels: what they need besides inputs and results is one piece of memory."""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.host import Host, HostStep
from attn_mlir.backends.nvidia import cuda
from attn_mlir.backends.nvidia.compiled_kernels import own_words
from attn_mlir.backends.nvidia.launch import LIMIT, CudaLauncher, PackedLaunch
from attn_mlir.backends.nvidia.repeated_kernel import is_negated
from attn_mlir.backends.nvidia.workspace import Workspace, WorkspacePart, filled
from attn_mlir.backends.program import RunPlan
from attn_mlir.backends.sizes import shape_of

_ADDED = ("accumulate", "scatter")
"""Outputs to which programs add in one place, unless they have slots; see `backends.memory.allocate`."""


@dataclass(frozen=True)
class ChainValue:
    """A value that a kernel makes: result number `place`, or a part of the workspace.

    `programs`: how many add to it along the grid's rows, or along rows, batch and heads, which see it with stride 0; none where it is
    written.
    """

    place: int | WorkspacePart
    programs: tuple[int, ...] = ()

    def seen(self, results: Sequence[torch.Tensor], memory: torch.Tensor) -> torch.Tensor:
        """As kernels take it."""
        tensor = self.place.of(memory) if isinstance(self.place, WorkspacePart) else results[self.place]
        return tensor.expand(*self.programs, *tensor.shape) if self.programs else tensor


@dataclass(frozen=True)
class Link:
    """One kernel; `values` are its operands and `outputs` its results by their numbers in the program, `more` the driver's arguments."""

    launcher: CudaLauncher
    operands: tuple[int, ...]
    outputs: tuple[ChainValue, ...]
    more: tuple[int | WorkspacePart, ...]


class Chain:
    """A program on inputs of known addresses, shapes and strides, which its kernels read where they are."""

    def __init__(self, links: Sequence[Link | int], results: Sequence[torch.Tensor], workspace: Workspace) -> None:
        """`results` are those of an earlier run, dense; the kernels write every element of them, or add to zeros.

        A number among the links stands for a step whose result is the value of that number.
        """
        self._steps = tuple(links)
        launchers = [link.launcher for link in links if isinstance(link, Link)]
        self.launcher = launchers[0]
        self.counts = any(launcher.counts for launcher in launchers)
        """Whether a kernel has a counter, which a CUDA graph must not share with other launches."""
        self._zeros = tuple(workspace.zeros)
        added = {made.place for link in links if isinstance(link, Link) for made in link.outputs if made.programs}
        self._added = [(place, result.nbytes) for place, result in enumerate(results) if place in added]
        self._forms = [(tuple(result.shape), tuple(result.stride()), result.dtype) for result in results]
        self._memory = ((max(1, workspace.size),), (1,), torch.uint8)
        self._packed: dict[tuple[int, ...], list[tuple[CudaLauncher, PackedLaunch]]] = {}

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The results; the device of the launchers must be the current one."""
        results = [cuda.empty(size, strides, dtype) for size, strides, dtype in self._forms]
        memory = cuda.empty(*self._memory)
        index = self.launcher.index
        stream = cuda.current_stream(index)
        start = memory.data_ptr()
        key = (stream, start, *[result.data_ptr() for result in results])
        packed = self._packed.get(key) or self._pack(key, inputs, results, memory)
        for offset, size in self._zeros:
            cuda.clear(start + offset, size, stream, index)
        for place, size in self._added:
            cuda.clear(key[2 + place], size, stream, index)
        for launcher, each in packed:
            launcher.start(each)
        return results

    def elsewhere(self) -> "Chain":
        """The same for inputs at other addresses."""
        made = copy.copy(self)
        made._packed = {}
        return made

    def copies(self, inputs: Sequence[Any], results: Sequence[torch.Tensor]) -> bool:
        """Whether some kernel cannot read or write these tensors where they are."""
        memory = cuda.empty(*self._memory)
        return any(launcher.copied(arguments) for launcher, arguments in self._arguments(inputs, results, memory))

    def _pack(
        self, key: tuple[int, ...], inputs: Sequence[Any], results: Sequence[torch.Tensor], memory: torch.Tensor
    ) -> list[tuple[CudaLauncher, PackedLaunch]]:
        packed = [(launcher, launcher.pack(arguments, key[0])) for launcher, arguments in self._arguments(inputs, results, memory)]
        if len(self._packed) >= LIMIT:
            self._packed.clear()
        self._packed[key] = packed
        return packed

    def _arguments(
        self, inputs: Sequence[Any], results: Sequence[torch.Tensor], memory: torch.Tensor
    ) -> Iterator[tuple[CudaLauncher, list[Any]]]:
        """The kernels with their arguments."""
        values: list[Any] = list(inputs)
        for link in self._steps:
            if isinstance(link, int):
                values.append(values[link])
                continue
            outputs = [made.seen(results, memory) for made in link.outputs]
            yield link.launcher, [*[values[number] for number in link.operands], *outputs, *filled(link.more, memory)]
            values += [seen[(0,) * len(made.programs)] if made.programs else seen for made, seen in zip(link.outputs, outputs, strict=True)]


def is_chain(host: Host, units: Mapping[str, GpuKernel]) -> bool:
    """Whether all steps are kernels whose results are written, or added to in one place, and the program returns some of them, once."""
    made, returns = len(host.arguments), host.returns
    if not returns or len(set(returns)) < len(returns) or min(returns) < made:
        return False
    return all(step.kernel in units and _is_simple(units[step.kernel]) for step in host.steps)


def _is_simple(unit: GpuKernel) -> bool:
    kinds = ("store",) if unit.kernel.grid == "chunks" else ("store", *_ADDED)  # blocks of columns have slots of their own
    slots = unit.schedule.get("sums") == "slots" or ("scatter" in unit.kernel.outputs and bool(unit.schedule.get("deterministic")))
    return all(kind in kinds for kind in unit.kernel.outputs) and not slots and unit.pairs is None


def chain(
    host: Host,
    plan: RunPlan,
    units: Mapping[str, GpuKernel],
    launchers: Mapping[str, CudaLauncher],
    inputs: Sequence[Any],
    results: list[torch.Tensor],
) -> Chain | None:
    """The short way for inputs that were run once, with these results; None where something is empty or must be copied each time.

    `launchers` are those of one device.
    """
    if plan.empty or any(map(is_negated, inputs)) or not all(map(_is_dense, results)):
        return None
    same = _handed_on(host, plan, inputs)
    workspace, places = Workspace(), {same[number]: place for place, number in enumerate(host.returns)}
    if len(places) < len(host.returns) or min(places) < len(host.arguments):
        return None
    shapes: list[Any] = [value.shape if isinstance(value, torch.Tensor) else () for value in inputs]
    links: list[Link | int] = []
    for step, new in zip(host.steps, plan.steps, strict=True):
        unit, first = units[step.kernel], len(shapes)
        if same[first] != first:
            shapes += new.shapes
            links.append(same[first])
            continue
        batch, heads, length = shapes[step.operands[unit.kernel.over]][:3]
        programs = {"accumulate": (-(-length // unit.kernel.block_q),), "scatter": (-(-length // unit.kernel.block_q), batch, heads)}
        outputs = []
        for i, shape in enumerate(new.shapes):
            added, number = programs.get(unit.kernel.outputs[i], ()), first + i
            place = places[number] if number in places else workspace.take(shape, unit.dtypes[i], zeros=float(bool(added)))
            outputs.append(ChainValue(place, added))
        links.append(Link(launchers[step.kernel], step.operands, tuple(outputs), _more(unit, step, shapes, workspace)))
        shapes += new.shapes
    found = Chain(links, results, workspace)
    return None if found.copies(inputs, results) else found


def _handed_on(host: Host, plan: RunPlan, inputs: Sequence[Any]) -> list[int]:
    """For every value its number, or that of the value that it is: steps that sum groups of one head do nothing."""
    same = list(range(len(host.arguments)))
    shapes: list[Any] = [value.shape if isinstance(value, torch.Tensor) else () for value in inputs]
    for step, new in zip(host.steps, plan.steps, strict=True):
        given = [tuple(shapes[number]) for number in step.operands]
        is_same = step.same >= 0 and shape_of(step.results[0].sizes, given) == given[step.same]
        same += [same[step.operands[step.same]] if is_same else len(same) + i for i in range(len(new.shapes))]
        shapes += new.shapes
    return same


def _more(unit: GpuKernel, step: HostStep, shapes: Sequence[Any], workspace: Workspace) -> tuple[int | WorkspacePart, ...]:
    """The driver's own arguments: for "pairs" the keys of a chunk, then memory of its own."""
    more: list[int | WorkspacePart] = [unit.kernel.block_q] if unit.kernel.grid == "pairs" else []
    words, zeros = own_words(unit, [shapes[number] for number in step.operands])
    return (*more, workspace.take((words,), torch.int32, zeros=zeros / words)) if words else tuple(more)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor fill its memory without a gap."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return extent == math.prod(tensor.shape)
