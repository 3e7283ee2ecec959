"""Scalar ops of tile IR as TileLang expressions.

`index` and i64 are int32 where their bounds allow it, else int64. Loads and tile elements are read by a function that the printer of
the program gives.
"""

import math
from collections.abc import Callable

from attn_mlir.backends.gpu.scalar_bounds import IntegerRanges, fits_int
from attn_mlir.backends.nvidia.tilelang.names import TilelangNames, hint, role
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import is_constant

Read = Callable[[ir.Operation, list[str]], str]

FLOATS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
_BINARY = {
    "arith.addf": "+", "arith.subf": "-", "arith.mulf": "*", "arith.divf": "/",
    "arith.addi": "+", "arith.subi": "-", "arith.muli": "*", "arith.floordivsi": "//",
    "arith.andi": "&", "arith.ori": "|", "arith.xori": "^", "arith.shli": "<<", "arith.shrsi": ">>",
}  # fmt: skip
_LOGICAL = {"arith.andi": "and", "arith.ori": "or", "arith.xori": "!="}
_CALLS = {
    "arith.maximumf": "T.max", "arith.minimumf": "T.min", "arith.maxnumf": "T.max", "arith.minnumf": "T.min",
    "arith.maxsi": "T.max", "arith.minsi": "T.min", "arith.remf": "T.fmod",
    "arith.divsi": "T.truncdiv", "arith.remsi": "T.truncmod", "arith.ceildivsi": "T.ceildiv",
    "math.exp": "T.exp", "math.exp2": "T.exp2", "math.log": "T.log", "math.log2": "T.log2", "math.log10": "T.log10",
    "math.log1p": "T.log1p", "math.sqrt": "T.sqrt", "math.rsqrt": "T.rsqrt", "math.absf": "T.abs", "math.absi": "T.abs",
    "math.sin": "T.sin", "math.cos": "T.cos", "math.tan": "T.tan", "math.tanh": "T.tanh", "math.erf": "T.erf",
    "math.sinh": "T.sinh", "math.cosh": "T.cosh", "math.asin": "T.asin", "math.acos": "T.acos", "math.atan": "T.atan",
    "math.atan2": "T.atan2", "math.floor": "T.floor", "math.ceil": "T.ceil", "math.trunc": "T.trunc", "math.round": "T.round",
    "math.roundeven": "T.nearbyint", "math.copysign": "T.copysign", "math.powf": "T.pow",
    "math.isnan": "T.isnan", "math.isinf": "T.isinf", "math.isfinite": "T.isfinite",
}  # fmt: skip
_UNSIGNED = {"arith.minui": "T.min", "arith.maxui": "T.max", "arith.divui": "T.truncdiv", "arith.remui": "T.truncmod"}
"""Of numbers that are not negative these are what the signed ops are."""
_LIBRARY = {"math.expm1": "expm1f", "math.cbrt": "cbrtf", "math.erfc": "erfcf"}
_CASTS = ("arith.extf", "arith.truncf", "arith.sitofp", "arith.uitofp", "arith.fptosi", "arith.fptoui", "arith.extsi", "arith.extui",
          "arith.trunci", "arith.index_cast", "arith.index_castui")  # fmt: skip
_COMPARE = ("==", "!=", "<", "<=", ">", ">=")
_ORDERED = {1: "==", 2: ">", 3: ">=", 4: "<", 5: "<=", 13: "!="}
_UNORDERED = {9: "<=", 10: "<", 11: ">=", 12: ">"}

ACCURATE = ("math.sin", "math.cos", "math.tan", "math.tanh", "math.powf")
"""Functions whose approximations under `-use_fast_math` are too coarse for scores."""
_LONGEST = 72


