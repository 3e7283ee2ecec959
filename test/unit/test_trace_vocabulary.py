"""Every construct of the tracing vocabulary computes what PyTorch computes."""

import math
from typing import Any

import pytest
import torch

from trace_helpers import check_mask, check_score, eager_scores, scores, traced_scores

F = torch.nn.functional

FLOATS: dict[str, Any] = {
    "add": lambda s: s + 1.5,
    "radd": lambda s: 1 + s,
    "sub": lambda s: s - 2,
    "rsub": lambda s: 2.5 - s,
    "mul": lambda s: s * s * 3,
    "rmul": lambda s: 3 * s,
    "div": lambda s: s / 3,
    "rdiv": lambda s: 2 / s,
    "floordiv": lambda s: s // 0.3,
    "rfloordiv": lambda s: 2 // s,
    "mod": lambda s: s % 0.7,
    "rmod": lambda s: 5.0 % (s.abs() + 0.1),
    "neg": lambda s: -s,
    "pos": lambda s: +s,
    "abs": lambda s: abs(s) + s.abs() + torch.abs(s),
    "pow 0": lambda s: s**0,
    "pow 1": lambda s: s**1,
    "pow 2": lambda s: s**2,
    "pow 3.0": lambda s: torch.pow(s, 3.0),
    "pow 4": lambda s: s.pow(4),
    "pow 5": lambda s: s**5,
    "pow 0.5": lambda s: abs(s) ** 0.5,
    "pow -0.5": lambda s: abs(s) ** -0.5,
    "pow -1": lambda s: s**-1,
    "pow 1.7": lambda s: s.abs() ** 1.7,
    "rpow": lambda s: 3.0**s,
    "rpow 2": lambda s: 2**s,
    "torch.pow": lambda s: torch.pow(2.0, s) + torch.pow(s.abs(), s),
    "exp": lambda s: s.exp() + torch.exp(s),
    "exp2": lambda s: s.exp2() + torch.exp2(s),
    "log": lambda s: s.abs().log() + torch.log(s * s),
    "log2": lambda s: torch.log2(s.abs()) + (s * s).log2(),
    "log10": lambda s: torch.log10(s.abs()),
    "log1p": lambda s: torch.log1p(s.abs() * 1e-9) * 1e9,
    "expm1": lambda s: torch.expm1(s * 1e-9) * 1e9 + torch.expm1(s * 100),
    "sqrt": lambda s: s.abs().sqrt() + torch.sqrt(s * s),
    "rsqrt": lambda s: s.abs().rsqrt() + torch.rsqrt(s * s),
    "tanh": lambda s: s.tanh() + torch.tanh(s),
    "sigmoid": lambda s: s.sigmoid() + torch.sigmoid(s * 100) + F.sigmoid(s),
    "logsigmoid": lambda s: F.logsigmoid(s),
    "softplus": lambda s: F.softplus(s * 5),
    "erf": lambda s: s.erf() + torch.erf(s) + torch.erfc(s),
    "sin": lambda s: s.sin() + torch.sin(2 * s),
    "cos": lambda s: s.cos() + torch.cos(2 * s),
    "tan": lambda s: torch.tan(s),
    "sinh": lambda s: torch.sinh(s) + torch.cosh(s),
    "floor": lambda s: torch.floor(s) + (s * 2).floor(),
    "ceil": lambda s: torch.ceil(s) + (s * 2).ceil(),
    "trunc": lambda s: torch.trunc(s * 3),
    "round": lambda s: torch.round(s * 3) + torch.round(torch.floor(s * 3) + 0.5),
    "sign": lambda s: torch.sign(s) + (s * 0).sign(),
    "square": lambda s: torch.square(s) + s.square(),
    "reciprocal": lambda s: torch.reciprocal(s),
    "relu": lambda s: torch.relu(s) + F.relu(s) + s.relu(),
    "relu6": lambda s: F.relu6(s * 5),
    "leaky_relu": lambda s: F.leaky_relu(s, 0.2),
    "elu": lambda s: F.elu(s, 0.5),
    "silu": lambda s: F.silu(s),
    "gelu": lambda s: F.gelu(s) + F.gelu(s, approximate="tanh"),
    "hardtanh": lambda s: F.hardtanh(s),
    "maximum": lambda s: torch.maximum(s, -s * 0.5) + s.maximum(s * s),
    "minimum": lambda s: torch.minimum(s, -s * 0.5) + s.minimum(s * s),
    "fmod": lambda s: torch.fmod(s * 5, 0.7),
    "copysign": lambda s: torch.copysign(s, -s + 0.1) + torch.copysign(s, torch.tensor(-1.0)),
    "remainder": lambda s: torch.remainder(s * 5, 0.7),
    "clamp": lambda s: s.clamp(-0.5, 0.5) + torch.clamp(s, min=0) + torch.clamp(s, max=0.1) + s.clamp(min=-1) + torch.clip(s, -1, 1),
    "clamp_min": lambda s: s.clamp_min(0.2) + torch.clamp_max(s, 0.3),
    "where": lambda s: torch.where(s > 0, s, -2 * s) + s.where(s < 0.5, 7.0) + torch.where(s > 0, 1.0, s),
    "masked_fill": lambda s: s.masked_fill(s > 0.3, 9.0),
    "add alpha": lambda s: torch.add(s, s * s, alpha=2) + torch.sub(s, 1, alpha=3) + torch.mul(s, 2) + torch.div(s, 4),
    "div floor": lambda s: torch.div(s, 0.3, rounding_mode="floor") + torch.div(s, 0.3, rounding_mode="trunc"),
    "logaddexp": lambda s: torch.logaddexp(s, s * 2),
    "lerp": lambda s: torch.lerp(s, s * s, 0.3),
    "atan": lambda s: torch.atan(s * 3) + s.arctan() + torch.atan(s * 1e-8) * 1e8,
    "asin": lambda s: torch.asin(s * 0.1) + (s * 0.2).acos() + torch.arcsin(s / 9),
    "asinh": lambda s: torch.asinh(s * 1e-7) * 1e7 + s.asinh() + torch.asinh(s * 1e12),
    "acosh": lambda s: torch.acosh(1 + s * s) + (s.abs() + 1e12).acosh(),
    "atanh": lambda s: torch.atanh(s * 0.1) + (s * 1e-9).arctanh() * 1e9,
    "sinh near 0": lambda s: torch.sinh(s * 1e-9) * 1e9 + torch.sinh(s * 200) * 1e-200,
    "erfc": lambda s: torch.erfc(s * 3) + torch.special.erfc(s.abs() * 5) * torch.exp(25 * s * s) + torch.special.ndtr(s),
    "erfinv": lambda s: torch.erfinv(torch.tanh(s)) + (s * 0.1).erfinv() + torch.special.erfinv(1 - (s.abs() + 0.1) * 1e-9),
    "lgamma": lambda s: torch.lgamma(s.abs() * 4) + (s - 0.3).lgamma() + torch.special.gammaln(s.abs() * 1e9) * 1e-9,
    "digamma": lambda s: torch.digamma(s.abs() * 5) + torch.special.psi(s.abs() + 0.01) + s.abs().digamma(),
    "i0": lambda s: torch.i0(s * 4) + torch.special.i0(s * 0.1) + torch.special.i0e(s * 9),
    "logit": lambda s: torch.logit(torch.sigmoid(s)) + torch.sigmoid(s * 20).logit(eps=1e-3) + torch.special.logit(s * 0.1, 0.2),
    "sinc": lambda s: torch.sinc(s * 4) + torch.special.sinc(s * 0.01),
    "frac": lambda s: torch.frac(s * 5) + (s * 3).frac(),
    "nan_to_num": lambda s: torch.nan_to_num(torch.where(s > 0.5, s / 0, s * math.nan), 7.0, 3.0) + (s / 0).nan_to_num() * 1e-308,
    "activations": lambda s: F.softsign(s) + F.hardswish(s * 3) + F.hardsigmoid(s * 2) + F.hardshrink(s) + F.softshrink(s, 0.3),
    "exponential units": lambda s: F.selu(s) + F.celu(s, 0.7) + torch.celu(s) + F.mish(s * 2) + F.tanhshrink(s) + torch.selu(-s),
    "threshold": lambda s: F.threshold(s, 0.1, 20.0),
    "softplus with a threshold": lambda s: F.softplus(s * 3, beta=2.0, threshold=1.0),
    "addcmul": lambda s: torch.addcmul(s, s, s + 1, value=0.5) + s.addcdiv(s, s * s + 1, value=2) + torch.addcmul(s, s, s),
    "two numbers": lambda s: torch.hypot(s * 3, s + 4) + torch.atan2(s, s * s - 0.3) + (s * 0.1).arctan2(s - 1) + torch.hypot(s * 1e200, s),
    "lerp at its end": lambda s: torch.lerp(s, s * 1e9, 1.0) + s.lerp(s * 2, torch.sigmoid(s)),
    "casts": lambda s: (
        (s * 3).int() + (s * 3).long() * 2 + (s * 3).to(torch.int32) + s.double().to(torch.float64) + s.to(s.dtype) - 2 * s.type_as(s)
    ),
    "bool casts": lambda s: (s > 0).float() + (s > 0.5).int() + (s * 2).int().bool().float(),
    "bool arithmetic": lambda s: (s > 0) * s + (s > 0) * 2 + (1 - (s > 1).int()),
    "like": lambda s: torch.zeros_like(s) + torch.ones_like(s) * 2 + torch.full_like(s, 3.0),
    "isnan": lambda s: (
        torch.where(torch.isnan(s / 0 * 0), 1.0, 0.0) + torch.where(torch.isinf(s / 0), 2.0, 0.0) + torch.isfinite(s).float()
    ),
    "in place operators": lambda s: _augmented(s),
    "fresh tensors": lambda s: torch.where(s > 0, s, torch.tensor(-3.0)) + torch.tensor(2) + torch.full((), 2.5),
    "constants": lambda s: s * math.pi + math.sqrt(2) + float("0.5"),
    "reals": lambda s: s.detach().clone().contiguous(),
}


