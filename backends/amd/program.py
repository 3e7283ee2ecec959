"""Programs for AMD GPUs: the kernels of a host function, compiled with clang at the first run, on torch tensors."""

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attn_mlir.backends.amd import hip, pipeline
from attn_mlir.backends.amd.compile import Binary, compile_all
from attn_mlir.backends.amd.launch import EMULATED, ON_CPU, EmulatedLauncher, HipLauncher, InterpretedLauncher, Launcher
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.limits import check_sizes
from attn_mlir.backends.gpu.packing import aligned_empty
from attn_mlir.backends.gpu.units import Unit
from attn_mlir.backends.host import Host, Step
from attn_mlir.backends.memory import Memory, allocate, empty
from attn_mlir.backends.program import HostProgram, Made, Plan, keep_kernels, stages_of
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.mlir import ir

_SLOT_BYTES = 1 << 30


class AmdProgram(HostProgram):
    """A function for AMD GPUs that takes tensors and numbers and returns tensors. See `driver.Program`."""

    def __init__(self, source: str, prepare: str, choices: attributes.Fields, host: Host, units: Mapping[str, Unit], device: str) -> None:
        """`device`: "hip", or "hip-emulated" or "hip-interpreted", which run on the CPU."""
        super().__init__(host, {name: unit.kernel for name, unit in units.items()})
        self.units = units
        self._source, self._prepare, self._choices = source, prepare, choices
        self._device = device
        self._binaries: Mapping[str, Binary] | None = None
        self._lock = threading.Lock()
        self._launchers: dict[tuple[str, int], Launcher] = {}

    def run(self, inputs: Sequence[Any], layout: str = "bhsd") -> list[torch.Tensor]:
        q = inputs[0]
        if self._device in ON_CPU and q.device.type != "cpu":
            raise ArgumentError(f"q is on {q.device}, but an emulation takes tensors on the CPU: move them with .cpu()")
        if self._device not in ON_CPU and hip.index_of(q) < 0:
            raise ArgumentError(f"this program is compiled for AMD GPUs, but q is on {q.device}: move the tensors with .cuda()")
        return super().run(inputs, layout)

    def _plan(self, key: Any, inputs: Sequence[Any]) -> Plan:
        check_sizes(self.host.arguments, inputs)
        return super()._plan(key, inputs)

    def readable(self, tensor: torch.Tensor, by_columns: bool) -> torch.Tensor:
        return tensor.resolve_neg() if tensor.is_neg() else tensor

    def launch(self, step: Step, operands: list[Any], made: Made, plan: Plan, layout: str) -> list[torch.Tensor]:
        unit = self.units[step.kernel]
        over = operands[unit.kernel.over]
        asked = {p.argument: p.align for p in unit.code.parameters if p.kind == "pointer" and p.align}
        memory = []
        for i, shape in enumerate(made.shapes):
            transposed, align = made.heads[i] and layout == "bshd", asked.get(len(operands) + i, 1)
            if shape and shape[-1] % align:
                memory.append(_padded(unit, i, shape, transposed, over.device, align))
            elif unit.kernel.outputs[i] == "store":
                tensor = empty(shape, unit.dtypes[i], transposed, over.device)
                memory.append(Memory(tensor, tensor))
            else:
                memory.append(_sums(unit, i, shape, transposed, over))
        chunk = [unit.kernel.block_q] if unit.kernel.grid == "pairs" else []
        arguments = [*operands, *[each.seen for each in memory], *chunk]
        self._launcher(step.kernel, over)(arguments, range(len(operands), len(operands) + len(memory)))
        return [each.result() for each in memory]

    def _launcher(self, name: str, over: torch.Tensor) -> Launcher:
        """The kernel on the tensor's device, compiled and loaded at its first use there."""
        index = -1 if self._device in ON_CPU else hip.index_of(over)
        found = self._launchers.get((name, index))
        if found is not None:
            return found
        unit = self.units[name]
        if self._device == EMULATED:
            made: Launcher = EmulatedLauncher(unit)
        elif self._device in ON_CPU:
            made = InterpretedLauncher(unit, self.binaries()[name])
        else:
            made = HipLauncher(unit, self.binaries()[name], index)
        with self._lock:
            return self._launchers.setdefault((name, index), made)

    def binaries(self) -> Mapping[str, Binary]:
        """The compiled kernels; the first call runs clang for all of them. Raises CompileError, or UnsupportedError without clang."""
        with self._lock:
            if self._binaries is None:
                made = compile_all([unit.code for unit in self.units.values()])
                self._binaries = dict(zip(self.units, made, strict=True))
            return self._binaries

    def stages(self) -> dict[str, str]:
        """See `driver.Kernel.stages`; "hip" is the last: the source of the kernels."""
        stages = stages_of(self._source, self._prepare, lambda module: outlined(module, self.host, self._choices), pipeline.KERNEL)
        return {**stages, "hip": "\n".join(unit.code.source for unit in self.units.values())}

    def explain(self) -> str:
        """Each kernel in words: its schedule, and, once it is compiled, its registers and spills."""
        binaries = self._binaries or {}
        lines = []
        for name, unit in self.units.items():
            lines.append(unit.describe())
            if name in binaries:
                lines.append(f"  compiled: {binaries[name].describe()}")
        return "\n".join(lines)


def outlined(module: ir.Module, host: Host, choices: attributes.Fields) -> None:
    """Leaves the kernels of `host`, and tells their schedules what is asked for."""
    keep_kernels(module, host)
    with module.context:
        for view in module.body.operations:
            given = attributes.read(view.operation, attributes.CHOICES)
            view.operation.attributes[attributes.CHOICES] = attributes.write({**choices, **given})


def _sums(unit: Unit, output: int, shape: torch.Size, transposed: bool, over: torch.Tensor) -> Memory:
    """Zeros to which programs add: in one place by atomic additions, or each in a slot of its own."""
    kernel = unit.kernel
    batch, heads, length = over.shape[:3]
    programs = (-(-length // kernel.block_q), batch, heads)
    slots = (1, 1, 1)
    if unit.schedule.get("sums") == "slots" or (kernel.outputs[output] == "scatter" and unit.schedule.get("deterministic")):
        apart = kernel.disjoint[output] if kernel.outputs[output] == "scatter" else (False, True, True)
        slots = (1 if apart[0] else programs[0], 1 if apart[2] else batch, 1 if apart[1] else heads)
    dtype = unit.dtypes[output]
    size = math.prod(slots) * math.prod(shape) * dtype.itemsize
    if math.prod(slots) > 1 and size > _SLOT_BYTES:
        raise UnsupportedError(
            f"deterministic=True: the sums of {unit.code.name} in a fixed order would take {size / 2**30:.1f} GiB here; use shorter "
            "sequences or fewer heads a call, let the captured tensor need no gradient, or compute it on the CPU"
        )
    return allocate(kernel.outputs[output], shape, dtype, over.device, transposed, slots, programs)


def _padded(unit: Unit, output: int, shape: torch.Size, transposed: bool, device: torch.device, align: int) -> Memory:
    """Memory whose rows begin where the kernel needs them; the result is a copy of its columns in order."""
    if unit.kernel.outputs[output] != "store":
        raise UnsupportedError(f"{unit.code.name} adds to a tensor of {shape[-1]} columns, where it takes multiples of {align}")
    seen = aligned_empty(shape, unit.dtypes[output], device, align)
    return _Copied(empty(shape, unit.dtypes[output], transposed, device), seen)


class _Copied(Memory):
    """The result is a copy of what the kernel wrote."""

    def result(self) -> torch.Tensor:
        return self.tensor.copy_(self.seen)
