"""Reductions over the present keys of a row, under torch's names: all are made of sums, maxima and minima of the row."""

import math
from collections.abc import Callable
from typing import Any

from attn_mlir.frontend import ops, scope, vocabulary
from attn_mlir.frontend.values import Value, lift, value, wrap
from attn_mlir.frontend.vocabulary import where


def _check_dim(dim: Any) -> None:
    if dim not in (None, -1) and dim != (-1,) and dim != [-1]:
        raise scope.fail(f"a reduction over dim={dim!r}", "a row function reduces over the keys of the row: leave dim out, or use dim=-1")


def _reduce(kind: str, x: Any) -> Value:
    return wrap(ops.reduce(kind, lift(x)))


def _count(condition: Value) -> Value:
    return _reduce("sum", where(condition, 1.0, 0.0))


def sum_(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    _check_dim(dim)
    return _reduce("sum", x)


def mean(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    """The sum over the present keys divided by their number."""
    _check_dim(dim)
    return _reduce("sum", x) / _reduce("sum", 1.0)


def nansum(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    """The sum of what is not NaN."""
    _check_dim(dim)
    return _reduce("sum", where(vocabulary.isnan(x), 0.0, x))


def nanmean(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return nansum(x, dim) / _count(value(x) == x)


def amax(x: Any, dim: Any = None, keepdim: bool = False) -> Value:
    _check_dim(dim)
    return _reduce("max", x)


def amin(x: Any, dim: Any = None, keepdim: bool = False) -> Value:
    _check_dim(dim)
    return _reduce("min", x)


def aminmax(x: Any, *, dim: Any = None, keepdim: bool = False) -> tuple[Value, Value]:
    return amin(x, dim), amax(x, dim)


def extremum(name: str) -> Callable[..., Value]:
    """torch's max and min: of the row with one argument, elementwise with two."""

    def function(x: Any, other: Any = None, *, dim: Any = None, keepdim: bool = False) -> Value:
        if other is not None:
            return wrap(ops.extremum(name, lift(x), lift(other)))
        if dim is not None:
            raise scope.fail(f"{name} with dim= gives values and indices in torch", f"write x.{name}() or x.a{name}(dim=-1) for the value")
        return _reduce(name, x)

    return function


def any_(x: Any, dim: Any = None, keepdim: bool = False) -> Value:
    _check_dim(dim)
    return _reduce("max", _as_number(x)) > 0.5


def all_(x: Any, dim: Any = None, keepdim: bool = False) -> Value:
    _check_dim(dim)
    return _reduce("min", _as_number(x)) > 0.5


def _as_number(x: Any) -> Value:
    return where(wrap(ops.cast(lift(x), "bool")), 1.0, 0.0)


def count_nonzero(x: Any, dim: Any = None) -> Value:
    _check_dim(dim)
    return _reduce("sum", _as_number(x))


def var(x: Any, dim: Any = None, unbiased: bool = True, *, correction: Any = None, keepdim: bool = False) -> Value:
    """The mean square distance from the mean, over the number of keys less `correction`."""
    return var_mean(x, dim, unbiased, correction=correction)[0]


def var_mean(x: Any, dim: Any = None, unbiased: bool = True, *, correction: Any = None, keepdim: bool = False) -> tuple[Value, Value]:
    if isinstance(dim, bool):  # torch also takes unbiased first
        dim, unbiased = None, dim
    _check_dim(dim)
    less = correction if correction is not None else 1 if unbiased else 0
    number = _reduce("sum", 1.0)
    centre = _reduce("sum", x) / number
    distance = value(x) - centre
    return _reduce("sum", distance * distance) / vocabulary.maximum(number - less, 0.0), centre


def std(x: Any, dim: Any = None, unbiased: bool = True, *, correction: Any = None, keepdim: bool = False) -> Value:
    return std_mean(x, dim, unbiased, correction=correction)[0]


def std_mean(x: Any, dim: Any = None, unbiased: bool = True, *, correction: Any = None, keepdim: bool = False) -> tuple[Value, Value]:
    variance, centre = var_mean(x, dim, unbiased, correction=correction)
    return _root(variance), centre


def _root(x: Value) -> Value:
    """The square root of a sum of squares, which has no gradient where they are all 0."""
    zero = x == 0.0
    return where(zero, 0.0, vocabulary.sqrt(where(zero, 1.0, x)))


def norm(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    """(sum |x|^p)^(1 / p); the largest or least |x| for p = inf or -inf, and the number of x that are not 0 for p = 0."""
    _check_dim(dim)
    order = _order(p)
    size = vocabulary.abs_(x)
    if math.isinf(order):
        return _reduce("max" if order > 0 else "min", size)
    if order == 0.0:
        return count_nonzero(x)
    if order == 1.0:
        return _reduce("sum", size)
    if order == 2.0:
        return _root(_reduce("sum", value(x) * x))
    zero = size == 0.0
    power = where(zero, 0.0 if order > 0 else math.inf, where(zero, 1.0, size) ** order)
    total = _reduce("sum", power)
    empty = (total == 0.0) | vocabulary.isinf(total)
    limit = total if order > 0 else 1.0 / total
    return where(empty, limit, where(empty, 1.0, total) ** (1.0 / order))


def _order(p: Any) -> float:
    if p is None or p == "fro":
        return 2.0
    if isinstance(p, (int, float)):
        return float(p)
    raise scope.fail(f"a norm of order {p!r}", "use a number, math.inf or -math.inf")


def vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return norm(x, ord, dim)


def normalize(x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Value:
    _check_dim(dim)
    return value(x) / norm(x, p).clamp(min=eps)


def prod(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    """The product of the row, made of sums: of signs, of exponents, which is exact, and of logarithms of what is left, near 1.

    Zeros are counted apart, and enter by sums of themselves: so the gradient of a single zero is the product of the others.
    """
    _check_dim(dim)
    x = value(x).float()
    zero = x == 0.0
    others = where(zero, 1.0, x)
    negative = _count(others < 0.0)
    sign = 1.0 - 2.0 * (negative - 2.0 * vocabulary.floor(0.5 * negative))
    product = sign * _product_of_sizes(vocabulary.abs_(others))
    zeros, themselves = _count(zero), where(zero, x, 0.0)
    single = _reduce("sum", themselves)
    double = 0.5 * (single * single - _reduce("sum", themselves * themselves))
    return where(zeros == 0.0, product, product * where(zeros == 1.0, single, where(zeros == 2.0, double, 0.0)))


def _product_of_sizes(size: Value) -> Value:
    exponent = vocabulary.floor(vocabulary.log2(size).clamp(-126.0, 126.0) + 0.5)
    left = vocabulary.exp2(_reduce("sum", vocabulary.log2(size * vocabulary.exp2(-exponent))))
    total = _reduce("sum", exponent)
    half = vocabulary.floor(0.5 * total)
    return left * vocabulary.exp2(half) * vocabulary.exp2(total - half)


def logsumexp(x: Any, dim: Any = None, keepdim: bool = False) -> Value:
    _check_dim(dim)
    largest = _reduce("max", x)
    return largest + vocabulary.log(_reduce("sum", vocabulary.exp(value(x) - largest)))


def softmax(x: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Value:
    _check_dim(dim)
    e = vocabulary.exp(value(x) - _reduce("max", x))
    return e / _reduce("sum", e)


def softmin(x: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Value:
    return softmax(-value(x), dim)


def log_softmax(x: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Value:
    _check_dim(dim)
    shifted = value(x) - _reduce("max", x)
    return shifted - vocabulary.log(_reduce("sum", vocabulary.exp(shifted)))


def get_reduce(x: Any, kind: str) -> Value:
    """A reduction over the row by name: sum, max, min, abssum or mean."""
    reductions = {"sum": sum_, "max": amax, "min": amin, "mean": mean, "abssum": lambda x: sum_(vocabulary.abs_(x))}
    if kind not in reductions:
        raise scope.fail(f"get_reduce({kind!r})", f"there are {', '.join(reductions)}")
    return reductions[kind](x)
