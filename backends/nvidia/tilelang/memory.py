"""The parameters of a TileLang program: tensors as pointers, with their sizes and strides as integers, and numbers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attn_mlir.backends.gpu.kernel import KernelParameter
from attn_mlir.backends.gpu.scalar_bounds import IntegerRanges, fits_int
from attn_mlir.backends.nvidia.tilelang.expressions import FLOATS
from attn_mlir.backends.nvidia.tilelang.names import TilelangNames, hint
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

VECTOR = 16
"""Bytes that loads and stores of tiles may take at a time."""
_INTEGERS = {1: "bool", 8: "int8", 16: "int16", 32: "int32", 64: "int64"}
_BITS = {"float16": 16, "bfloat16": 16, "float32": 32}


def memory_type(type_: ir.Type) -> str:
    """TileLang's name of an element type in memory."""
    name = _INTEGERS.get(type_.width) if isinstance(type_, ir.IntegerType) else FLOATS.get(str(type_))
    if name is None:
        raise UnsupportedError(f"tilelang: no tensors of {type_}; use f16, bf16, f32, bool or integers, or the CPU for f64")
    return name


def is_head(type_: ir.MemRefType) -> bool:
    """Whether a tensor's columns are static, as in q, k, v and o: tiles are read and written in vectors along them."""
    return type_.rank >= 4 and type_.shape[-1] != ir.ShapedType.get_dynamic_size()


