"""Products with a logarithm that are 0 where a factor is: xlogy and entr."""

import math
from typing import Any

from attn_mlir.frontend.values import Value, value
from attn_mlir.frontend.vocabulary import log, where


def xlogy(x: Any, y: Any) -> Value:
    """x log(y), and 0 where x is 0 unless y is NaN. The gradient of y is 0 there, also where y is 0: in torch 0 / 0."""
    x, y = value(x).float(), value(y).float()
    nothing = (x == 0.0) & ((y <= 0.0) | (y == math.inf))
    return where(nothing, 0.0, x * log(y))


def entr(x: Any) -> Value:
    """-x log(x), 0 at 0 and -inf below. Its derivative at 0 is 0, so that weights that underflow contribute none: in torch it is inf."""
    x = value(x).float()
    return where(x > 0.0, -x * log(x), where(x == 0.0, 0.0, where(x < 0.0, -math.inf, x)))
