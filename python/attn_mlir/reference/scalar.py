"""Rules of the scalar ops: op name -> function on numpy arrays of any broadcastable shapes.

Floats are float64 whatever their type says, i1 is bool, every other integer an int64 wrapped to its width.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from attn_mlir.dialects.elements import element_of
from attn_mlir.float_values import FUNCTIONS, compare
from attn_mlir.float_values import rounded as rounded_to
from attn_mlir.mlir import ir

Array = np.ndarray
Rule = Callable[..., Any]

_erfc = np.vectorize(math.erfc, otypes=[np.float64])
_INT64 = np.dtype(np.int64)
_STORED = {8: np.int8, 16: np.int16, 32: np.int32}


def element_type(type_: ir.Type) -> ir.Type:
    """The scalar type of a scalar, tensor, vector or memref type."""
    return type_.element_type if isinstance(type_, ir.ShapedType) else type_


def width(type_: ir.Type) -> int:
    """The number of bits of an integer or index (or tile of those)."""
    scalar = element_type(type_)
    return scalar.width if isinstance(scalar, ir.IntegerType) else 64


def wrap(value: Any, type_: ir.Type) -> Array:
    """`value` as the integer type stores it: bool for i1, else two's complement in an int64."""
    bits = width(type_)
    if bits == 1:
        return (np.asarray(value).astype(np.int64) & 1).astype(bool)
    integers = np.asarray(value).astype(np.int64, copy=False)
    if bits == 64:
        return integers
    if bits in _STORED:  # a cast of integers keeps the low bits
        return integers.astype(_STORED[bits]).astype(np.int64)
    low = integers & ((1 << bits) - 1)
    return np.where(low >> (bits - 1), low - (1 << bits), low)


def unsigned(value: Array, type_: ir.Type) -> Array:
    """The bits of an integer read without sign, as uint64."""
    mask = np.uint64((1 << width(type_)) - 1)
    return np.asarray(value).astype(np.int64).astype(np.uint64) & mask


def round_to(value: Array, type_: ir.Type) -> Array:
    """`value` rounded to the nearest number of the float type, still as float64."""
    scalar = element_type(type_)
    if isinstance(scalar, ir.F16Type):
        return np.asarray(value).astype(np.float16).astype(np.float64)
    if isinstance(scalar, ir.F32Type):
        return np.asarray(value).astype(np.float32).astype(np.float64)
    if isinstance(scalar, ir.BF16Type):
        bits = np.ascontiguousarray(value, dtype=np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(value), np.nan, rounded.view(np.float32).reshape(np.shape(value)).astype(np.float64))
    element = element_of(scalar)
    return rounded_to(value, element) if element is not None and element.is_eight_bit else np.asarray(value)


_SIGNED: tuple[Rule, ...] = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)


def _cmpf(op: ir.Operation, a: Array, b: Array) -> Array:
    return compare(op.attributes["predicate"].value, a, b)


def _cmpi(op: ir.Operation, a: Array, b: Array) -> Array:
    predicate = op.attributes["predicate"].value
    type_ = op.operands[0].type
    if predicate < 6:  # a true i1 is -1 when it is compared with its sign
        sign = -1 if width(type_) == 1 else 1
        return _SIGNED[predicate](sign * a.astype(np.int64), sign * b.astype(np.int64))
    return _SIGNED[predicate - 4](unsigned(a, type_), unsigned(b, type_))


def _integer(function: Rule) -> Rule:
    """A rule on int64 whose result wraps to the op's type."""

    def rule(op: ir.Operation, *args: Array) -> Array:
        return wrap(function(*(a.astype(np.int64, copy=False) for a in args)), op.results[0].type)

    return rule


def _natural(function: Rule) -> Rule:
    """A rule on integers read without sign."""

    def rule(op: ir.Operation, *args: Array) -> Array:
        return wrap(function(*(unsigned(a, v.type) for a, v in zip(args, op.operands, strict=True))), op.results[0].type)

    return rule


def _plain(function: Rule) -> Rule:
    return lambda op, *args: function(*args)


def _truncating_division(a: Array, b: Array) -> Array:
    return (a - np.fmod(a, b)) // b


