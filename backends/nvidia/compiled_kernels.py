"""Kernels of a program with what the compiler made of them: on disk, in words; memory of their own, types of their results."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from attn_mlir.backends import plain
from attn_mlir.backends.allocation import empty
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.emitters import SLOW
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.packed import SemaphoreBlocks
from attn_mlir.backends.gpu.pair_products import PAIRS
from attn_mlir.backends.host import Host, HostStep, from_json, read_kernel, to_json
from attn_mlir.backends.nvidia.compile import Cubin
from attn_mlir.backends.program import function_named
from attn_mlir.mlir import ir


def own_words(unit: GpuKernel, operands: Sequence[Any]) -> tuple[int, int]:
    """Words (int32) of memory that a kernel has besides its arguments, and how many are zero; `operands` are the shapes of the kernel's.

    Semaphores tell programs that add to the same sums whose turn it is: `semaphore_parts` of them for `semaphore_rows` rows of a head. Or
    there are `partial_words` for sums of programs that thread blocks share.
    """
    schedule = unit.schedule
    if "semaphore_rows" not in schedule:
        return int(schedule.get("partial_words", 0)), 0
    batch, heads, length = operands[int(schedule["semaphore_over"])][:3]
    packed = semaphore_blocks(unit, operands)
    blocks = -(-length // int(schedule["semaphore_rows"])) if packed is None else packed.count
    count = int(batch * heads * blocks * int(schedule["semaphore_parts"]))
    return count, count


def semaphore_blocks(unit: GpuKernel, operands: Sequence[Any]) -> SemaphoreBlocks | None:
    """The blocks that have counters, of packed tensors with these shapes."""
    if "semaphore_rows" not in unit.schedule or not unit.kernel.lengths:
        return None
    length, sequences = operands[int(unit.schedule["semaphore_over"])][2], operands[unit.kernel.lengths[1]][0]
    return SemaphoreBlocks.of(length, int(unit.schedule["semaphore_rows"]), sequences)


def _shapes(operands: Sequence[Any]) -> list[Any]:
    return [value.shape if isinstance(value, torch.Tensor) else () for value in operands]


def packed_semaphores(unit: GpuKernel, operands: Sequence[Any]) -> SemaphoreBlocks | None:
    """Which blocks of the operands of a launch have counters, where sequences are packed; see `backends.gpu.packed.arguments_of`."""
    return semaphore_blocks(unit, _shapes(operands))


def own_memory(unit: GpuKernel, operands: Sequence[Any]) -> list[torch.Tensor]:
    """This memory, where there is any, for the operands of a launch."""
    words, zeros = own_words(unit, _shapes(operands))
    if not words:
        return []
    made = empty(words, dtype=torch.int32, device=operands[unit.kernel.over].device)
    made[:zeros].zero_()
    return [made]


WIDE_RESULTS = "attn.wide_results"


def round_results(module: ir.Module, host: Host) -> None:
    """Lets kernels write the program's results that are shaped like q, k or v in their type, where they write each element once.

    Sums are computed in f32, and the operators would round them afterwards. A module with the attribute `attn.wide_results` has parts of
    sums for results, which are not rounded before they are added up.
    """
    if WIDE_RESULTS in module.operation.attributes:
        return
    made = len(host.arguments)
    needed = {operand for step in host.steps for operand in step.operands}
    for step in host.steps:
        numbers = range(made, made + len(step.results))
        last = [number in host.returns and number not in needed for number in numbers]
        made += len(step.results)
        function = function_named(module, step.kernel) if step.kernel else None
        # Programs of TileLang store what they computed without a change of type.
        schedule = {} if function is None else attributes.read(function, attributes.SCHEDULE)
        if function is not None and schedule.get("emitter") in ("hopper", "warp") and PAIRS not in schedule:
            _round(function, step, last, host.arguments[0].element)


def _round(function: ir.Operation, step: HostStep, last: list[bool], element: str) -> None:
    """The same for one kernel; `last` tells for each of its results whether nothing in the program reads it."""
    kernel = read_kernel(function, len(step.results))
    arguments = list(function.regions[0].blocks[0].arguments)
    end = len(arguments) - (kernel.grid == "pairs" or bool(kernel.lengths))
    outputs = arguments[end - len(last) : end]
    for output, kind, free, result in zip(outputs, kernel.outputs, last, step.results, strict=True):
        if kind == "store" and free and kernel.grid != "chunks" and len(result.sizes) == 4 and result.type.element == "f32":
            old = ir.MemRefType(output.type)
            output.set_type(ir.MemRefType.get(old.shape, ir.Type.parse(element), old.layout, loc=function.location))
    types = [argument.type for argument in arguments]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, []))


def describe(unit: GpuKernel, binary: Cubin | None) -> str:
    """One kernel in words: who made it, with which decisions, and what it takes of a multiprocessor."""
    lines = [unit.describe()]
    if binary is not None:
        spills = f"{binary.spills} bytes of spills" if binary.spills else "no spills"
        lines.append(f"  compiled: {binary.registers} registers a thread, {spills}, {len(binary.code)} bytes of code")
        lines += [f"  slow: {binary.slow}"] if binary.slow else []
        lines += [f"  {warning}" for warning in binary.warnings]
    return "\n".join(lines)


def spilled(units: Mapping[str, GpuKernel], binaries: Mapping[str, Cubin]) -> dict[str, str]:
    """Why some kernels are slow although the best code generator made them, by their names: what only the compiler can know."""
    return {name: binaries[name].slow for name, unit in units.items() if SLOW not in unit.schedule and binaries[name].slow}


def pack(host: Host, units: Mapping[str, GpuKernel], binaries: Mapping[str, Cubin]) -> tuple[bytes, dict[str, Any]]:
    """A compiled program as one file and plain data."""
    file = io.BytesIO()
    fields = to_json(host, {name: unit.kernel for name, unit in units.items()})
    fields["units"] = []
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, unit in units.items():
            archive.writestr(f"{name}.cubin", binaries[name].code)
            archive.writestr(f"{name}.cu", unit.code.source)
            archive.writestr(f"{name}.py", unit.code.program)
            code = unit.code.to_json()
            fields["units"].append([name, code, unit.schedule, unit.outputs, binaries[name].facts()])
    return file.getvalue(), fields


def unpack(data: bytes, fields: Mapping[str, Any]) -> tuple[Host, dict[str, GpuKernel], dict[str, Cubin]]:
    """The inverse of `pack`. Raises for other data."""
    host, kernels = from_json(fields)
    units, binaries = {}, {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name, code, schedule, outputs, facts in fields["units"]:
            source, program = (archive.read(f"{name}.{suffix}").decode() for suffix in ("cu", "py"))
            made = KernelCode.from_json(code, source, program)
            units[name] = GpuKernel(kernels[name], made, plain.read(Fields, schedule), plain.read(tuple[str, ...], outputs))
            binaries[name] = Cubin.of(archive.read(f"{name}.cubin"), facts)
    if kernels.keys() - units:
        raise LookupError("the code of a kernel is missing")
    return host, units, binaries


def facts_of(units: Sequence[GpuKernel], binaries: Mapping[str, Cubin]) -> list[dict[str, Any]]:
    """What is known of each kernel, as plain data, for reports and tests."""
    return [
        {"name": unit.code.name, "schedule": unit.schedule, "kernel": asdict(unit.kernel), **binaries[unit.code.name].facts()}
        for unit in units
    ]


def single_kernel(host: Host, units: Mapping[str, GpuKernel]) -> str:
    """The name of the only kernel of a program that returns what it writes; empty for other programs."""
    name = host.steps[0].kernel
    arguments = len(host.arguments)
    whole = host.returns == tuple(range(arguments, arguments + len(host.steps[0].results)))
    return name if len(host.steps) == 1 and whole and name in units and units[name].is_plain else ""
