"""The parameters of a TileLang program: tensors as pointers, with their sizes and strides as integers, and numbers."""

import math

from attn_mlir.backends.gpu.kernel import Parameter
from attn_mlir.backends.gpu.scalar_bounds import Ranges, fits_int
from attn_mlir.backends.nvidia.tilelang.expressions import FLOATS
from attn_mlir.backends.nvidia.tilelang.names import Names, hint
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


class Memory:
    """The arguments of one kernel, as parameters and as tensors of the program."""

    def __init__(self, kernel: ir.Operation, names: Names, ranges: Ranges) -> None:
        self._ranges = ranges
        self.parameters: dict[str, Parameter] = {}
        self._declared: list[str] = []
        self.tensors: list[str] = []
        self._names: dict[ir.Value, str] = {}
        self._sizes: dict[ir.Value, list[str]] = {}
        later: list[tuple[str, Parameter, str]] = []
        for position, argument in enumerate(kernel.regions[0].blocks[0].arguments):
            wanted = hint(argument) or f"arg{position}"
            name = self._names[argument] = names.new(wanted)
            if isinstance(argument.type, ir.MemRefType):
                later += self._tensor(argument, position, name, names)
            else:
                self._number(argument, position, name)
        for name, parameter, dtype in later:
            self._declare(name, parameter, dtype)

    def _declare(self, name: str, parameter: Parameter, dtype: str) -> None:
        self.parameters[name] = parameter
        self._declared.append(f"{name}: T.{dtype}")

    def _number(self, argument: ir.Value, position: int, name: str) -> None:
        if isinstance(argument.type, ir.IndexType):
            type_, dtype = ("int", "int32") if fits_int(self._ranges.of(argument)) else ("long long", "int64")
        elif str(argument.type) == "f32":
            type_, dtype = "float", "float32"
        else:
            raise UnsupportedError(f"tilelang: no arguments of type {argument.type}; use f32 or integers, or the CPU for f64")
        self._declare(name, Parameter("scalar", position, type=type_), dtype)

    def _tensor(self, argument: ir.Value, position: int, name: str, names: Names) -> list[tuple[str, Parameter, str]]:
        type_ = ir.MemRefType(argument.type)
        dtype, aligned = memory_type(type_.element_type), alignment(type_)
        pointer = names.new(f"{name}_ptr")
        # The parameter of the CUDA function has the name of the tensor.
        self.parameters[name] = Parameter("pointer", position, align=aligned)
        self._declared.append(f"{pointer}: T.ptr")
        if type_.rank == 0:
            self.tensors.append(f'{name} = T.make_tensor({pointer}, (1,), "{dtype}")')
            return []
        of_sizes: list[tuple[str, Parameter, str]] = []
        of_strides: list[tuple[str, Parameter, str]] = []
        sizes, strides = [], []
        for dim, size in enumerate(type_.shape):
            if size == ir.ShapedType.get_dynamic_size():
                sizes.append(names.new(f"{name}_size{dim}"))
                of_sizes.append((sizes[-1], Parameter("size", position, dim, "int"), "int32"))
            else:
                sizes.append(str(size))
            if is_head(type_) and dim == type_.rank - 1:
                strides.append("1")
                continue
            stride = names.new(f"{name}_stride{dim}")
            of_strides.append((stride, Parameter("stride", position, dim, "long long"), "int64"))
            strides.append(f"{stride} // {aligned} * {aligned}" if aligned > 1 else stride)
        comma = "," if type_.rank == 1 else ""
        shape, steps = ", ".join(sizes) + comma, ", ".join(strides) + comma
        self.tensors.append(f'{name} = T.make_tensor({pointer}, ({shape}), "{dtype}", ({steps}))')
        self._sizes[argument] = sizes
        return of_sizes + of_strides

    def signature(self) -> list[str]:
        """The parameters' declarations."""
        return self._declared

    def name(self, argument: ir.Value) -> str:
        """The tensor, or number, that an argument is."""
        return self._names[argument]

    def size(self, argument: ir.Value, dim: int) -> str:
        """The size of a tensor's dimension."""
        return self._sizes[argument][dim]
