"""The short way through a program of several kernels: what they need besides inputs and results is one piece of memory."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.outputs import is_cleared
from attn_mlir.backends.gpu.packed import Ragged, SemaphoreBlocks
from attn_mlir.backends.host import Host, HostStep
from attn_mlir.backends.nvidia import cuda
from attn_mlir.backends.nvidia.compiled_kernels import own_words, semaphore_blocks
from attn_mlir.backends.nvidia.launch import LIMIT, CudaLauncher, MovedLaunch, PackedLaunch
from attn_mlir.backends.nvidia.repeated_kernel import RepeatedLaunch, is_negated
from attn_mlir.backends.nvidia.work_items import listed_items
from attn_mlir.backends.nvidia.workspace import Workspace, WorkspacePart, filled
from attn_mlir.backends.program import RunPlan
from attn_mlir.backends.sizes import shape_of
from attn_mlir.backends.work import kept_work, leaves_rows
from attn_mlir.passes.tiling.work import COLUMNS

_Packed = tuple[CudaLauncher, PackedLaunch]
_OwnMemory = tuple[torch.Tensor, Sequence[torch.Tensor]]
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
    cleared: bool = False
    """Whether they add to zeros."""

    def seen(self, results: Sequence[torch.Tensor], memory: torch.Tensor) -> torch.Tensor:
        """As kernels take it."""
        tensor = self.place.of(memory) if isinstance(self.place, WorkspacePart) else results[self.place]
        return tensor.expand(*self.programs, *tensor.shape) if self.programs else tensor


@dataclass(frozen=True)
class PackedLink:
    """What a kernel on packed sequences has besides: which of its tensors are ragged views, and a list of work.

    It is made of lengths, inputs with the numbers `own` and `others` (-1: none), of blocks of `block` of so many `rows`.
    """

    ragged: tuple[int, ...]
    own: int
    others: int
    block: int
    rows: int
    first: bool
    semaphores: SemaphoreBlocks | None

    def room(self, inputs: Sequence[Any]) -> torch.Tensor:
        """A tensor for the list."""
        return cuda.empty((self.rows // self.block + len(inputs[self.own]) + 1, COLUMNS), (COLUMNS, 1), torch.int32)

    def work(self, inputs: Sequence[Any]) -> torch.Tensor:
        """The list."""
        own, others = inputs[self.own], None if self.others < 0 else inputs[self.others]

        def made() -> torch.Tensor:
            return listed_items(own, others, self.block, self.rows, self.first, self.semaphores)

        return made() if self.semaphores is not None else kept_work(own, (self.block, self.rows, self.first), made)


@dataclass(frozen=True)
class Link:
    """One kernel; `values` are its operands and `outputs` its results by their numbers in the program, `more` the driver's arguments."""

    launcher: CudaLauncher
    operands: tuple[int, ...]
    outputs: tuple[ChainValue, ...]
    more: tuple[int | WorkspacePart, ...]
    packed: PackedLink | None = None


