"""Kernels on torch tensors: on an AMD GPU, or on the CPU, which emulates their source or interprets their machine code."""

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import torch

from attn_mlir.backends.amd import hip
from attn_mlir.backends.amd.compile import HipBinary
from attn_mlir.backends.amd.emulation import EmulatedHipKernel
from attn_mlir.backends.amd.isa import IsaMachine
from attn_mlir.backends.amd.target import TARGETS
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.packed import Ragged, tensor_of
from attn_mlir.backends.gpu.packing import PackedArguments, aligned_copy, launch_grid, misaligned, values_of
from attn_mlir.errors import ArgumentError, UnsupportedError

_OFFSET_LIMIT = 1 << 31
_BLOCK_ROWS = 128
ROW_BYTES = _OFFSET_LIMIT // _BLOCK_ROWS
"""What rows are less than apart in memory, so that offsets inside of a block fit into 32 bits."""
_LAUNCHES = 256


class HipKernelLauncher(Protocol):
    """A kernel, ready to run."""

    def __call__(self, arguments: Sequence[Any], outputs: range) -> Collection[int]:
        """Runs on the arguments of the tile function, of which those with numbers in `outputs` are written. Returns what it copied."""
        ...


class HipLauncher:
    """A kernel loaded on one AMD GPU, which runs on torch's current stream; nothing waits for it.

    Parameters are packed once for tensors of the same addresses, shapes and strides.
    """

    def __init__(self, unit: GpuKernel, binary: HipBinary, index: int) -> None:
        self._unit, self._index = unit, index
        if any(p.kind == "counter" for p in unit.code.parameters):
            raise UnsupportedError(f"the kernel {unit.code.name} takes a counter, which the HIP driver does not give")
        with hip.on_device(index):
            self._function = hip.Function(binary.code, unit.code.entry)
        self._packed: dict[tuple[Any, ...], tuple[tuple[int, int, int], PackedArguments]] = {}

    def __call__(self, arguments: Sequence[Any], outputs: range) -> Collection[int]:
        # 0.0 == -0.0, by which functions may divide.
        key = tuple([(x.data_ptr(), x.shape, x.stride()) if isinstance(x, (torch.Tensor, Ragged)) else x or repr(x) for x in arguments])
        found, copied = self._packed.get(key), ()
        if found is None:
            own, copied = self._readable(arguments)  # copies live until the kernel is launched: torch gives their memory to later work only
            grid, blocks = launch_grid(self._unit.code, self._unit.kernel, own)
            found = grid, PackedArguments(values_of(self._unit.code, own, blocks))
            if not copied:
                if len(self._packed) >= _LAUNCHES:
                    self._packed.clear()
                self._packed[key] = found
        grid, packed = found
        with hip.on_device(self._index):
            self._function.launch(grid, self._unit.code.threads, hip.current_stream(self._index), packed.address)
        return copied

    def _readable(self, arguments: Sequence[Any]) -> tuple[list[Any], Collection[int]]:
        for number, argument in enumerate(arguments):
            if isinstance(argument, (torch.Tensor, Ragged)) and hip.index_of(tensor_of(argument)) != self._index:
                raise ArgumentError(f"argument {number} of this kernel is on {argument.device}, but the others are on cuda:{self._index}")
        return readable(self._unit, arguments)


class EmulatedLauncher:
    """A kernel that the CPU emulates."""

    def __init__(self, unit: GpuKernel) -> None:
        self._unit = unit
        self._kernel = EmulatedHipKernel(unit.code)
        self._flush = TARGETS[unit.code.arch].flushes_subnormals

    def __call__(self, arguments: Sequence[Any], outputs: range) -> Collection[int]:
        arguments, copied = readable(self._unit, arguments)
        grid, blocks = launch_grid(self._unit.code, self._unit.kernel, arguments)
        self._kernel.run(arguments, outputs, grid, blocks, flush=self._flush)
        return copied


class InterpretedLauncher:
    """A kernel whose machine code the CPU interprets."""

    def __init__(self, unit: GpuKernel, binary: HipBinary) -> None:
        self._unit = unit
        self.machine = IsaMachine(unit.code, binary.code, TARGETS[unit.code.arch].flushes_subnormals)

    def __call__(self, arguments: Sequence[Any], outputs: range) -> Collection[int]:
        arguments, copied = readable(self._unit, arguments)
        grid, blocks = launch_grid(self._unit.code, self._unit.kernel, arguments)
        self.machine.run(arguments, outputs, grid, blocks)
        return copied


def readable(unit: GpuKernel, arguments: Sequence[Any]) -> tuple[list[Any], Collection[int]]:
    """The arguments, copies of those that the kernel cannot read where they are, and the numbers of these."""
    made = list(arguments)
    asked = {p.argument: p.align for p in unit.code.parameters if p.kind == "pointer" and p.align}
    copied = set(misaligned(unit.code, arguments)) | {number for number in asked if not _has_short_offsets(arguments[number])}
    for number in copied:
        made[number] = aligned_copy(made[number], asked[number])
    return made, copied


def _has_short_offsets(tensor: torch.Tensor | Ragged) -> bool:
    """Whether the rows of [B, H, S, D] lie apart, and offsets inside of a block of rows fit into 32 bits."""
    if tensor.dim() != 4 or tensor.shape[2] <= 1:
        return True
    stride = tensor.stride(2)
    return stride >= tensor.shape[3] and stride * tensor.element_size() < ROW_BYTES
