"""Activation functions of traced values, with torch's defaults and torch's derivatives at kinks."""

import math
from typing import Any

from attn_mlir.frontend import ops
from attn_mlir.frontend.values import Value, lift, value, wrap
from attn_mlir.frontend.vocabulary import abs_, erf, exp, expm1, hardtanh, log1p, minus_abs, relu, sigmoid, tanh, where

_SQRT_HALF = math.sqrt(0.5)
_NO_SIGMOID = -104.0
"""Below it x sigmoid(x) is 0 in float32, and less than 1e-43 in float64."""
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def relu6(x: Any, inplace: bool = False) -> Value:
    return hardtanh(x, 0.0, 6.0)


def leaky_relu(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    return where(value(x) > 0.0, x, value(x) * negative_slope)


def prelu(x: Any, weight: Any) -> Value:
    return where(value(x) > 0.0, x, value(x) * weight)


def threshold(x: Any, threshold: Any, value: Any, inplace: bool = False) -> Value:
    return where(wrap(lift(x)) > threshold, x, value)


def elu(x: Any, alpha: float = 1.0, inplace: bool = False) -> Value:
    return where(value(x) > 0.0, x, alpha * expm1(_at_most_zero(x)))


def selu(x: Any, inplace: bool = False) -> Value:
    return _SELU_SCALE * elu(x, _SELU_ALPHA)


def celu(x: Any, alpha: float = 1.0, inplace: bool = False) -> Value:
    return where(value(x) > 0.0, x, alpha * expm1(_at_most_zero(x) / alpha))


def _at_most_zero(x: Any) -> Value:
    return wrap(ops.extremum("min", lift(x), lift(0.0), tie="first"))


def silu(x: Any, inplace: bool = False) -> Value:
    """x sigmoid(x). `sigmoid` stays above 0, which times a large number would count."""
    x = value(x)
    return x * where(x < _NO_SIGMOID, 0.0, sigmoid(x))


def mish(x: Any, inplace: bool = False) -> Value:
    return value(x) * tanh(softplus(x))


def gelu(x: Any, approximate: str = "none") -> Value:
    x = value(x)
    if approximate == "tanh":
        return 0.5 * x * (1.0 + tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + erf(x * _SQRT_HALF))


def logsigmoid(x: Any) -> Value:
    return -softplus(-value(x))


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Value:
    """log(1 + exp(beta x)) / beta; from `threshold` on torch takes x, which above 20 makes no difference to a float32."""
    scaled = value(x) * beta
    smooth = (relu(scaled) + log1p(exp(minus_abs(scaled)))) / beta
    return smooth if threshold >= 20.0 else where(scaled > threshold, x, smooth)


def softsign(x: Any) -> Value:
    return value(x) / (1.0 + abs_(x))


def hardsigmoid(x: Any, inplace: bool = False) -> Value:
    return relu6(value(x) + 3.0) * (1.0 / 6.0)


def hardswish(x: Any, inplace: bool = False) -> Value:
    """x hardsigmoid(x); at -3 and 3, where it has two slopes, torch's."""
    x = value(x).float()
    between = x * ((x + 3.0) * (1.0 / 6.0))
    return where(x <= -3.0, 0.0, where(x < 3.0, between, x))


def hardshrink(x: Any, lambd: float = 0.5) -> Value:
    return where(abs_(x) > lambd, x, where(value(x) == value(x), 0.0, x))


def softshrink(x: Any, lambd: float = 0.5) -> Value:
    x = value(x)
    return where(x > lambd, x - lambd, where(x < -lambd, x + lambd, where(x == x, 0.0, x)))


def tanhshrink(x: Any) -> Value:
    return value(x) - tanh(x)
