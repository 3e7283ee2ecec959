"""Derivative programs: several kernels, called in the order of a host function, on torch tensors."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from attn_mlir.backends import disk_cache, plain
from attn_mlir.backends.cpu import pipeline
from attn_mlir.backends.cpu.jit import SUFFIX, JitWorker, bytecode, load_workers
from attn_mlir.backends.cpu.launch import launch_grid, readable
from attn_mlir.backends.cpu.passes.choose_blocks import threads_of
from attn_mlir.backends.cpu.slots import allocate
from attn_mlir.backends.cpu.split import NOT_IN_PARTS, SplitAttention, compile_split, with_blocks
from attn_mlir.backends.cpu.target import WITHOUT_TILES, host
from attn_mlir.backends.cpu.work import Choices, LaunchWork, covers, works_of
from attn_mlir.backends.host import Host, HostStep, KernelGrid, from_json, read_host, read_kernel, to_json
from attn_mlir.backends.program import (
    OUTLINE,
    LaunchPlan,
    ResultShapes,
    RunPlan,
    apply_steps,
    function_named,
    keep_kernels,
    prepare_derivative,
    reported,
    stages_of,
)  # fmt: skip
from attn_mlir.backends.segments import DeviceModel
from attn_mlir.dialects import loaded
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry

_FEW = {rows: pipeline.few_rows(rows, keys) for rows, keys in (pipeline.ONE_ROW, pipeline.FEW_ROWS)}
"""The pipelines of kernels for sequences of at most so many queries, the smallest first."""
_PROGRAMS: dict[tuple[str, str, str, str], "CpuLaunchPlan"] = {}


class CpuLaunchPlan(LaunchPlan):
    """A function compiled for the CPU that takes tensors and numbers and returns tensors. See `driver.CompiledFunction`."""

    def __init__(
        self,
        source: str,
        prepare: str,
        function: Host,
        kernels: dict[str, KernelGrid],
        workers: dict[str, JitWorker],
        threads: dict[str, int],
        to_kernels: str,
    ) -> None:
        super().__init__(function, kernels)
        self._source = source
        self._prepare = prepare
        self._workers = workers
        self._threads, self._to_kernels = threads, to_kernels
        self._choices = Choices()
        self._planned: list[LaunchWork] | None = None
        self._splits: dict[tuple[int, bool], SplitAttention | None] = {}
        """Kernels that see the keys of so few queries in parts; None where the row does not allow that."""
        self._few = function.name == "attention" and to_kernels == pipeline.KERNEL
        self._scans = to_kernels == pipeline.KERNEL and any(kernel.grid == "chunks" for kernel in kernels.values())

    def run(self, inputs: Sequence[Any], layout: str = "bhsd") -> list[torch.Tensor]:
        """See `driver.CompiledFunction.run`. A single position of linear attention, as in decoding, is a chunk of its own."""
        if self._scans and isinstance(inputs[0], torch.Tensor) and inputs[0].shape[2:3] == (1,):
            with LOCK:
                step = compile_program(self._source, self.host.name, self._prepare, pipeline.STEP)
            return step.run(inputs, layout)
        return super().run(inputs, layout)

    def with_work(self, splits: int, invariant: bool) -> "CpuLaunchPlan":
        """The same program with other work on packed tensors, see `Choices`."""
        made = copy.copy(self)
        made._choices = Choices(splits, invariant)
        return made

    def planned(self, inputs: Sequence[Any]) -> "CpuLaunchPlan":
        """The same program of one kernel, with lists of work for these inputs: for calls with the same lengths of queries."""
        if len(self.host.steps) != 1:
            return self
        (step,), plan = self.host.steps, self.plan(inputs)
        operands = [inputs[i] for i in step.operands]
        made = copy.copy(self)
        made._planned = None if plan.empty else self._works(step, operands, plan.steps[0], plan.size)
        return made

    def machine(self) -> DeviceModel:
        return DeviceModel(torch.get_num_threads(), summary=0.45, launches=4.0, crowd=0.0, passing=0.2, products=2.8)

    readable = staticmethod(readable)  # itself, as it is asked for every tensor of a call

    def launch(self, step: HostStep, operands: list[Any], made: ResultShapes, plan: RunPlan, layout: str) -> list[torch.Tensor]:
        kernel = self.kernels[step.kernel]
        works = self._works(step, operands, made, plan.size) if self._planned is None else self._planned
        outputs = enumerate(zip(made.shapes, made.dtypes, made.heads, strict=True))
        memory = [allocate(kernel, i, works[0].grid, shape, dtype, layout if head else "bhsd") for i, (shape, dtype, head) in outputs]
        if kernel.lengths and not covers(kernel, operands):
            for each in memory:
                each.tensor.zero_()
        arguments = [
            (value, "tensor" if isinstance(value, torch.Tensor) else self.host.arguments[number].element)
            for value, number in zip(operands, step.operands, strict=True)
        ]
        for work in works:
            if work.parts is not None:
                split = self._in_parts(work.rows, work.heads > 0)
                if split is not None:
                    split.run_listed(arguments, kernel.over, work, [work.seen(each.seen) for each in memory])
                continue
            program = self._of_few_rows(work.rows, work.heads > 0) if work.rows else self
            launch_grid(
                program._workers[step.kernel],
                work.grid,
                [(work.seen(value) if number == kernel.over else value, kind) for number, (value, kind) in enumerate(arguments)],
                [work.seen(each.seen) for each in memory],
                kernel.grid == "pairs" and not kernel.lengths,
                program._threads.get(step.kernel, 0),
                work.lists,
            )
        return [each.result() for each in memory]

    def _works(self, step: HostStep, operands: list[Any], made: ResultShapes, size: int) -> list[LaunchWork]:
        kernel = self.kernels[step.kernel]
        alone = self._few and len(self.host.steps) == 1
        splits = (lambda rows, by_heads: self._in_parts(rows, by_heads) is not None) if alone else None
        return works_of(kernel, operands, made, size, _FEW if self._few else (), self._choices, splits)

    def _in_parts(self, rows: int, by_heads: bool) -> SplitAttention | None:
        """The kernels that see the keys of so few queries in parts, compiled at the first call that needs them."""
        key = rows, by_heads
        with LOCK:
            if key not in self._splits:
                first = f"attn-pack-heads,{pipeline.ONLINE}" if by_heads else pipeline.ONLINE
                blocks = next(sizes for sizes in (pipeline.ONE_ROW, pipeline.FEW_ROWS) if sizes[0] == rows)
                self._splits[key] = compile_split(self._source, first, blocks, with_blocks(blocks))
            if self._splits[key] is None and self._choices.splits > 1:
                raise UnsupportedError(NOT_IN_PARTS)
            return self._splits[key]

    def _of_few_rows(self, rows: int, by_heads: bool) -> "CpuLaunchPlan":
        """The same for sequences of at most so many queries, or with the heads of a group as rows."""
        to_kernels = f"attn-pack-heads,{_FEW[rows]}" if by_heads else _FEW[rows]
        with LOCK:
            return compile_program(self._source, self.host.name, self._prepare, to_kernels)

    @property
    def without_tiles(self) -> dict[str, str]:
        """Why kernels do not use the matrix tiles that the machine has, by their names."""
        return without_tiles(self._source, self._prepare, lambda module: keep_kernels(module, self.host), self._to_kernels)

    def stages(self) -> dict[str, str]:
        """See `driver.Kernel.stages`; the host function is part of the first ones, up to "attn-outline"."""
        return stages_of(self._source, self._prepare, lambda module: keep_kernels(module, self.host), pipeline.ALL)


def without_tiles(source: str, *steps: str | Callable[[ir.Module], None]) -> dict[str, str]:
    """Why kernels do not use the matrix tiles that the machine has, by their names; for `steps` see `stages_of`."""
    if not host().tiles:
        return {}
    with reported(), loaded():
        module = ir.Module.parse(source)
        apply_steps(module, steps)
        reasons = [(op, op.attributes[WITHOUT_TILES]) for op in find_all(module, "func.func") if WITHOUT_TILES in op.attributes]
        return {ir.StringAttr(op.attributes["sym_name"]).value: ir.StringAttr(reason).value for op, reason in reasons}


def compile_derivative(source: str, function: str, wrt: Sequence[str], deterministic: bool = False, segment: int = 0) -> CpuLaunchPlan:
    """Compiles a derivative of the program `@attention`; see `driver.compile_derivative`. Every program is deterministic here."""
    options = prepare_derivative(function, wrt, pipeline.OUTLINE, segment, residual=True, options=pipeline.DECAYS)
    return compile_program(source, *options)


def build_derivative(source: str, function: str, wrt: Sequence[str], segment: int = 0) -> CpuLaunchPlan:
    """The same without a place in memory: for a program that is tried."""
    options = prepare_derivative(function, wrt, pipeline.OUTLINE, segment, residual=True, options=pipeline.DECAYS)
    return _compile(source, *options, pipeline.KERNEL)


def compile_program(source: str, name: str, prepare: str = OUTLINE, to_kernels: str = pipeline.KERNEL) -> CpuLaunchPlan:
    """Compiles function `name` of what the pipeline `prepare` makes of a module, or finds it in memory or on disk.

    `to_kernels` is the pipeline that makes kernels of its steps.
    """
    key = (source, name, prepare, to_kernels)
    if key not in _PROGRAMS:
        _PROGRAMS[key] = _compile(*key)
    return _PROGRAMS[key]


def _compile(source: str, name: str, prepare: str, to_kernels: str) -> CpuLaunchPlan:
    key = disk_cache.key_of(source, name, prepare, to_kernels, pipeline.LLVM, host().name, disk_cache.version("cpu", "tuning"))
    with loaded():
        found = disk_cache.find(key, SUFFIX, _loaded)
        if found is not None:
            return CpuLaunchPlan(source, prepare, *found, to_kernels)
        module, function, kernels, threads = _lower(source, name, prepare, to_kernels)
        disk_cache.save(key, SUFFIX, bytecode(module), {**to_json(function, kernels), "threads": threads})
        return CpuLaunchPlan(source, prepare, function, kernels, load_workers(module, kernels), threads, to_kernels)


def _loaded(code: bytes, fields: dict[str, Any]) -> tuple[Host, dict[str, KernelGrid], dict[str, JitWorker], dict[str, int]]:
    """What is on disk. Raises where that is no program."""
    function, kernels = from_json(fields)
    threads = plain.read(dict[str, int], fields["threads"])
    return function, kernels, load_workers(ir.Module.parse(code), kernels), threads


def _lower(source: str, name: str, prepare: str, to_kernels: str) -> tuple[ir.Module, Host, dict[str, KernelGrid], dict[str, int]]:
    with reported():
        module = ir.Module.parse(source)
        Pipeline.parse(prepare, registry()).run(module)
        function = read_host(function_named(module, name))
        keep_kernels(module, function)
        Pipeline.parse(to_kernels, registry()).run(module)
        called = [step for step in function.steps if step.kernel]
        kernels = {step.kernel: read_kernel(function_named(module, step.kernel), len(step.results)) for step in called}
        threads = {name: most for name in kernels if (most := threads_of(function_named(module, name)))}
        Pipeline.parse(pipeline.LLVM, registry()).run(module)
        return module, function, kernels, threads
