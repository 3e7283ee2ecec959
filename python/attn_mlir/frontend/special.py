"""Special functions of traced values: composed of what every backend computes, without branches, and accurate to a few ulp.

The approximations hold for float64 and serve float32 as well: their derivatives then are as good. A branch that is not
taken computes with a harmless number, so that its derivative is finite.
"""

import math
from typing import Any

from attn_mlir.frontend import scope
from attn_mlir.frontend import special_coefficients as c
from attn_mlir.frontend.inverse import magnitude, polynomial
from attn_mlir.frontend.values import Value, value
from attn_mlir.frontend.vocabulary import abs_, cos, detach, erf, exp, floor, isinf, isnan, log, log1p, minimum, sin, sqrt, where

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
# Bernoulli numbers B_2n / (2n (2n - 1)) of Stirling's series, and B_2n / 2n of its derivative (Abramowitz and Stegun 6.1.40, 6.3.18).
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_STIRLING_FROM = 8.5


def with_derivative_of(exact: Value, smooth: Value) -> Value:
    """`exact`, with the derivatives of `smooth`, which is finite."""
    return detach(exact) + (smooth - detach(smooth))


def erfc(x: Any) -> Value:
    """1 - erf(x), also where that is tiny."""
    x = value(x).float()
    a = minimum(abs_(x), 30.0)
    # x^2 = near^2 + (x - near)(x + near) with an exact near^2: then exp(-x^2) keeps its relative accuracy (Cody 1969).
    near = floor(a * 16.0) * 0.0625
    decay = exp(-near * near) * exp((near - a) * (near + a))
    tail = decay * polynomial(((a - 3.0) / (a + 3.0) + 0.09) * (1 / 0.91), c.ERFC) / (1.0 + 2.0 * a)
    return with_derivative_of(where(x < 0.0, 2.0 - tail, tail), 1.0 - erf(x))


def ndtr(x: Any) -> Value:
    """The normal distribution."""
    return 0.5 * erfc(value(x) * -math.sqrt(0.5))


def erfinv(x: Any) -> Value:
    x = value(x).float()
    one = abs_(x) == 1.0
    inside = where(one, 0.0, x)
    w = -log((1.0 - inside) * (1.0 + inside))
    centre, far = w < 5.0, w >= 16.0
    root = sqrt(where(centre, 16.0, w))
    ratio = polynomial(where(centre, w, 1.0) * 0.4 - 1.0, c.ERFINV_CENTRE)
    middle = 4.0 - math.sqrt(5.0)
    tail = polynomial((where(far, 4.0, root) - (math.sqrt(5.0) + 0.5 * middle)) * (2.0 / middle), c.ERFINV_TAIL)
    tail = where(far, polynomial((root - 5.2) * (1 / 1.2), c.ERFINV_FAR), tail)
    at_one = x / where(one, 0.0, 1.0)  # infinite, and its slope too
    return where(one, at_one, inside * where(centre, ratio, tail))


def i0e(x: Any) -> Value:
    """exp(-|x|) I0(x)."""
    return _i0e(abs_(value(x).float()))


def i0(x: Any) -> Value:
    """The modified Bessel function of order 0."""
    a = magnitude(value(x).float())
    finite = where(isinf(a), 1.0, a)
    half = exp(0.5 * finite)  # exp(x) alone overflows before I0 does
    return where(isinf(a), a, half * (half * _i0e(finite)))


def _i0e(a: Value) -> Value:
    large = a > 8.0
    above = where(large, a, 8.0)
    small = polynomial(where(large, 0.0, a) * 0.25 - 1.0, c.I0E_SMALL)
    return where(large, polynomial(16.0 / above - 1.0, c.I0E_LARGE) / sqrt(above), small)


def lgamma(x: Any) -> Value:
    """log |Gamma(x)|: Stirling's series, recurrences down to [1.5, 2.5], and reflection of what is negative."""
    x = value(x).float()
    negative = x < 0.0
    a = where(negative, -x, x)
    of_a = _lgamma(a)
    sine = where(negative, abs_(sin(math.pi * _from_integer(a))), 1.0)
    reflected = math.log(math.pi) - log(where(negative, a, 1.0)) - log(sine) - of_a
    return where(isinf(x), math.inf, where(negative, reflected, of_a))


