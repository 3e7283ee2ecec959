"""Programs whose kernels the evaluator of the `warp` dialect runs, on torch tensors of the CPU."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.outputs import outputs_of
from attn_mlir.backends.gpu.packed import arguments_of, sequence_count
from attn_mlir.backends.gpu.program import GpuLaunchPlan
from attn_mlir.backends.host import Host, HostStep
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.compiled_kernels import own_memory, packed_semaphores
from attn_mlir.backends.nvidia.emulation.kernel import EvaluatedKernel
from attn_mlir.backends.program import ResultShapes
from attn_mlir.backends.segments import DeviceModel
from attn_mlir.errors import ArgumentError


class EmulatedLaunchPlan(GpuLaunchPlan):
    """A function that takes tensors and numbers and returns tensors. See `driver.CompiledFunction`."""

    def __init__(
        self,
        source: str,
        prepare: str,
        choices: attributes.Fields,
        host: Host,
        units: Mapping[str, GpuKernel],
        texts: Mapping[str, str],
    ) -> None:
        """`texts` are the kernels in the `warp` dialect, by their names."""
        super().__init__(source, prepare, choices, host, units)
        self._kernels = {name: EvaluatedKernel(text) for name, text in texts.items()}

    def run(self, inputs: Sequence[Any], layout: str = "bhsd") -> list[torch.Tensor]:
        if inputs[0].device.type != "cpu":
            raise ArgumentError(f"q is on {inputs[0].device}, but an emulation takes tensors on the CPU: move them with .cpu()")
        return super().run(inputs, layout)

    def machine(self) -> DeviceModel:
        return DeviceModel(1)

    def launch_kernel(self, step: HostStep, operands: list[Any], made: ResultShapes, layout: str) -> list[torch.Tensor]:
        unit = self.units[step.kernel]
        count = sequence_count(unit.kernel, operands)
        memory = outputs_of(unit, made, operands[unit.kernel.over], layout, lambda output: 1, sequences=count)
        kinds = {len(operands) + number: kind for number, kind in enumerate(unit.kernel.outputs)}
        arguments = arguments_of(unit.kernel, operands, memory, packed_semaphores(unit, operands))
        self._kernels[step.kernel]([*arguments, *own_memory(unit, operands)], kinds)
        return [each.result() for each in memory]

    def stages(self) -> dict[str, str]:
        """See `driver.Kernel.stages`; "cuda" is the last: the kernels that are emulated, as they are printed."""
        return {**self.ir_stages(pipeline.WARP), "cuda": "\n".join(unit.code.source for unit in self.units.values())}

    def explain(self) -> str:
        return "\n".join(unit.describe() for unit in self.units.values())
