"""Programs of linear attention whose kernels a CPU runs: what "scans" and "simt" print, compiled for the host, others by the evaluator."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import SCHEDULE
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel, read_unit
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.outputs import outputs_of
from attn_mlir.backends.gpu.packed import arguments_of
from attn_mlir.backends.gpu.program import GpuLaunchPlan
from attn_mlir.backends.gpu.scheduled import scheduled
from attn_mlir.backends.host import HostStep
from attn_mlir.backends.nvidia import codegen, pipeline
from attn_mlir.backends.nvidia.compiled_kernels import round_results
from attn_mlir.backends.nvidia.emulation import driver
from attn_mlir.backends.program import ResultShapes, function_named, reported
from attn_mlir.backends.segments import DeviceModel
from attn_mlir.dialects import load_all, loaded
from attn_mlir.mlir import ir
from attn_mlir.reference.evaluator import find_function
from attn_mlir.reference.tiles import run_kernel
from scan_emulation import HostScan, as_array

_UNUSED = KernelCode("", "", "", (), 0, 0)
COMPILED = ("scans", "simt")
"""The emitters whose code is compiled for the host."""


class ScanPlan(GpuLaunchPlan):
    """Scans of this emitter and plain kernels compiled for the host, each run twice; other kernels by the evaluator."""

    def __init__(self, *given: Any, texts: Mapping[str, str]) -> None:
        super().__init__(*given)
        self._texts = texts
        self.compiled: dict[str, HostScan] = {}

    def machine(self) -> DeviceModel:
        return DeviceModel(1)

    def stages(self) -> dict[str, str]:
        return {}

    def explain(self) -> str:
        return ""

    def launch_kernel(self, step: HostStep, operands: list[Any], made: ResultShapes, layout: str) -> list[torch.Tensor]:
        unit = self.units[step.kernel]
        memory = outputs_of(unit, made, operands[unit.kernel.over], layout, lambda output: 1)
        arguments = [x.contiguous() if isinstance(x, torch.Tensor) else x for x in arguments_of(unit.kernel, operands, memory)]
        outputs = [arguments[len(operands) + number] for number in range(len(memory))]
        if unit.schedule["emitter"] in COMPILED:
            self._compare(step.kernel, unit, arguments, outputs)
        else:
            self._evaluate(step.kernel, arguments, len(memory))
        for each, found in zip(memory, outputs, strict=True):
            each.seen.copy_(found)
        return [each.result() for each in memory]

    def _compare(self, name: str, unit: GpuKernel, arguments: Sequence[Any], outputs: list[torch.Tensor]) -> None:
        """Both orders of threads give the same bits."""
        if name not in self.compiled:
            self.compiled[name] = HostScan(unit.code, unit.schedule["emitter"] == "simt")
        kernel, over = unit.kernel, arguments[unit.kernel.over]
        grid = (kernel.blocks, over.shape[1], kernel.sequences_of(arguments))
        if kernel.grid != "chunks":
            grid = (kernel.blocks_of(over.shape[2]), over.shape[1], over.shape[0])
        found = []
        for descending in (False, True):
            for output in outputs:
                output.fill_(float("nan"))
            self.compiled[name](arguments, grid, descending)
            found.append([output.clone() for output in outputs])
        assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(*found, strict=True)), f"{name}: a race"

    def _evaluate(self, name: str, arguments: Sequence[Any], outputs: int) -> None:
        with ir.Context() as context:
            load_all(context)
            module = ir.Module.parse(self._texts[name])
            arrays = [as_array(x) for x in arguments]
            run_kernel(find_function(module, name), arrays, rounding=True)
        for output, array in zip(arguments[-outputs:], arrays[-outputs:], strict=True):
            output.copy_(torch.from_numpy(array))


def compiled(source: str, name: str, prepare: str, choices: attributes.Fields) -> ScanPlan:
    """As `emulation.driver` compiles programs."""
    texts: dict[str, str] = {}
    units: dict[str, GpuKernel] = {}
    with reported(), loaded() as context:
        module, host = scheduled(
            context, source, name, prepare, {**choices, "arch": "sm_90a", "tilelang": 0}, pipeline.KERNEL, "NVIDIA", wide=True
        )
        round_results(module, host)
        for step in [step for step in host.steps if step.kernel]:
            function = function_named(module, step.kernel)
            texts[step.kernel] = f"module {{\n{function.get_asm(print_generic_op_form=True)}\n}}"
            printed = attributes.read(function, SCHEDULE)["emitter"] in COMPILED
            emit = codegen.emit if printed else lambda _: _UNUSED
            units[step.kernel] = read_unit(function, len(step.results), emit)
    return ScanPlan(source, prepare, choices, host, units, texts=texts)


def emulate(monkeypatch: pytest.MonkeyPatch) -> list[ScanPlan]:
    """Lets `device="cuda-emulated"` compile such programs; the list of those that are made from now on."""
    made: list[ScanPlan] = []

    def kept(*given: Any) -> ScanPlan:
        made.append(compiled(*given))
        return made[-1]

    monkeypatch.setattr(driver, "_compile", kept)
    monkeypatch.setattr(driver, "_PROGRAMS", {})
    monkeypatch.setattr(driver, "_KERNELS", {})
    return made
