"""Values of float ops: the numpy function of each, of which tracing folds constants, derivations are confirmed, and the evaluator runs."""

import math
from collections.abc import Callable

import numpy as np

from attn_mlir.dialects.elements import Element

Array = np.ndarray
_erf = np.vectorize(math.erf, otypes=[float])

FUNCTIONS: dict[str, Callable[..., Array]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "arith.negf": np.negative,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.select": np.where,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.expm1": np.expm1,
    "math.log": np.log,
    "math.log2": np.log2,
    "math.log1p": np.log1p,
    "math.sqrt": np.sqrt,
    "math.rsqrt": lambda x: 1.0 / np.sqrt(x),
    "math.absf": np.abs,
    "math.tanh": np.tanh,
    "math.sinh": np.sinh,
    "math.cosh": np.cosh,
    "math.tan": np.tan,
    "math.atan": np.arctan,
    "math.atan2": np.arctan2,
    "math.erf": _erf,
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.powf": np.power,
    "math.floor": np.floor,
    "math.ceil": np.ceil,
    "math.round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "math.roundeven": np.rint,
    "math.trunc": np.trunc,
    "math.fma": lambda x, y, z: x * y + z,
    "math.copysign": np.copysign,
}
"""By the names of ops. Arguments are arrays of floats, the condition of a select is one of booleans."""
_COMPARE: tuple[Callable[[Array, Array], Array], ...] = (np.equal, np.greater, np.greater_equal, np.less, np.less_equal, np.not_equal)


def compare(predicate: int, x: Array, y: Array) -> Array:
    """`arith.cmpf` with MLIR's predicate number."""
    if 0 < predicate < 6:  # numpy's comparisons are ordered, too
        return _COMPARE[predicate - 1](x, y)
    unordered = np.isnan(x) | np.isnan(y)
    if predicate in (0, 15):
        return np.full(unordered.shape, predicate == 15)
    if predicate in (7, 14):
        return unordered if predicate == 14 else ~unordered
    if predicate < 7:
        return _COMPARE[predicate - 1](x, y) & ~unordered
    return _COMPARE[predicate - 8](x, y) | unordered


def folded(op: str, *operands: float) -> float:
    """The value of an op of numbers. Raises ArithmeticError where there is none, or it is too large."""
    with np.errstate(all="raise", under="ignore"):
        return float(FUNCTIONS[op](*map(np.float64, operands)))


def rounded(values: Array, element: Element) -> Array:
    """Numbers rounded to the nearest ones of a type, ties to even, still float64; beyond its range infinite, or NaN without infinities."""
    values = np.asarray(values, dtype=np.float64)
    with np.errstate(all="ignore"):
        exponents = np.maximum(np.frexp(np.where(np.isfinite(values), values, 1.0))[1] - 1, 1 - element.bias)
        spacing = np.ldexp(1.0, exponents - element.mantissa)
        made = np.where(np.isfinite(values), np.rint(values / spacing) * spacing, values)
        beyond = np.copysign(np.inf, made) if element.special == "ieee" else np.nan
        made = np.where(np.abs(made) > element.largest, beyond, made)
    return made + 0.0 if element.special == "nuz" else made


def encoded(value: float, element: Element) -> int:
    """The byte of a number in a type of 8 bits."""
    number = float(rounded(np.asarray(value), element))
    sign = 0x80 if np.signbit(number) else 0
    if np.isnan(number):
        return 0x80 if element.special == "nuz" else 0x7F
    if np.isinf(number):
        return sign | (0x7F - (1 << element.mantissa) + 1)
    exponent = max(int(np.frexp(abs(number))[1]) - 1, 1 - element.bias) if number else 1 - element.bias
    digits = int(abs(number) / 2.0 ** (exponent - element.mantissa))
    return sign | (digits + ((exponent + element.bias - 1) << element.mantissa))


def decoded(element: Element) -> Array:
    """The numbers of all bytes of a type of 8 bits."""
    codes = np.arange(256)
    size, least = codes & 0x7F, 1 << element.mantissa
    exponent, digits = np.maximum(size >> element.mantissa, 1), size & (least - 1)
    numbers = np.ldexp(np.where(size < least, digits, digits + least).astype(np.float64), exponent - element.bias - element.mantissa)
    signed = np.where(codes & 0x80, -numbers, numbers)
    if element.special == "nuz":
        return np.where(codes == 0x80, np.nan, signed)
    beyond = np.where(digits, np.nan, np.copysign(np.inf, signed)) if element.special == "ieee" else np.nan
    return np.where(numbers > element.largest, beyond, signed)