class Chain:
    """A program on inputs of known shapes and strides, which its kernels read where they are."""

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
        packed = [link for link in links if isinstance(link, Link) and link.packed is not None]
        self._packed_links = tuple([link.packed for link in packed if link.packed is not None])
        stored = [(link.packed.own, made.place) for link in packed if link.packed for made in link.outputs if not made.programs]
        left = [(own, place, 0, results[place].nbytes) for own, place in stored if not isinstance(place, WorkspacePart)]
        left += [(own, -1, place.offset, place.nbytes) for own, place in stored if isinstance(place, WorkspacePart)]
        self._left = tuple(left)
        """What has rows of no sequence: lengths, an input; which result, -1: a part of the workspace; where in it, and bytes."""
        added = {made.place for link in links if isinstance(link, Link) for made in link.outputs if made.cleared}
        self._added = [(place, result.nbytes) for place, result in enumerate(results) if place in added]
        self._forms = [(tuple(result.shape), tuple(result.stride()), result.dtype) for result in results]
        self._memory = ((max(1, workspace.size),), (1,), torch.uint8)
        self._packed: dict[tuple[int, ...], list[_Packed]] = {}
        self._moving: dict[int, list[MovedLaunch] | None] = {}
        """By stream, the launches on tensors wherever they lie; None where they have to be packed."""

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The results; the device of the launchers must be the current one."""
        results = [cuda.empty(size, strides, dtype) for size, strides, dtype in self._forms]
        memory = cuda.empty(*self._memory) if self._memory[0] != (1,) else results[0]  # of which no kernel has a part
        index = self.launcher.index
        stream, start = cuda.current_stream(index), memory.data_ptr()
        works = [link.work(inputs) for link in self._packed_links]
        tensors = [x for x in (*results, *works, *inputs) if isinstance(x, torch.Tensor)]
        key = (stream, start, *[x.data_ptr() for x in tensors])
        packed = self._packed.get(key) or self._pack(key, inputs, results, (memory, works))
        for own, place, offset, size in self._left:
            if leaves_rows(inputs[own]):  # rows of no sequence become 0
                cuda.clear(key[2 + place] + offset, size, stream, index)
        for offset, size in self._zeros:
            cuda.clear(start + offset, size, stream, index)
        for place, size in self._added:
            cuda.clear(key[2 + place], size, stream, index)
        for launcher, each in packed:
            launcher.start(each)
        return results

    def copies(self, inputs: Sequence[Any], results: Sequence[torch.Tensor]) -> bool:
        """Whether some kernel cannot read or write these tensors where they are."""
        own = cuda.empty(*self._memory), [link.room(inputs) for link in self._packed_links]
        return any(launcher.copied(arguments) for launcher, arguments, _ in self._arguments(inputs, results, own))

    def _pack(self, key: tuple[int, ...], inputs: Sequence[Any], results: Sequence[torch.Tensor], own: _OwnMemory) -> list[_Packed]:
        stream = key[0]
        moving = self._moving.get(stream)
        if moving is not None:
            packed = [each.at(key) for each in moving]
        else:
            links = list(self._arguments(inputs, results, own))
            packed = [(launcher, launcher.pack(arguments, stream)) for launcher, arguments, _ in links]
            if stream not in self._moving:
                self._moving[stream] = _moving(links, key)
        if len(self._packed) >= LIMIT:
            self._packed.clear()
        self._packed[key] = packed
        return packed

    def _arguments(
        self, inputs: Sequence[Any], results: Sequence[torch.Tensor], own: _OwnMemory
    ) -> Iterator[tuple[CudaLauncher, list[Any], list[int]]]:
        """The kernels with their arguments, and where in the key of a call their addresses are; `own`: the workspace, and lists of work."""
        values, (memory, works) = list[Any](inputs), own
        first = 2 + len(results)
        lists = iter(enumerate(works, first))
        tensors = iter(range(first + len(works), first + len(works) + len(inputs)))
        sources = [next(tensors) if isinstance(value, torch.Tensor) else -1 for value in inputs]
        for link in self._steps:
            if isinstance(link, int):
                values.append(values[link])
                sources.append(sources[link])
                continue
            outputs = [made.seen(results, memory) for made in link.outputs]
            of_outputs = [1 if isinstance(made.place, WorkspacePart) else 2 + made.place for made in link.outputs]
            given: list[Any] = [*[values[number] for number in link.operands], *outputs]
            places = [*[sources[number] for number in link.operands], *of_outputs]
            if link.packed is not None:
                given = [Ragged(value) if number in link.packed.ragged else value for number, value in enumerate(given)]
                place, work = next(lists)
                given.append(work)
                places.append(place)
            places += [1 if isinstance(value, WorkspacePart) else -1 for value in link.more]
            yield link.launcher, [*given, *filled(link.more, memory)], places
            values += [seen[(0,) * len(made.programs)] if made.programs else seen for made, seen in zip(link.outputs, outputs, strict=True)]
            sources += of_outputs


def _moving(links: Sequence[tuple[CudaLauncher, list[Any], list[int]]], key: tuple[int, ...]) -> "list[MovedLaunch] | None":
    """The launches of kernels on arguments whose addresses are in a key, wherever others lie; None where some have to be packed."""
    made = []
    for launcher, arguments, sources in links:
        form = launcher.form(arguments, key[0])
        if form is None:
            return None
        places = [(sources[number], address - key[sources[number]]) for number, address in form.places(arguments)]
        made.append(MovedLaunch(launcher, form, places))
    return made


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
        packed = _packed_link(unit, step, shapes, len(host.arguments))
        if packed is None and unit.kernel.lengths:
            return None
        blocks = -(-length // unit.kernel.block_q)
        if packed is not None:  # as `gpu.outputs` counts them
            blocks = max(2, length // unit.kernel.block_q + shapes[packed.own][0])
        programs = {"accumulate": (blocks,), "scatter": (blocks, batch, heads)}
        outputs = []
        for i, shape in enumerate(new.shapes):
            added, number = programs.get(unit.kernel.outputs[i], ()), first + i
            dtype = results[places[number]].dtype if number in places else unit.dtypes[i]
            zeros = bool(added) and is_cleared(unit, i, new.shapes, dtype, shapes[step.operands[unit.kernel.over]])
            place = places[number] if number in places else workspace.take(shape, dtype, zeros=float(zeros))
            outputs.append(ChainValue(place, added, zeros))
        links.append(Link(launchers[step.kernel], step.operands, tuple(outputs), _more(unit, step, shapes, workspace), packed))
        shapes += new.shapes
    found = Chain(links, results, workspace)
    return None if found.copies(inputs, results) else found


def _packed_link(unit: GpuKernel, step: HostStep, shapes: Sequence[Any], arguments: int) -> PackedLink | None:
    """What a kernel on packed sequences has besides; None for others, and where lengths are no inputs, of which there are so many."""
    kernel, given = unit.kernel, [shapes[number] for number in step.operands]
    own, *others = [step.operands[number] for number in kernel.lengths] or (arguments,)
    if max((own, *others)) >= arguments:
        return None
    semaphores = semaphore_blocks(unit, given)
    rows, first = given[kernel.over][2], kernel.grid == "pairs" and semaphores is None
    return PackedLink(kernel.ragged, own, others[0] if others else -1, kernel.block_q, rows, first, semaphores)


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
    more: list[int | WorkspacePart] = [unit.kernel.block_q] if unit.kernel.grid == "pairs" and not unit.kernel.lengths else []
    words, zeros = own_words(unit, [shapes[number] for number in step.operands])
    return (*more, workspace.take((words,), torch.int32, zeros=zeros / words)) if words else tuple(more)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor fill its memory without a gap."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return extent == math.prod(tensor.shape)


ShortWay = RepeatedLaunch | Chain


def started(call: ShortWay, inputs: Sequence[Any]) -> list[torch.Tensor] | None:
    """The results by a short way; None where a CUDA graph is being captured, which has counters of its own: the long way makes them."""
    if isinstance(call, Chain) and call.counts and cuda.is_capturing(call.launcher.index):
        return None
    return call(inputs)