def _augmented(s: Any) -> Any:
    s = s + 0
    s += 1
    s *= 2
    s -= 0.5
    s /= 3
    return s


@pytest.mark.parametrize("name", FLOATS)
def test_float(name: str) -> None:
    function = FLOATS[name]
    check_score(lambda score, b, h, q_idx, kv_idx: function(score))


INTEGERS: dict[str, Any] = {
    "plain": lambda b, h, i, j: b * 100 + h * 10 + i - j,
    "both ways": lambda b, h, i, j: 3 + i + (3 - j) * (2 * h),
    "true division": lambda b, h, i, j: i / (j + 1) + 1 / (i + 1),
    "floor division": lambda b, h, i, j: (i - j) // 3 + (i - j) // -2 + 17 // (j + 1),
    "modulo": lambda b, h, i, j: (i - j) % 3 + 10 * ((i - j) % -4) + 17 % (j + 1),
    "fmod": lambda b, h, i, j: torch.fmod(i - j, 3),
    "div trunc": lambda b, h, i, j: torch.div(i - j, 3, rounding_mode="trunc"),
    "power": lambda b, h, i, j: (i - j) ** 2 + i**3 + j**6 + 2.0 ** (-j) + (i + 1) ** 0.5,
    "shift of one": lambda b, h, i, j: (1 << h) + (i << 2) + ((i - j) >> 1) + (256 >> j),
    "bits": lambda b, h, i, j: (i & 3) + (j | 4) * 10 + (i ^ j) * 100 + ~i + (6 & j) + (1 | i),
    "abs": lambda b, h, i, j: abs(i - j) + torch.abs(j - i),
    "min max": lambda b, h, i, j: torch.maximum(i, j) * 10 + torch.minimum(i, j) + i.clamp(2, 5) + torch.clamp(j, max=3),
    "float": lambda b, h, i, j: i.double() * 0.5 + j.to(torch.get_default_dtype()) + torch.exp2(-((h + 1) * 8.0 / 3)),
    "negative": lambda b, h, i, j: -i + torch.neg(j),
    "sign": lambda b, h, i, j: torch.sign(i - j),
    "where": lambda b, h, i, j: torch.where(i > j, i, -j) + torch.where(i > 3, 1, 0) + torch.where(j > 3, 1.5, i),
    "square": lambda b, h, i, j: torch.square(i - j),
    "relu": lambda b, h, i, j: torch.relu(i - j),
    "bitwise functions": lambda b, h, i, j: torch.bitwise_and(i, j) + torch.bitwise_xor(i, 1) + torch.bitwise_left_shift(i, 1),
    "rounding is identity": lambda b, h, i, j: torch.floor(i) + torch.ceil(j) + i.trunc() + torch.round(j),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integer(name: str) -> None:
    function = INTEGERS[name]
    check_score(lambda score, b, h, q_idx, kv_idx: function(b, h, q_idx, kv_idx))
    check_score(lambda score, b, h, q_idx, kv_idx: score * function(b, h, q_idx, kv_idx))


CONDITIONS: dict[str, Any] = {
    "ge": lambda b, h, i, j: i >= j,
    "gt": lambda b, h, i, j: 4 > j,
    "le": lambda b, h, i, j: i <= j,
    "lt": lambda b, h, i, j: torch.lt(i, j),
    "eq": lambda b, h, i, j: (i == j) | (i == 0),
    "ne": lambda b, h, i, j: i != j,
    "named comparisons": lambda b, h, i, j: torch.eq(i, j) | torch.ne(h, 1) | i.ge(7) | torch.greater(j, 6),
    "and": lambda b, h, i, j: (i >= j) & (i - j < 3),
    "or": lambda b, h, i, j: (i < 2) | (j < 2),
    "xor": lambda b, h, i, j: (i < 4) ^ (j < 4),
    "not": lambda b, h, i, j: ~(i < j),
    "logical functions": lambda b, h, i, j: torch.logical_or(
        torch.logical_and(i > j, h > 0), torch.logical_not(torch.logical_xor(i > 5, j > 5))
    ),
    "logical of integers": lambda b, h, i, j: torch.logical_and(i, j),
    "equal conditions": lambda b, h, i, j: (i > 4) == (j > 4),
    "unequal conditions": lambda b, h, i, j: (i > 4) != (j > 4),
    "with a Python bool": lambda b, h, i, j: (i >= j) & True | False,
    "floats": lambda b, h, i, j: i.float() * 1.5 > j,
    "batch and head": lambda b, h, i, j: (b == 0) & (h <= 1) | (i == j),
    "bool sum is or": lambda b, h, i, j: (i == j) + (i == 0),
    "bool product is and": lambda b, h, i, j: (i >= j) * (i > 0),
    "chosen": lambda b, h, i, j: torch.where(h > 0, i >= j, i <= j),
    "cast": lambda b, h, i, j: (i % 2).bool() | (j % 2).to(torch.bool),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_condition(name: str) -> None:
    check_mask(CONDITIONS[name])


@pytest.mark.parametrize("function", [math.floor, math.ceil, math.trunc, round])
def test_python_rounding(function: Any) -> None:
    expected = scores().clone().apply_(function)
    torch.testing.assert_close(traced_scores(lambda s, b, h, i, j: function(s) + 0 * i), expected)


def test_numpy_functions() -> None:
    import numpy as np

    traced = traced_scores(lambda s, b, h, i, j: np.exp(s) + np.maximum(s, 0.0) + np.float64(2.0) * s)
    torch.testing.assert_close(traced, eager_scores(lambda s, b, h, i, j: s.exp() + s.relu() + 2 * s))


def test_nan_wins_in_extrema() -> None:
    s = scores()
    s[0, 0, 0, 0] = math.nan
    check_score(
        lambda score, b, h, i, j: torch.maximum(score, score * 0) + torch.minimum(score, score * 0) + score.clamp(0, 1),
        torch.nan_to_num(s, 5.0),
    )


def test_a_name_that_differs_from_torch_is_not_silently_accepted() -> None:
    with pytest.raises(TypeError, match="values and indices"):
        traced_scores(lambda s, b, h, i, j: torch.max(s, dim=-1))
