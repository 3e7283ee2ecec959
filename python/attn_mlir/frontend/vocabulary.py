"""The functions that can be used on traced values, under torch's names, composed of the primitives in `ops`."""

import math
from collections.abc import Callable
from typing import Any

from attn_mlir.dialects.fastmath import APPROXIMATE
from attn_mlir.frontend import ops, scope
from attn_mlir.frontend.values import Value, lift, value, wrap


def _unary(op: str, nonnegative: bool = False) -> Callable[[Any], Value]:
    return lambda x: wrap(ops.unary(op, lift(x), nonnegative))


exp = _unary("math.exp", True)
exp2 = _unary("math.exp2", True)
log = _unary("math.log")
log2 = _unary("math.log2")
sqrt = _unary("math.sqrt", True)
rsqrt = _unary("math.rsqrt", True)
tanh = _unary("math.tanh")
erf = _unary("math.erf")
sin = _unary("math.sin")
cos = _unary("math.cos")


def approximate_tanh(x: Any) -> Value:
    """tanh that a backend may replace by an instruction of the hardware with an absolute error of 2^-11."""
    return wrap(ops.unary("math.tanh", lift(x), attribute=APPROXIMATE))


def _rounding(op: str) -> Callable[[Any], Value]:
    return lambda x: x if isinstance(x, Value) and x._node.kind != "float" else wrap(ops.unary(op, lift(x)))


floor = _rounding("math.floor")
ceil = _rounding("math.ceil")


def trunc(x: Any) -> Value:
    return value(x) if lift(x).kind != "float" else wrap(ops.truncate(lift(x)))


def round_(x: Any, decimals: int = 0) -> Value:
    """Half to even, as in torch."""
    if decimals:
        raise scope.fail("round to a number of decimals", "write (x * 100).round() / 100")
    x = value(x)
    if x._node.kind != "float":
        return x
    low = floor(x)
    rest = x - low
    odd = low - 2.0 * floor(low * 0.5) == 1.0
    return where((rest > 0.5) | ((rest == 0.5) & odd), low + 1.0, low)


def log10(x: Any) -> Value:
    return log(x) * (1.0 / math.log(10.0))


def log1p(x: Any) -> Value:
    """Accurate for small `x`, by Kahan's correction of what 1 + x loses; a derivative does not see it."""
    x = value(x)
    u = 1.0 + x
    lost = where((u > 0.1) & (u < 1e30), log(u) * (x / (u - 1.0) - 1.0), 0.0)
    return log(u) + detach(where(u == 1.0, x, lost))


def expm1(x: Any) -> Value:
    """Accurate for small `x`, by Kahan's correction of what exp(x) - 1 loses; a derivative does not see it."""
    x = value(x)
    u = exp(x)
    difference = u - 1.0
    lost = where((difference > -1.0) & (u < 1e30), difference * (x / log(u) - 1.0), 0.0)
    return difference + detach(where(u == 1.0, x, lost))


def minus_abs(x: Value) -> Value:
    """-|x|, with the derivative 1 at 0: then what is even in it has the right one there."""
    return wrap(ops.extremum("min", lift(-x), lift(x), tie="second"))


def sigmoid(x: Any) -> Value:
    """1 / (1 + exp(-x)), which stays at 6e-39 below -88: an infinite exponential would make the derivative NaN."""
    return 1.0 / (1.0 + exp(wrap(ops.extremum("min", lift(-value(x)), lift(88.0)))))


def tan(x: Any) -> Value:
    return sin(x) / cos(x)


def sinh(x: Any) -> Value:
    """Accurate near 0, and as far as the result is finite, where exp(x) alone is not."""
    x = value(x)
    large = abs_(x) > 40.0
    small = where(large, 0.0, x)
    up, down = exp(0.5 * x), exp(-0.5 * x)
    return where(large, (0.5 * up) * up - (0.5 * down) * down, 0.5 * (expm1(small) - expm1(-small)))


def cosh(x: Any) -> Value:
    up, down = exp(0.5 * value(x)), exp(-0.5 * value(x))
    return (0.5 * up) * up + (0.5 * down) * down


def abs_(x: Any) -> Value:
    return abs(value(x))


def frac(x: Any) -> Value:
    x = value(x)
    if x._node.kind != "float":
        raise scope.fail("frac of an integer", "its fraction is 0; did you mean x.float().frac()?")
    return x - trunc(x)


def square(x: Any) -> Value:
    return value(x) * x


def reciprocal(x: Any) -> Value:
    return 1.0 / value(x)


