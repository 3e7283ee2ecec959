"""Inverse trigonometric and hyperbolic functions, and hypot, of traced values: composed of what every backend computes.

Where a branch is not taken it computes with a harmless number, so that its derivative is finite.
"""

import math
from collections.abc import Sequence
from typing import Any

from attn_mlir.frontend import ops
from attn_mlir.frontend.values import Value, lift, value, wrap
from attn_mlir.frontend.vocabulary import abs_, detach, isinf, isnan, log, log1p, maximum, sign, sqrt, where

_LOG_TWO = math.log(2.0)
_HALF_PI = 0.5 * math.pi
# Above it x^2 + 1 is x^2, in float64 too; its square is finite in float32.
_LARGE = 1e9
# (-1)^n / (2n + 1): enough for |t| <= tan(pi / 16).
_ATAN = tuple((-1.0) ** n / (2 * n + 1) for n in range(12))


def magnitude(x: Value) -> Value:
    """|x| with the derivative 1 at 0, for functions that are made even or odd of it."""
    return wrap(ops.extremum("max", lift(x), lift(-x), tie="first"))


def polynomial(u: Value, coefficients: Sequence[float]) -> Value:
    """The polynomial at u, lowest power first, by Horner's rule."""
    total = value(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * u + coefficient
    return total


def _atan_up_to_one(t: Value) -> Value:
    """atan for |t| <= 1: halved twice, by tan(a / 2) = tan(a) / (1 + sqrt(1 + tan(a)^2)); then Taylor's series."""
    for _ in range(2):
        t = t / (1.0 + sqrt(1.0 + t * t))
    square = t * t
    return 4.0 * (t + t * (square * polynomial(square, _ATAN[1:])))


def atan(x: Any) -> Value:
    x = value(x).float()
    large = abs_(x) > 1.0
    small = _atan_up_to_one(where(large, 1.0 / where(large, x, 1.0), where(large, 0.0, x)))
    return where(large, where(x > 0.0, _HALF_PI, -_HALF_PI) - small, small)


def atan2(y: Any, x: Any) -> Value:
    """The angle of (x, y); no gradient at (0, 0)."""
    y, x = value(y).float(), value(x).float()
    below, left = _is_negative(y), _is_negative(x)
    both = isinf(x) & isinf(y)
    x, y = where(both, sign(x), x), where(both, sign(y), y)
    steep, origin = abs_(y) > abs_(x), (x == 0.0) & (y == 0.0)
    base = _atan_up_to_one(where(origin, 0.0, where(steep, x, y)) / where(origin, 1.0, where(steep, y, x)))
    half = where(below, -_HALF_PI, _HALF_PI)
    flat = where(left, where(origin, 2.0 * half, base + 2.0 * half), where(origin, y, base))
    angle = where(steep, half - base, flat)
    return where(isnan(x) | isnan(y), math.nan, where(origin, detach(angle), angle))


def _is_negative(x: Value) -> Value:
    """The sign bit of a number."""
    return where(x == 0.0, 1.0 / where(x == 0.0, x, 1.0), x) < 0.0


def asin(x: Any) -> Value:
    x = value(x).float()
    return 2.0 * _atan_up_to_one(x / (1.0 + sqrt((1.0 - x) * (1.0 + x))))


def acos(x: Any) -> Value:
    x = value(x).float()
    a = magnitude(x)
    angle = 2.0 * _atan_up_to_one(sqrt((1.0 - a) / (1.0 + a)))
    return where(x < 0.0, math.pi - angle, angle)


def asinh(x: Any) -> Value:
    x = value(x).float()
    a = magnitude(x)
    large = a > _LARGE
    b = where(large, 1.0, a)
    square = b * b
    positive = where(large, log(where(large, a, 1.0)) + _LOG_TWO, log1p(b + square / (1.0 + sqrt(1.0 + square))))
    return where(x < 0.0, -positive, where(x == 0.0, x, positive))


def acosh(x: Any) -> Value:
    x = value(x).float()
    large = x > _LARGE
    t = where(large, 1.0, x - 1.0)
    near = log1p(t + sqrt(t) * sqrt(t + 2.0))
    return where(large, log(where(large, x, 1.0)) + _LOG_TWO, near)


def atanh(x: Any) -> Value:
    x = value(x).float()
    return 0.5 * (log1p(x) - log1p(-x))


def hypot(x: Any, y: Any) -> Value:
    """sqrt(x^2 + y^2), also where the squares leave the range of floats; no gradient at (0, 0)."""
    x, y = value(x).float(), value(y).float()
    scale = detach(maximum(abs_(x), abs_(y)))
    usual = (scale > 0.0) & (scale < math.inf)
    scale = where(usual, scale, 1.0)
    x_part, y_part = where(usual, x, 1.0) / scale, where(usual, y, 0.0) / scale
    length = scale * sqrt(x_part * x_part + y_part * y_part)
    infinite = isinf(x) | isinf(y)
    return where(usual, length, where(infinite, math.inf, where(isnan(x) | isnan(y), math.nan, 0.0)))
