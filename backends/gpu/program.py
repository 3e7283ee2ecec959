"""What programs for GPUs have in common: kernels with their code, how it came about, and which tensors they take."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from attn_mlir import forks
from attn_mlir.backends.gpu import pairs_in_memory
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel, outlined
from attn_mlir.backends.gpu.emitters import SLOW
from attn_mlir.backends.gpu.input_limits import PAGE_ROWS, check_pages, check_sizes
from attn_mlir.backends.gpu.pair_products import PairStage
from attn_mlir.backends.gpu.slices import is_sliced, joined, sliced_calls
from attn_mlir.backends.gpu.split import FIXED_PART, WHOLE, SplitDecode, WholeDecode, fixed_parts, parts_for
from attn_mlir.backends.host import Host, HostStep
from attn_mlir.backends.program import LaunchPlan, ResultShapes, RunPlan, stages_of
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import LOCK
from attn_mlir.passes.split_kv import COMBINE, PARTS

_WHOLE = (
    "num_splits: keys are not seen in parts where a row takes several passes over them, or has several sums of values, nor by the "
    "emulation of Hopper; explain() tells. Leave num_splits out"
)


class PartsForm(NamedTuple):
    """What kernels of parts have besides: values that are columns of the keys, loaded with them; how pages are copied, where not by one
    thread: BY_ROWS, row by row, or BY_PARTS, by all warps that load."""

    shared: bool
    gather: int


BY_ROWS, BY_PARTS = 1, 2
WHOLE_ROWS = PartsForm(False, 0)


class GpuLaunchPlan(LaunchPlan):
    """A function for GPUs that takes tensors and numbers and returns tensors. See `driver.CompiledFunction`."""

    def __init__(self, source: str, prepare: str, choices: Fields, host: Host, units: Mapping[str, GpuKernel]) -> None:
        """`source` is the module, `prepare` the pipeline that makes `host` and its kernels of it, `choices` those of their schedules."""
        super().__init__(host, {name: unit.kernel for name, unit in units.items()})
        self.units = units
        self._source, self._prepare, self._choices = source, prepare, choices
        self._lock = forks.lock()
        self._parts: dict[PartsForm, tuple[SplitDecode, GpuLaunchPlan] | None] = {}
        """Once they are known, the kernels of parts and a program of them, or None where there are none; `with_work` shares it."""
        self._paged = sorted({number for kernel in self.kernels.values() for number in kernel.paged})
        self._wholes: dict[PartsForm, tuple[WholeDecode, GpuLaunchPlan] | None] = {}
        """The same of kernels of one part."""
        self._splits = 0
        self._invariant = False
        self.listeners: list[Callable[[Mapping[str, str]], None]] = []
        """Are told why kernels are slow where only their compiler can know, before the first launch; see `performance.tell`."""

    def _plan(self, key: Any, inputs: Sequence[Any]) -> RunPlan:
        check_sizes(self.host.arguments, [None if number in self._paged else value for number, value in enumerate(inputs)])
        return super()._plan(key, inputs)

    def run(self, inputs: Sequence[Any], layout: str = "bhsd") -> list[torch.Tensor]:
        check_pages(inputs[number] for number in self._paged)
        return super().run(inputs, layout)

    @property
    def has_work(self) -> bool:
        """Whether callers said how keys of single queries are seen in parts, see `with_work`."""
        return bool(self._splits or self._invariant)

    def launch(self, step: HostStep, operands: list[Any], made: ResultShapes, plan: RunPlan, layout: str) -> list[torch.Tensor]:
        unit = self.units[step.kernel]
        described = unit.pairs
        if described is None:
            return self.launch_kernel(step, operands, made, layout)
        later = max(*step.operands, 2) + 1  # values of rows are no inputs of the program

        def launch(stage: PairStage, seen: list[Any], own: ResultShapes) -> list[torch.Tensor]:
            numbers = tuple(step.operands[number] if number < len(step.operands) else later for number in stage.kept)
            return self.launch_kernel(HostStep(stage.kernel or step.kernel, numbers, ()), seen, own, "bhsd")

        dtypes = {stage.kernel: self.units[stage.kernel].dtypes for stage in described.stages if stage.kernel}
        kernel = pairs_in_memory.PairKernel(described, {**dtypes, "": unit.dtypes}, launch, self.machine().processors)
        return pairs_in_memory.run(kernel, operands, made, layout, self._invariant)

    @abstractmethod
    def launch_kernel(self, step: HostStep, operands: list[Any], made: ResultShapes, layout: str) -> list[torch.Tensor]:
        """Runs the kernel of a step on its operands."""

    @staticmethod
    def readable(tensor: torch.Tensor, by_columns: bool) -> torch.Tensor:
        # Strides that a kernel cannot read are copied where it is launched.
        return tensor.resolve_neg() if tensor.is_neg() else tensor

    def ir_stages(self, pipeline: str) -> dict[str, str]:
        """The program after each pass of its preparation and of `pipeline`, "traced" first."""
        return stages_of(self._source, self._prepare, lambda module: outlined(module, self.host, self._choices), pipeline)

    @property
    def slow(self) -> dict[str, str]:
        """Why some kernels are not made by the best code generator, by their names."""
        return {name: str(unit.schedule[SLOW]) for name, unit in self.units.items() if SLOW in unit.schedule}

    def with_work(self, splits: int, invariant: bool) -> "GpuLaunchPlan":
        """The same program, which sees the keys of single queries in so many parts, or in parts of one size; see `driver.with_work`."""
        if invariant and splits > 1:
            raise UnsupportedError(
                f"batch_invariant sees the keys of single queries in parts of {FIXED_PART}, however many these are, "
                f"got num_splits={splits}: leave num_splits out, or pass num_splits=1 for one part"
            )
        made = copy.copy(self)
        made._splits, made._invariant = splits, invariant
        return made

    def decode(self, inputs: Sequence[Any], layout: str, keys: int) -> list[torch.Tensor] | None:
        """What `run` gives for packed sequences of one query each at most, with at most so many `keys`: these are seen in parts.

        None where nothing is to do, or the row does not allow that. Raises UnsupportedError where it must, as parts were asked for.
        """
        inputs = [self.readable(value, False) if isinstance(value, torch.Tensor) else value for value in inputs]
        plan = self.plan(inputs)
        split_up, form, found = not plan.empty and len(self.host.steps) == 1, PartsForm(False, False), None
        for form in self.forms(inputs) if split_up else ():
            found = self._split(form)
            if found is not None:
                break
        if found is None:
            check_pages(inputs[number] for number in self._paged)
            if self._splits > 1 and not plan.empty:
                raise UnsupportedError(_WHOLE)
            return None
        (split, program), (kernel,) = found, self.kernels.values()
        heads, batch = inputs[kernel.keys].shape[1], len(inputs[kernel.lengths[0]])
        if not batch:
            return None
        if self._invariant:
            cut = fixed_parts(keys, self._splits)
        else:
            blocks = -(-(inputs[kernel.over].shape[1] // heads) // split.parts.kernel.block_q)
            cut = parts_for(keys, heads * batch * blocks, self.blocks_of(form)[1], self.machine().processors, self._splits)
        made = plan.steps[0]
        # The kernel of one part ends rows otherwise than a merge does, and bits may depend on no other sequence.
        one = self._whole(form) if cut[0] == 1 and not self._invariant else None
        if one is not None:
            return one[0].run(kernel, inputs, made, layout, one[1].start_part)
        if not is_sliced(split.parts):
            return split.run(kernel, inputs, made, layout, cut, program.start_part)
        found = [split.run(kernel, seen, made, layout, cut, program.start_part) for seen, made in sliced_calls(split.parts, inputs, made)]
        return joined(found, made)

    def forms(self, inputs: Sequence[Any]) -> list[PartsForm]:
        """The kernels of parts that see these keys, the best first."""
        sizes = [inputs[number].shape[2] for number in self._paged]
        shared = (True, False) if self.shares_values(inputs) else (False,)
        copied = any(size % PAGE_ROWS for size in sizes)
        gathers = (BY_ROWS,) if copied else (BY_PARTS, 0) if any(self.copies_parts(size) for size in sizes) else (0,)
        return [PartsForm(values, gather) for values in shared for gather in gathers]

    def copies_parts(self, size: int) -> bool:
        """Whether pages of so many rows are better copied part by part by all warps that load than by one thread."""
        return False

    def _split(self, form: PartsForm) -> "tuple[SplitDecode, GpuLaunchPlan] | None":
        """The kernels of parts, and the program that launches them; lowered at the first call that needs them."""
        if form not in self._parts:
            with LOCK:
                if form not in self._parts:
                    units = self.lower_parts(form)
                    made = None if units is None else self.with_units({PARTS: units[0], COMBINE: units[1]})
                    self._parts[form] = None if units is None or made is None else (SplitDecode(*units), made)
        return self._parts[form]

    def _whole(self, form: PartsForm) -> "tuple[WholeDecode, GpuLaunchPlan] | None":
        """The kernel of one part, and the program that launches it; lowered at the first call that needs it."""
        if form not in self._wholes:
            with LOCK:
                if form not in self._wholes:
                    unit = self.lower_whole(form)
                    none = unit is None or is_sliced(unit)
                    self._wholes[form] = None if unit is None or none else (WholeDecode(unit), self.with_units({WHOLE: unit}))
        return self._wholes[form]

    def gathers(self) -> bool:
        """Whether single queries may see keys in pages of any size."""
        return len(self.host.steps) == 1 and self._split(PartsForm(False, BY_ROWS)) is not None

    def lower_parts(self, form: PartsForm = WHOLE_ROWS) -> tuple[GpuKernel, GpuKernel] | None:
        """The kernels of parts and of their merge, or None."""
        return None

    def sees_parts(self, gather: int) -> bool:
        """Whether single queries of packed sequences may see keys in parts, in pages that are copied as `gather` says."""
        return len(self.host.steps) == 1 and self._split(PartsForm(False, gather)) is not None

    def lower_whole(self, form: PartsForm = WHOLE_ROWS) -> GpuKernel | None:
        """The kernel of one part, which needs no merge, or None."""
        return None

    def shares_values(self, inputs: Sequence[Any]) -> bool:
        """Whether v is columns of k, in the same memory, and there may be kernels of parts that load both at once."""
        return False

    def blocks_of(self, form: PartsForm) -> tuple[int, int]:
        """Rows, heads of a group, and keys of a block where keys are seen in parts."""
        return 64, 128

    def choices_of(self, form: PartsForm) -> Fields:
        """What they are made with."""
        return {**self._choices, **dict(zip(("block_q", "block_kv"), self.blocks_of(form), strict=True))}

    def with_units(self, units: Mapping[str, GpuKernel]) -> "GpuLaunchPlan":
        """A program of other kernels for the same device."""
        raise NotImplementedError

    def start_part(self, name: str, arguments: list[Any], outputs: int) -> None:
        """Launches one of this program's kernels; how many arguments, at the end before the list of work, are written."""
        raise NotImplementedError

    @abstractmethod
    def stages(self) -> dict[str, str]:
        """See `driver.Kernel.stages`; the source of the kernels is the last."""

    @abstractmethod
    def explain(self) -> str:
        """Each kernel in words: its schedule, and, once it is compiled, its registers and spills."""