def sign(x: Any) -> Value:
    x = value(x)
    one, zero = (1.0, 0.0) if x._node.kind == "float" else (1, 0)
    return where(x > zero, one, where(x < zero, -one, zero))


def isnan(x: Any) -> Value:
    x = value(x)
    return x != x


def isinf(x: Any) -> Value:
    return abs(value(x)) == math.inf


def isfinite(x: Any) -> Value:
    return abs(value(x)) < math.inf


def relu(x: Any, inplace: bool = False) -> Value:
    x = lift(x)
    return wrap(ops.extremum("max", x, lift(0 if x.kind == "int" else 0.0), tie="second"))


def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Value:
    """A clamp whose derivative at the bounds is 0, as in torch."""
    above = wrap(ops.extremum("max", lift(x), lift(min_val), tie="second"))
    return wrap(ops.extremum("min", lift(above), lift(max_val), tie="second"))


def maximum(a: Any, b: Any) -> Value:
    return wrap(ops.extremum("max", lift(a), lift(b)))


def minimum(a: Any, b: Any) -> Value:
    return wrap(ops.extremum("min", lift(a), lift(b)))


def where(condition: Any, a: Any = None, b: Any = None) -> Value:
    if a is None or b is None:
        raise scope.fail("torch.where with one argument", "write torch.where(cond, a, b)")
    return wrap(ops.select(lift(condition), lift(a), lift(b)))


def masked_fill(x: Any, mask: Any, fill: Any) -> Value:
    return where(mask, fill, x)


def clamp(x: Any, min: Any = None, max: Any = None) -> Value:
    if min is None and max is None:
        raise scope.fail("clamp without a bound", "give min=, max= or both")
    result = value(x)
    if min is not None:
        result = wrap(ops.extremum("max", lift(result), lift(min), tie="first"))
    return wrap(ops.extremum("min", lift(result), lift(max), tie="first")) if max is not None else result


def add(a: Any, b: Any, alpha: Any = 1) -> Value:
    return value(a) + (b if alpha == 1 else alpha * value(b))


def sub(a: Any, b: Any, alpha: Any = 1) -> Value:
    return value(a) - (b if alpha == 1 else alpha * value(b))


def rsub(a: Any, b: Any, alpha: Any = 1) -> Value:
    return sub(b, a, alpha)


def mul(a: Any, b: Any) -> Value:
    return value(a) * b


def div(a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    match rounding_mode:
        case None:
            return value(a) / b
        case "floor":
            return value(a) // b
        case "trunc":
            if "float" in (lift(a).kind, lift(b).kind):
                return trunc(value(a) / b)
            return wrap(ops.quotient_towards_zero(lift(a), lift(b)))
    raise scope.fail(f"rounding_mode={rounding_mode!r}", 'use None, "floor" or "trunc"')


def fmod(a: Any, b: Any) -> Value:
    return wrap(ops.remainder_towards_zero(lift(a), lift(b)))


def logical(name: str) -> Callable[[Any, Any], Value]:
    return lambda a, b: wrap(ops.logical(name, ops.cast(lift(a), "bool"), ops.cast(lift(b), "bool")))


def logical_not(x: Any) -> Value:
    return wrap(ops.invert(ops.cast(lift(x), "bool")))


def logaddexp(a: Any, b: Any) -> Value:
    a, b = value(a), value(b)
    first = a > b
    distance = where((a == b) & isinf(a), 0.0, where(first, b - a, a - b))
    return where(first, a, b) + log1p(exp(distance))


def lerp(a: Any, b: Any, weight: Any) -> Value:
    """a + weight (b - a), from the nearer end, as in torch: exact at both."""
    a, b, weight = value(a), value(b), value(weight)
    difference = b - a
    return where(abs_(weight) < 0.5, a + weight * difference, b - difference * (1.0 - weight))


def copysign(x: Any, y: Any) -> Value:
    """|x| with the sign of y, also that of a zero; no gradient for y, and none at x = 0."""
    return wrap(ops.copysign(lift(x), lift(y)))


def addcmul(x: Any, a: Any, b: Any, value: Any = 1) -> Value:
    return add(x, mul(a, b), alpha=value)


def addcdiv(x: Any, a: Any, b: Any, value: Any = 1) -> Value:
    return add(x, div(a, b), alpha=value)


def detach(x: Any) -> Value:
    """The same value without a gradient: what depends on it counts as constant in the backward pass."""
    return wrap(ops.detach(lift(x)))
