"""Arguments of a kernel's tile function as values of the parameters of its code, but for descriptors of tensors."""

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir.backends.allocation import empty
from attn_mlir.backends.gpu.kernel import KernelCode, KernelParameter
from attn_mlir.backends.gpu.packed import Ragged, extents_of
from attn_mlir.backends.host import KernelGrid
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError

FORMATS = {"int": "i", "unsigned": "I", "long long": "q", "float": "f", "double": "d"}
"""Of `struct`, for the C types of what kernels take by value."""
_GRID_LIMIT = 65535

Value = tuple[str, Any]
"""A format of `struct`, and a number."""


def grid_of(code: KernelCode, block_rows: int, over: Sequence[int]) -> tuple[tuple[int, int, int], int]:
    """The grid of a kernel over tiles, in thread blocks, and how many blocks of rows it has; `over` are sizes [B, H, S, ...].

    A cluster of thread blocks runs a tile together.
    Raises UnsupportedError where it is too large for a launch.
    """
    if code.grid != "tiles":
        raise CompileError(f"the kernel {code.name} has a grid of the kind '{code.grid}'")
    batch, heads, length = over[:3]
    if heads > _GRID_LIMIT or batch > _GRID_LIMIT:
        raise UnsupportedError(
            f"a batch of {batch} with {heads} heads does not fit into one launch on a GPU, whose limit is {_GRID_LIMIT} of each: "
            "call it for parts of the batch"
        )
    blocks = -(-length // block_rows)
    return (blocks * code.cluster, heads, batch), blocks


def launch_grid(code: KernelCode, kernel: KernelGrid, arguments: Sequence[Any]) -> tuple[tuple[int, int, int], int]:
    """The grid of a kernel's launch on these arguments, and how many blocks of rows (of a scan: of columns) it has.

    Raises UnsupportedError where it is too large for a launch.
    """
    over = extents_of(kernel, arguments)
    if kernel.grid != "chunks":
        return grid_of(code, kernel.block_q, over)
    (_, heads, batch), _ = grid_of(code, 1, (kernel.sequences_of(arguments), over[1], 1))
    return (kernel.blocks, heads, batch), kernel.blocks


def values_of(code: KernelCode, arguments: Sequence[Any], blocks: int, counter: int = 0) -> list[Value]:
    """The parameters' values, in their order; `counter` is the address of an int32 zero. Raises ArgumentError for too large numbers."""
    return [value_of(parameter, arguments, blocks, counter) for parameter in code.parameters]


def value_of(parameter: KernelParameter, arguments: Sequence[Any], blocks: int, counter: int) -> Value:
    """One parameter's value."""
    form = FORMATS.get(parameter.type, "")
    match parameter.kind:
        case "pointer":
            return "Q", arguments[parameter.argument].data_ptr()
        case "counter":
            return "Q", counter
        case "blocks":
            return form, blocks
        case "size":
            return form, fitting(arguments[parameter.argument].shape[parameter.dim], form)
        case "stride":
            return form, fitting(arguments[parameter.argument].stride(parameter.dim), form)
        case "bytes":
            return f"{len(arguments[parameter.argument])}s", bytes(arguments[parameter.argument])
        case "scalar":
            return form, fitting(arguments[parameter.argument], form)
    raise CompileError(f"parameters of the kind '{parameter.kind}' have no value here")


def fitting(number: Any, form: str) -> Any:
    """The number as the format of `struct` takes it. Raises ArgumentError when it is too large."""
    if form in "fd":
        return float(number)
    bits = 31 if form == "i" else 63
    if not -(2**bits) <= number < 2**bits:
        raise ArgumentError(f"the number {number} must fit into {bits + 1} bits: a captured integer or a stride of a tensor is too large")
    return int(number)


class PackedArguments:
    """Values of parameters in memory: one after another as in a kernel's argument segment, and an array of pointers to them."""

    __slots__ = ("_buffer", "_pointers", "address", "size")

    def __init__(self, values: Sequence[Value]) -> None:
        offsets, end = [], 0
        for form, _ in values:
            size = struct.calcsize(form)
            end += -end % size
            offsets.append(end)
            end += size
        self.size = end
        self._buffer = ctypes.create_string_buffer(max(1, end))
        for offset, (form, value) in zip(offsets, values, strict=True):
            struct.pack_into(form, self._buffer, offset, value)
        start = ctypes.addressof(self._buffer)
        self._pointers = (ctypes.c_void_p * max(1, len(values)))(*[start + offset for offset in offsets])
        self.address = ctypes.addressof(self._pointers)
        """That of the array of pointers."""

    def segment(self) -> bytes:
        """The bytes of all values."""
        return self._buffer.raw[: self.size]


def misaligned(code: KernelCode, arguments: Sequence[Any]) -> list[int]:
    """Arguments whose columns are not dense, or whose address or other strides are no multiples of what the kernel's pointers ask for."""
    asked = {p.argument: p.align for p in code.parameters if p.kind == "pointer" and p.align}
    return [number for number, elements in asked.items() if not is_aligned(arguments[number], elements)]


def is_aligned(tensor: torch.Tensor | Ragged, elements: int) -> bool:
    """Whether columns are dense, and the address and the other strides multiples of so many elements."""
    *strides, last = tensor.stride()
    *extents, columns = tensor.shape
    if (last != 1 and columns != 1) or tensor.data_ptr() % (elements * tensor.element_size()):
        return False
    return all(extent == 1 or stride % elements == 0 for extent, stride in zip(extents, strides, strict=True))


def aligned_empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device, elements: int) -> torch.Tensor:
    """A new tensor whose rows begin at multiples of so many elements."""
    columns = shape[-1]
    return empty((*shape[:-1], columns + -columns % elements), dtype=dtype, device=device)[..., :columns]


def aligned_copy(tensor: Any, elements: int) -> Any:
    """A copy of that kind; of a ragged view, one of the copied tensor."""
    if isinstance(tensor, Ragged):
        return Ragged(aligned_copy(tensor.memory, elements))
    return aligned_empty(tensor.shape, tensor.dtype, tensor.device, elements).copy_(tensor)