def _to_integer(op: ir.Operation, a: Array) -> Array:
    return wrap(np.trunc(a), op.results[0].type)


def _natural_to_float(op: ir.Operation, a: Array) -> Array:
    return unsigned(a, op.operands[0].type).astype(np.float64)


def _signed_to_float(op: ir.Operation, a: Array) -> Array:
    sign = -1.0 if width(op.operands[0].type) == 1 else 1.0
    return sign * a.astype(np.float64)


def _sign_extend(op: ir.Operation, a: Array) -> Array:
    return wrap(-a.astype(np.int64) if width(op.operands[0].type) == 1 else a, op.results[0].type)


def _constant(op: ir.Operation) -> Array:
    attribute = op.attributes["value"]
    type_ = op.results[0].type
    if isinstance(attribute, ir.DenseElementsAttr):
        data = np.asarray(attribute.get_splat_value().value if attribute.is_splat else np.array(attribute))
        data = np.broadcast_to(data, type_.shape)
    else:
        data = np.asarray(attribute.value)
    integral = isinstance(element_type(type_), (ir.IntegerType, ir.IndexType))
    return wrap(data, type_) if integral else data.astype(np.float64)


def _bitcast_free(op: ir.Operation, a: Array) -> Array:
    return a


_FLOATS: dict[str, Rule] = {
    **FUNCTIONS,
    "math.log10": np.log10,
    "math.cbrt": np.cbrt,
    "math.asin": np.arcsin,
    "math.acos": np.arccos,
    "math.erfc": _erfc,
    "math.fpowi": np.power,
    "math.isnan": np.isnan,
    "math.isinf": np.isinf,
    "math.isfinite": np.isfinite,
    "attn.detach": lambda a: a,
    "attn.slope": lambda a, _: np.zeros_like(a),
}
_INTEGERS: dict[str, Rule] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.floordivsi": np.floor_divide,
    "arith.ceildivsi": lambda a, b: -np.floor_divide(-a, b),
    "arith.divsi": _truncating_division,
    "arith.remsi": np.fmod,
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift,
    "arith.trunci": lambda a: a,
    "arith.index_cast": lambda a: a,
    "math.absi": np.abs,
}
_NATURALS: dict[str, Rule] = {
    "arith.divui": np.floor_divide,
    "arith.ceildivui": lambda a, b: (a + b - np.uint64(1)) // b,
    "arith.remui": np.remainder,
    "arith.minui": np.minimum,
    "arith.maxui": np.maximum,
    "arith.shrui": np.right_shift,
    "arith.extui": lambda a: a,
    "arith.index_castui": lambda a: a,
}

SCALARS: dict[str, Rule] = {
    **{name: _plain(function) for name, function in _FLOATS.items()},
    **{name: _integer(function) for name, function in _INTEGERS.items()},
    **{name: _natural(function) for name, function in _NATURALS.items()},
    "arith.constant": _constant,
    "arith.cmpf": _cmpf,
    "arith.cmpi": _cmpi,
    "arith.extsi": _sign_extend,
    "arith.sitofp": _signed_to_float,
    "arith.uitofp": _natural_to_float,
    "arith.fptosi": _to_integer,
    "arith.fptoui": _to_integer,
    "arith.extf": _bitcast_free,
    "arith.truncf": _bitcast_free,
}


def bound(op: ir.Operation) -> Rule | None:
    """The rule of this op as a function of its operands alone, which asks nothing of the op; None where it has none."""
    name = op.name
    if name in _FLOATS:
        return _FLOATS[name]
    if name in _INTEGERS and width(op.results[0].type) == 64:
        return _whole(_INTEGERS[name])
    if name == "arith.cmpi" and width(op.operands[0].type) != 1 and op.attributes["predicate"].value < 6:
        return _whole(_SIGNED[op.attributes["predicate"].value])
    if name == "arith.cmpf":
        return functools.partial(compare, op.attributes["predicate"].value)
    rule = SCALARS.get(name)
    return None if rule is None else functools.partial(rule, op)


def _whole(function: Rule) -> Rule:
    """A function of int64 whose results are not wrapped."""

    def rule(*args: Array) -> Array:
        return function(*(a if a.dtype is _INT64 else a.astype(np.int64) for a in args))

    return rule