def _lgamma(a: Value) -> Value:
    large = a > _STIRLING_FROM
    b = where(large, 2.0, a)
    below = b < 1.5
    product = where(below, b * where(b < 0.5, b + 1.0, 1.0), _product(b))
    z = _moved(b)
    near_two = z * polynomial(2.0 * z, c.LGAMMA)
    above = where(large, a, _STIRLING_FROM + 1.0)
    logarithm = log(where(large, a, product))
    core = near_two + where(below, -logarithm, logarithm)
    inverse = 1.0 / above
    series = inverse * polynomial(inverse * inverse, _STIRLING)
    stirling = (above - 0.5) * (where(large, logarithm, 1.0) - 1.0) + (_HALF_LOG_TWO_PI - 0.5) + series
    return where(large, stirling, core)


def _product(b: Value) -> Value:
    """Gamma(b) / Gamma(2 + z) for b from 1.5 to 8.5, z in [-0.5, 0.5]."""
    product: Any = 1.0
    for k in range(1, 7):
        product = product * where(b > k + 1.5, b - float(k), 1.0)
    return value(product)


def _moved(b: Value) -> Value:
    """z in [-0.5, 0.5], so that b is 2 + z and a whole number."""
    z = b - 2.0 + where(b < 1.5, 1.0, 0.0) + where(b < 0.5, 1.0, 0.0)
    for k in range(1, 7):
        z = z - where(b > k + 1.5, 1.0, 0.0)
    return z


def _from_integer(a: Value) -> Value:
    """The distance from the nearest integer, with its sign."""
    return a - floor(a + 0.5)


def digamma(x: Any) -> Value:
    """The derivative of lgamma, with the same ranges."""
    x = value(x).float()
    negative = x < 0.0
    a = where(negative, -x, x)
    of_a = _digamma(a)
    rest = where(negative, _from_integer(a), 0.25)
    pole = rest == 0.0
    angle = math.pi * where(pole, 0.25, rest)
    reflected = of_a + 1.0 / where(negative, a, 1.0) + math.pi * cos(angle) / sin(angle)
    return where(pole, math.nan, where(negative, reflected, of_a))


def _digamma(a: Value) -> Value:
    large = a > _STIRLING_FROM
    b = where(large, 2.0, a)
    fractions: Any = -where(b < 1.5, 1.0, 0.0) / where(b < 1.5, b, 1.0) - where(b < 0.5, 1.0, 0.0) / where(b < 0.5, b + 1.0, 1.0)
    for k in range(1, 7):
        fractions = fractions + where(b > k + 1.5, 1.0, 0.0) / where(b > k + 1.5, b - float(k), 1.0)
    derivative = [(n + 1) * coefficient for n, coefficient in enumerate(c.LGAMMA)]
    core = polynomial(2.0 * _moved(b), derivative) + fractions
    above = where(large, a, _STIRLING_FROM + 1.0)
    inverse = 1.0 / above
    series = inverse * inverse * polynomial(inverse * inverse, _DIGAMMA)
    return where(large, log(above) - 0.5 * inverse - series, core)


def logit(x: Any, eps: float | None = None) -> Value:
    """log(x / (1 - x)), of x in [eps, 1 - eps] where eps is given."""
    x = value(x).float()
    if eps is not None:
        x = x.clamp(eps, 1.0 - eps)
    t = 2.0 * x - 1.0
    middle = abs_(t) < 0.5
    near, rest = where(middle, t, 0.0), where(middle, 0.5, x)
    return where(middle, log1p(near) - log1p(-near), log(rest) - log1p(-rest))


def sinc(x: Any) -> Value:
    """sin(pi x) / (pi x), and 1 at 0."""
    x = value(x).float()
    near = abs_(x) < 0.15
    small = math.pi * where(near, x, 0.0)
    series = polynomial(small * small, [(-1.0) ** n / math.factorial(2 * n + 1) for n in range(8)])
    far = where(near, 1.0, x)
    whole = floor(far + 0.5)
    sign = 1.0 - 2.0 * (whole - 2.0 * floor(0.5 * whole))
    return where(near, series, sign * sin(math.pi * (far - whole)) / (math.pi * far))


def nan_to_num(x: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Value:
    """Finite numbers instead of NaN and infinities: 0 and the largest of the scores' dtype."""
    x = value(x)
    if x._node.kind != "float":
        return x
    largest = scope.current().largest
    above, below = largest if posinf is None else posinf, -largest if neginf is None else neginf
    result = where(isnan(x), 0.0 if nan is None else nan, x)
    return where(x == math.inf, above, where(x == -math.inf, below, result))