def alignment(type_: ir.MemRefType) -> int:
    """What all strides but the last (which is 1) are multiples of, in elements, as they are in a dense tensor; 0 for any strides."""
    if not is_head(type_):
        return 0
    return math.gcd(type_.shape[-1], VECTOR * 8 // _BITS[memory_type(type_.element_type)])


@dataclass(frozen=True)
class _View:
    """A part of an argument: what is added to each of its indices, and its dimensions that the view has."""

    source: ir.Value
    offsets: tuple[str, ...]
    dims: tuple[int, ...]


class TileLangMemory:
    """The arguments of one kernel, as parameters and as tensors of the program."""

    def __init__(self, kernel: ir.Operation, names: TilelangNames, ranges: IntegerRanges) -> None:
        self._ranges = ranges
        self.parameters: dict[str, KernelParameter] = {}
        self._declared: list[str] = []
        self.tensors: list[str] = []
        self._names: dict[ir.Value, str] = {}
        self._sizes: dict[ir.Value, list[str]] = {}
        self._views: dict[ir.Value, _View] = {}
        later: list[tuple[str, KernelParameter, str]] = []
        for position, argument in enumerate(kernel.regions[0].blocks[0].arguments):
            wanted = hint(argument) or f"arg{position}"
            name = self._names[argument] = names.new(wanted)
            if isinstance(argument.type, ir.MemRefType):
                later += self._tensor(argument, position, name, names)
            else:
                self._number(argument, position, name)
        for name, parameter, dtype in later:
            self._declare(name, parameter, dtype)

    def _declare(self, name: str, parameter: KernelParameter, dtype: str) -> None:
        self.parameters[name] = parameter
        self._declared.append(f"{name}: T.{dtype}")

    def _number(self, argument: ir.Value, position: int, name: str) -> None:
        if isinstance(argument.type, ir.IndexType):
            type_, dtype = ("int", "int32") if fits_int(self._ranges.of(argument)) else ("long long", "int64")
        elif str(argument.type) == "f32":
            type_, dtype = "float", "float32"
        else:
            raise UnsupportedError(f"tilelang: no arguments of type {argument.type}; use f32 or integers, or the CPU for f64")
        self._declare(name, KernelParameter("scalar", position, type=type_), dtype)

    def _tensor(self, argument: ir.Value, position: int, name: str, names: TilelangNames) -> list[tuple[str, KernelParameter, str]]:
        type_ = ir.MemRefType(argument.type)
        if isinstance(type_.element_type, ir.F64Type):
            raise UnsupportedError("tilelang: no tensors of f64; use f16, bf16, f32, bool or integers, or the CPU for f64")
        dtype, aligned = memory_type(type_.element_type), alignment(type_)
        pointer = names.new(f"{name}_ptr")
        # The parameter of the CUDA function has the name of the tensor.
        self.parameters[name] = KernelParameter("pointer", position, align=aligned)
        self._declared.append(f"{pointer}: T.ptr")
        if type_.rank == 0:
            self.tensors.append(f'{name} = T.make_tensor({pointer}, (1,), "{dtype}")')
            return []
        of_sizes: list[tuple[str, KernelParameter, str]] = []
        of_strides: list[tuple[str, KernelParameter, str]] = []
        sizes, strides = [], []
        for dim, size in enumerate(type_.shape):
            if size == ir.ShapedType.get_dynamic_size():
                sizes.append(names.new(f"{name}_size{dim}"))
                of_sizes.append((sizes[-1], KernelParameter("size", position, dim, "int"), "int32"))
            else:
                sizes.append(str(size))
            if is_head(type_) and dim == type_.rank - 1:
                strides.append("1")
                continue
            stride = names.new(f"{name}_stride{dim}")
            of_strides.append((stride, KernelParameter("stride", position, dim, "long long"), "int64"))
            strides.append(f"{stride} // {aligned} * {aligned}" if aligned > 1 else stride)
        comma = "," if type_.rank == 1 else ""
        shape, steps = ", ".join(sizes) + comma, ", ".join(strides) + comma
        self.tensors.append(f'{name} = T.make_tensor({pointer}, ({shape}), "{dtype}", ({steps}))')
        self._sizes[argument] = sizes
        return of_sizes + of_strides

    def signature(self) -> list[str]:
        """The parameters' declarations."""
        return self._declared

    def view(self, op: ir.Operation, text: Callable[[ir.Value], str]) -> None:
        """A `memref.subview` of an argument, or of another view; `text` prints offsets and sizes."""
        source, *dynamic = op.operands
        parts: dict[str, list[str]] = {}
        for name in ("static_offsets", "static_sizes", "static_strides"):
            given = list(ir.DenseI64ArrayAttr(op.attributes[name]))
            parts[name] = [text(dynamic.pop(0)) if ir.ShapedType.is_dynamic_size(n) else str(n) for n in given]
        rank, sizes = ir.MemRefType(op.results[0].type).rank, parts["static_sizes"]
        if any(stride != "1" for stride in parts["static_strides"]):
            raise UnsupportedError(f"tilelang: a view with steps ({op.location})")
        dropped = [dim for dim, size in enumerate(sizes) if size == "1"][: len(sizes) - rank]
        dims = [dim for dim in range(len(sizes)) if dim not in dropped]
        root = self._views.get(source, _View(source, ("0",) * len(sizes), tuple(range(len(sizes)))))
        offsets = list(root.offsets)
        for dim, offset in zip(root.dims, parts["static_offsets"], strict=True):
            offsets[dim] = _plus(offsets[dim], offset)
        self._views[op.results[0]] = _View(root.source, tuple(offsets), tuple(root.dims[dim] for dim in dims))
        self._sizes[op.results[0]] = [sizes[dim] for dim in dims]

    def element(self, tensor: ir.Value, indices: Sequence[str]) -> str:
        """The text of an element of an argument or view, or of a region of it: indices may be ranges `a : b`."""
        view = self._views.get(tensor)
        if view is None:
            return f"{self._names[tensor]}[{', '.join(indices) or '0'}]"
        all_indices = list(view.offsets)
        for dim, index in zip(view.dims, indices, strict=True):
            all_indices[dim] = " : ".join(_plus(all_indices[dim], part.strip()) for part in index.split(":"))
        return f"{self._names[view.source]}[{', '.join(all_indices)}]"

    def name(self, argument: ir.Value) -> str:
        """The tensor, or number, that an argument is; of a view, that of which it is a part."""
        view = self._views.get(argument)
        return self._names[argument if view is None else view.source]

    def size(self, argument: ir.Value, dim: int) -> str:
        """The size of a tensor's dimension."""
        return self._sizes[argument][dim]


def _plus(a: str, b: str) -> str:
    """The text of a sum."""
    if "0" in (a, b):
        return b if a == "0" else a
    return f"{a} + {b}"
