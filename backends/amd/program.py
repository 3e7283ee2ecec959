"""Programs for AMD GPUs: the kernels of a host function, compiled with clang at the first run, on torch tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attn_mlir.backends.amd import codegen, hip, pipeline
from attn_mlir.backends.amd.compile import HipBinary, compile_all
from attn_mlir.backends.amd.devices import EMULATED, ON_CPU
from attn_mlir.backends.amd.launch import ROW_BYTES, EmulatedLauncher, HipKernelLauncher, HipLauncher, InterpretedLauncher
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.outputs import outputs_of
from attn_mlir.backends.gpu.packed import arguments_of, sequence_count
from attn_mlir.backends.gpu.program import WHOLE_ROWS, GpuLaunchPlan, PartsForm
from attn_mlir.backends.gpu.scalar_bounds import MAX_COLUMNS
from attn_mlir.backends.gpu.slices import slices_of
from attn_mlir.backends.gpu.split import lower_parts, lower_whole
from attn_mlir.backends.host import Host, HostStep
from attn_mlir.backends.program import ResultShapes
from attn_mlir.backends.segments import DeviceModel
from attn_mlir.errors import ArgumentError


class AmdLaunchPlan(GpuLaunchPlan):
    """A function for AMD GPUs that takes tensors and numbers and returns tensors. See `driver.CompiledFunction`."""

    def __init__(
        self, source: str, prepare: str, choices: attributes.Fields, host: Host, units: Mapping[str, GpuKernel], device: str
    ) -> None:
        """`device`: "hip", or one of those of `ON_CPU`."""
        super().__init__(source, prepare, choices, host, units)
        self._device = device
        self._binaries: Mapping[str, HipBinary] | None = None
        self._launchers: dict[tuple[str, int], HipKernelLauncher] = {}

    def blocks_of(self, form: PartsForm) -> tuple[int, int]:
        columns = (self.host.arguments[0].shape or (0,))[-1]
        return 128, 32 if columns > MAX_COLUMNS else 64

    def run(self, inputs: Sequence[Any], layout: str = "bhsd") -> list[torch.Tensor]:
        q = inputs[0]
        if self._device in ON_CPU and q.device.type != "cpu":
            raise ArgumentError(f"q is on {q.device}, but an emulation takes tensors on the CPU: move them with .cpu()")
        if self._device not in ON_CPU and hip.index_of(q) < 0:
            raise ArgumentError(f"this program is compiled for AMD GPUs, but q is on {q.device}: move the tensors with .cuda()")
        return super().run(inputs, layout)

    def machine(self) -> DeviceModel:
        if self._device in ON_CPU:
            return DeviceModel(1)
        return DeviceModel(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)

    def launch_kernel(self, step: HostStep, operands: list[Any], made: ResultShapes, layout: str) -> list[torch.Tensor]:
        unit = self.units[step.kernel]
        over = operands[unit.kernel.over]
        asked = {p.argument: p.align for p in unit.code.parameters if p.kind == "pointer" and p.align}
        count = sequence_count(unit.kernel, operands)
        memory = outputs_of(unit, made, over, layout, lambda output: asked.get(len(operands) + output, 1), ROW_BYTES, count)
        for seen, outputs in slices_of(unit, operands, memory):
            arguments = arguments_of(unit.kernel, seen, outputs)
            copied = self._launcher(step.kernel, over)(arguments, range(len(operands), len(operands) + len(memory)))
            self.tell_copied(step, operands, copied)
        return [each.result() for each in memory]

    def lower_parts(self, form: PartsForm = WHOLE_ROWS) -> tuple[GpuKernel, GpuKernel] | None:
        if form != WHOLE_ROWS:
            return None
        return lower_parts(self._source, self.choices_of(form), pipeline.KERNEL, codegen.emit, "AMD", wide=True)

    def lower_whole(self, form: PartsForm = WHOLE_ROWS) -> GpuKernel | None:
        if form != WHOLE_ROWS:
            return None
        return lower_whole(self._source, self.choices_of(form), pipeline.KERNEL, codegen.emit, "AMD", wide=True)

    def with_units(self, units: Mapping[str, GpuKernel]) -> "AmdLaunchPlan":
        return AmdLaunchPlan(self._source, self._prepare, self._choices, self.host, units, self._device)

    def start_part(self, name: str, arguments: list[Any], outputs: int) -> None:
        end = len(arguments) - 1
        self._launcher(name, arguments[0])(arguments, range(end - outputs, end))

    def _launcher(self, name: str, over: torch.Tensor) -> HipKernelLauncher:
        """The kernel on the tensor's device, compiled and loaded at its first use there."""
        index = -1 if self._device in ON_CPU else hip.index_of(over)
        found = self._launchers.get((name, index))
        if found is not None:
            return found
        unit = self.units[name]
        if self._device.startswith(EMULATED):
            made: HipKernelLauncher = EmulatedLauncher(unit)
        elif self._device in ON_CPU:
            made = InterpretedLauncher(unit, self.binaries()[name])
        else:
            made = HipLauncher(unit, self.binaries()[name], index)
        with self._lock:
            return self._launchers.setdefault((name, index), made)

    def binaries(self) -> Mapping[str, HipBinary]:
        """The compiled kernels; the first call runs clang for all of them. Raises CompileError, or UnsupportedError without clang."""
        with self._lock:
            if self._binaries is None:
                made = compile_all([unit.code for unit in self.units.values()])
                self._binaries = dict(zip(self.units, made, strict=True))
            return self._binaries

    def stages(self) -> dict[str, str]:
        """See `driver.Kernel.stages`; "hip" is the last: the source of the kernels."""
        return {**self.ir_stages(pipeline.KERNEL), "hip": "\n".join(unit.code.source for unit in self.units.values())}

    def explain(self) -> str:
        binaries = self._binaries or {}
        lines = []
        for name, unit in self.units.items():
            lines.append(unit.describe())
            if name in binaries:
                lines.append(f"  compiled: {binaries[name].describe()}")
        return "\n".join(lines)
