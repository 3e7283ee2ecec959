"""The kernels of a program as a driver keeps them: how they are launched, their code, and what its compiler made of it."""

import io
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from attn_mlir.backends import plain
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.emitters import SLOW
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.pair_products import PAIRS, PairsInMemory, read
from attn_mlir.backends.host import Host, KernelGrid, from_json, read_kernel, to_json
from attn_mlir.backends.program import DTYPES, function_named, keep_kernels
from attn_mlir.mlir import ir


@dataclass(frozen=True)
class GpuKernel:
    """A kernel: its grid and outputs, its code, the schedule that the code follows, and the element types of its outputs in memory."""

    kernel: KernelGrid
    code: KernelCode
    schedule: Fields
    outputs: tuple[str, ...]

    @cached_property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Those of the outputs."""
        return tuple(DTYPES[element] for element in self.outputs)

    @cached_property
    def pairs(self) -> PairsInMemory | None:
        """What a driver multiplies beside the kernel, whose outputs are then none of the step's own (`pairs_in_memory`)."""
        return read(str(self.schedule[PAIRS])) if PAIRS in self.schedule else None

    @cached_property
    def is_plain(self) -> bool:
        """Whether every output is one of the step's, and written once, so that it needs neither zeros nor slots."""
        return self.pairs is None and all(kind == "store" for kind in self.kernel.outputs)

    def describe(self) -> str:
        """In words: who made it, with which decisions, and what it takes of a GPU."""
        code, schedule = self.code, dict(self.schedule)
        slow = schedule.pop(SLOW, "")
        made = f"{schedule.pop('emitter', code.language)} for {schedule.pop('arch', code.arch)}"
        line = f"{code.name}: {made}, {code.threads} threads, {code.shared_bytes} bytes of shared memory, grid: {code.grid}"
        line += f"\n  slow: {slow}" if slow else ""
        return line + ("\n  schedule: " + ", ".join(f"{name} {value}" for name, value in schedule.items()) if schedule else "")


def outlined(module: ir.Module, host: Host, choices: Fields) -> None:
    """Leaves the kernels of `host`, and tells their schedules what is asked for."""
    keep_kernels(module, host)
    with module.context:
        for view in module.body.operations:
            given = attributes.read(view.operation, attributes.CHOICES)
            view.operation.attributes[attributes.CHOICES] = attributes.write({**choices, **given})


def read_unit(function: ir.Operation, results: int, emit: Callable[[ir.Operation], KernelCode]) -> GpuKernel:
    """The unit of a scheduled kernel of a step with so many results. Raises UnsupportedError where its emitter cannot make it."""
    schedule = attributes.read(function, attributes.SCHEDULE)
    if PAIRS in schedule:
        results = read(str(schedule[PAIRS])).outputs
    kernel = read_kernel(function, results)
    arguments = [argument.type for argument in function.regions[0].blocks[0].arguments]
    end = len(arguments) - (kernel.grid == "pairs" or bool(kernel.lengths))
    elements = tuple(str(ir.MemRefType(type_).element_type) for type_ in arguments[end - results : end])
    return GpuKernel(kernel, emit(function), schedule, elements)


def read_units(module: ir.Module, host: Host, emit: Callable[[ir.Operation], KernelCode]) -> dict[str, GpuKernel]:
    """The units of all scheduled kernels of a host function, and of the stages of their pairs, by their names. Raises as `read_unit`."""
    units: dict[str, GpuKernel] = {}
    for step in host.steps:
        if step.kernel and step.kernel not in units:
            made = units[step.kernel] = read_unit(function_named(module, step.kernel), len(step.results), emit)
            for stage in made.pairs.stages if made.pairs is not None else ():
                if stage.kernel:
                    units[stage.kernel] = read_unit(function_named(module, stage.kernel), stage.outputs, emit)
    return units


def slow_kernels(functions: Iterable[ir.Operation]) -> dict[str, str]:
    """Why some of the scheduled kernels are slow, by their names."""
    schedules = {ir.StringAttr(op.attributes["sym_name"]).value: attributes.read(op, attributes.SCHEDULE) for op in functions}
    return {name: str(schedule[SLOW]) for name, schedule in schedules.items() if SLOW in schedule}


def pack(host: Host, units: Mapping[str, GpuKernel]) -> tuple[bytes, dict[str, Any]]:
    """A program before its kernels are compiled as one file and plain data."""
    file = io.BytesIO()
    fields = to_json(host, {name: unit.kernel for name, unit in units.items()})
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, unit in units.items():
            archive.writestr(name, unit.code.source)
    fields["units"] = [[name, unit.code.to_json(), unit.schedule, unit.outputs] for name, unit in units.items()]
    return file.getvalue(), fields


def unpack(data: bytes, fields: Mapping[str, Any]) -> tuple[Host, dict[str, GpuKernel]]:
    """The inverse of `pack`. Raises for other data."""
    host, kernels = from_json(fields)
    units = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name, code, schedule, outputs in fields["units"]:
            made = KernelCode.from_json(code, archive.read(name).decode())
            units[name] = GpuKernel(kernels[name], made, plain.read(Fields, schedule), plain.read(tuple[str, ...], outputs))
    if kernels.keys() - units:
        raise LookupError("the code of a kernel is missing")
    return host, units