def strip(text: str) -> str:
    """Without parentheses around the whole."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[1:-1] if position == len(text) - 1 else text
    return text


def number(value: float, type_: ir.Type) -> str:
    """A constant of a float type."""
    dtype = FLOATS.get(str(type_))
    if dtype is None:
        raise UnsupportedError(f"tilelang: no numbers of type {type_}; use f16, bf16 or f32")
    if math.isnan(value):
        return f'T.cast(T.float32(float("nan")), "{dtype}")' if dtype != "float32" else 'T.float32(float("nan"))'
    if math.isinf(value):
        text = f'T.infinity("{dtype}")'
        return f"(-{text})" if value < 0 else text
    return repr(value) if dtype == "float32" else f"T.{dtype}({value!r})"


class Expressions:
    """Prints values of one block of scalar ops; what is used again gets a name.

    `variables` makes names of mutable variables, which CUDA computes where they stand; otherwise they are bindings of TIR.
    """

    def __init__(
        self, ranges: IntegerRanges, names: TilelangNames, read: Read, lines: list[str], indent: str, variables: bool = False
    ) -> None:
        self._ranges, self._names, self._read, self._lines, self._indent = ranges, names, read, lines, indent
        self._variables = variables
        self._known: dict[ir.Value, str] = {}

    def inside(self, read: Read, lines: list[str], indent: str, variables: bool = False) -> "Expressions":
        """A printer for a region within, which knows what this one does."""
        inner = Expressions(self._ranges, self._names, read, lines, indent, variables)
        inner._known.update(self._known)
        return inner

    def bind(self, value: ir.Value, text: str) -> None:
        """Makes `text` stand for `value`."""
        self._known[value] = text

    def dtype(self, type_: ir.Type, value: ir.Value | None = None) -> str:
        """TileLang's name of a type; that of an integer depends on what `value` can be."""
        if isinstance(type_, ir.IndexType) or str(type_) == "i64":
            return "int64" if value is not None and not fits_int(self._ranges.of(value)) else "int32"
        if isinstance(type_, ir.IntegerType):
            return "bool" if type_.width == 1 else f"int{type_.width}"
        if str(type_) not in FLOATS:
            raise UnsupportedError(f"tilelang: no scalars of type {type_}; use f32, or f16 and bf16 in memory")
        return FLOATS[str(type_)]

    def emit(self, value: ir.Value, named: bool = False) -> str:
        """The text of a value; with `named` (or where it is long, or used several times) lines that compute it come first."""
        if value not in self._known:
            if isinstance(value.owner, ir.Block):
                raise UnsupportedError(f"tilelang: {value} has no value here")
            op = value.owner.operation
            if op.name == "arith.constant":
                return self._constant(op)
            operands = [self.emit(operand) for operand in op.operands if not isinstance(operand.type, (ir.MemRefType, ir.RankedTensorType))]
            text = self._narrow(op, self._text(op, operands))
            again = named or len(list(value.uses)) > 1 or len(text) > _LONGEST
            self._known[value] = self._name(value, text) if again and not text.isidentifier() else text
        return self._known[value]

    def name(self, value: ir.Value) -> str:
        """A name for a value's text, so that it is computed here, once."""
        text = self.emit(value, named=True)
        if not text.isidentifier():
            text = self._known[value] = self._name(value, text)
        return text

    def _name(self, value: ir.Value, text: str) -> str:
        name, text = self._names.new(hint(value) or role(value) or "x"), strip(text)
        if self._variables:
            text = f'T.alloc_var("{self.dtype(value.type, value)}", init={text})'
        self._lines.append(f"{self._indent}{name} = {text}")
        return name

    def _constant(self, op: ir.Operation) -> str:
        attribute, type_ = op.attributes["value"], op.results[0].type
        if isinstance(attribute, ir.FloatAttr):
            return number(attribute.value, type_)
        value = ir.IntegerAttr(attribute).value
        if str(type_) == "i1":
            return "True" if value else "False"
        return str(value) if fits_int((value, value)) else f"T.int64({value})"

    def _text(self, op: ir.Operation, args: list[str]) -> str:
        name, result = op.name, op.results[0]
        if name in ("memref.load", "tensor.extract"):
            return self._read(op, args)
        if str(result.type) == "i1" and name in _LOGICAL:
            return f"(not {args[0]})" if name == "arith.xori" and args[1] == "True" else f"({args[0]} {_LOGICAL[name]} {args[1]})"
        if name in _BINARY:
            return self._binary(op, args)
        if name in _CALLS:
            return f"{_CALLS[name]}({', '.join(strip(a) for a in self._widen(op, args))})"
        if name in _LIBRARY:
            return f'T.call_pure_extern("float32", "{_LIBRARY[name]}", {args[0]})'
        if name in _CASTS:
            return self._cast(op, args[0])
        match name:
            case _ if name in _UNSIGNED and all((self._ranges.of(operand) or (-1, 0))[0] >= 0 for operand in op.operands):
                return f"{_UNSIGNED[name]}({', '.join(strip(a) for a in self._widen(op, args))})"
            case "arith.negf":
                return f"(-{args[0]})"
            case "arith.select":
                return f"T.if_then_else({strip(args[0])}, {', '.join(strip(a) for a in self._widen(op, args[1:], 1))})"
            case "arith.cmpi":
                return self._compare(op, args)
            case "arith.cmpf":
                return self._compare_floats(op, args)
            case "math.fma":
                return f"({args[0]} * {args[1]} + {args[2]})"
            case "math.fpowi":
                return f'T.pow({strip(args[0])}, T.cast({strip(args[1])}, "float32"))'
        raise UnsupportedError(f"tilelang: no expression for '{name}' ({source_line(op.location)}); use another emitter or the CPU")

    def _binary(self, op: ir.Operation, args: list[str]) -> str:
        a, b = self._widen(op, args)
        if op.name in ("arith.shli", "arith.shrsi") and self._is_whole(op.results[0]) and self._ranges.of(op.operands[1])[1] >= 32:
            a = f'T.cast({strip(a)}, "int64")'  # 32 bits are not shifted that far
        if all(is_constant(operand) for operand in op.operands):  # Python must not compute it
            a = f"T.{self.dtype(op.results[0].type, op.results[0])}({a})"
        return f"({a} {_BINARY[op.name]} {b})"

    def _narrow(self, op: ir.Operation, text: str) -> str:
        """The text of arithmetic in 32 bits where the result fits and an operand did not."""
        if not op.name.startswith("arith.") or op.name in _CASTS or not self._is_whole(op.results[0]):
            return text
        wide = any(self._is_whole(operand) and self.dtype(operand.type, operand) == "int64" for operand in op.operands)
        return f'T.cast({strip(text)}, "int32")' if wide and self.dtype(op.results[0].type, op.results[0]) == "int32" else text

    @staticmethod
    def _is_whole(value: ir.Value) -> bool:
        """Whether it is an integer that is kept in 32 bits where it fits."""
        return isinstance(value.type, ir.IndexType) or str(value.type) == "i64"

    def _widen(self, op: ir.Operation, args: list[str], first: int = 0) -> list[str]:
        """Operands in 64 bits where the result needs them and they have 32."""
        result = op.results[0]
        if not isinstance(result.type, ir.IndexType) and str(result.type) != "i64":
            return args
        if self.dtype(result.type, result) == "int32":
            return args
        operands = list(op.operands)[first:]
        narrow = [self.dtype(operand.type, operand) == "int32" for operand in operands]
        return [f'T.cast({strip(a)}, "int64")' if short else a for a, short in zip(args, narrow, strict=True)]

    def _cast(self, op: ir.Operation, a: str) -> str:
        source, result = op.operands[0], op.results[0]
        before, after = self.dtype(source.type, source), self.dtype(result.type, result)
        unsigned = op.name in ("arith.extui", "arith.index_castui", "arith.uitofp")
        if unsigned and before not in ("bool", "int32", "int64"):
            a = f'T.cast({strip(a)}, "u{before}")'
        if str(source.type) == "i1" and not unsigned and op.name != "arith.trunci":
            return f'T.cast(T.if_then_else({strip(a)}, -1, 0), "{after}")'
        if op.name == "arith.trunci" and after == "bool":
            return f"({a} % 2 != 0)"
        return a if before == after else f'T.cast({strip(a)}, "{after}")'

    def _compare(self, op: ir.Operation, args: list[str]) -> str:
        predicate = ir.IntegerAttr(op.attributes["predicate"]).value
        if predicate < len(_COMPARE):
            return f"({args[0]} {_COMPARE[predicate]} {args[1]})"
        wide = str(op.operands[0].type) in ("index", "i64")
        dtype = "uint64" if wide else f"u{self.dtype(op.operands[0].type)}"
        a, b = (f'T.cast(T.cast({strip(x)}, "int64"), "{dtype}")' for x in args)
        return f"({a} {_COMPARE[predicate - 4]} {b})"

    def _compare_floats(self, op: ir.Operation, args: list[str]) -> str:
        predicate, (a, b) = ir.IntegerAttr(op.attributes["predicate"]).value, args
        if predicate in _ORDERED:
            return f"({a} {_ORDERED[predicate]} {b})"
        if predicate in _UNORDERED:
            return f"(not ({a} {_UNORDERED[predicate]} {b}))"
        match predicate:
            case 0 | 15:
                return "True" if predicate == 15 else "False"
            case 6:
                return f"({a} < {b} or {a} > {b})"
            case 8:
                return f"(not ({a} < {b} or {a} > {b}))"
            case 7:
                return f"({a} == {a} and {b} == {b})"
            case _:
                return f"({a} != {a} or {b} != {b})"
