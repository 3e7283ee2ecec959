"""Rewrite rules for scalar ops: each looks at one op and returns what may replace its result.

NaN and infinities keep their meaning: nothing is reassociated, x * 0 and x - x stay. Two roundings may become one less
or differ in the last bit (x / c), and the sign of a zero may change (x + 0).
"""

import math

from attn_mlir.mlir import arith, ir
from attn_mlir.mlir import math as math_ops
from attn_mlir.passes.patterns import Rule
from attn_mlir.passes.regions import maker
from attn_mlir.passes.simplification.folding import FOLDED, constant, folded, number, truth

_SMALLEST_NORMAL = 1.1754944e-38
_LARGEST_RECIPROCAL = 8.5e37


def _add(op: ir.Operation) -> ir.Value | None:
    x, y = op.operands
    if number(y) == 0.0:
        return x
    if number(x) == 0.0:
        return y
    negated = maker(y, "arith.negf")
    if negated is not None:
        return arith.subf(x, negated.operands[0])
    negated = maker(x, "arith.negf")
    return None if negated is None else arith.subf(y, negated.operands[0])


def _sub(op: ir.Operation) -> ir.Value | None:
    x, y = op.operands
    if number(y) == 0.0:
        return x
    if number(x) == 0.0:
        return arith.negf(y)
    negated = maker(y, "arith.negf")
    return None if negated is None else arith.addf(x, negated.operands[0])


def _mul(op: ir.Operation) -> ir.Value | None:
    for x, y in (tuple(op.operands), tuple(op.operands)[::-1]):
        if number(y) == 1.0:
            return x
        if number(y) == -1.0:
            return arith.negf(x)
    x, y = (maker(v, "arith.negf") for v in op.operands)
    return arith.mulf(x.operands[0], y.operands[0]) if x is not None and y is not None else None


def _div(op: ir.Operation) -> ir.Value | None:
    x, y = op.operands
    c = number(y)
    if c is None:
        return None
    if c == 1.0:
        return x
    if c == -1.0:
        return arith.negf(x)
    # Only where the reciprocal is exact, a power of two, and a normal number: no stage may change a result.
    if not math.isfinite(c) or abs(math.frexp(c)[0]) != 0.5 or not _SMALLEST_NORMAL < abs(c) < _LARGEST_RECIPROCAL:
        return None
    return arith.mulf(x, constant(1.0 / c, x.type))


def _neg(op: ir.Operation) -> ir.Value | None:
    inner = maker(op.operands[0], "arith.negf")
    return None if inner is None else inner.operands[0]


def _abs(op: ir.Operation) -> ir.Value | None:
    x = op.operands[0]
    if maker(x, "math.absf") is not None:
        return x
    inner = maker(x, "arith.negf")
    return None if inner is None else math_ops.absf(inner.operands[0])


def _extremum(op: ir.Operation) -> ir.Value | None:
    x, y = op.operands
    if x == y:
        return x
    largest = op.name == "arith.maximumf"
    neutral = -math.inf if largest else math.inf
    for a, b in ((x, y), (y, x)):
        c = number(b)
        if c == neutral:
            return a
        inner = maker(a, op.name)
        if inner is None or c is None:
            continue
        for kept, other in (tuple(inner.operands), tuple(inner.operands)[::-1]):
            d = number(other)
            if d is not None and not math.isnan(d + c):
                make = arith.maximumf if largest else arith.minimumf
                return make(kept, constant(max(c, d) if largest else min(c, d), x.type))
    return None


def _select(op: ir.Operation) -> ir.Value | None:
    condition, x, y = op.operands
    if x == y:
        return x
    known = truth(condition)
    if known is not None:
        return x if known else y
    inverted = maker(condition, "arith.xori")
    if inverted is not None and truth(inverted.operands[1]) is True:
        return arith.select(inverted.operands[0], y, x)
    return None


def _and(op: ir.Operation) -> ir.Value | None:
    return _logical(op, absorbing=False)


def _or(op: ir.Operation) -> ir.Value | None:
    return _logical(op, absorbing=True)


def _logical(op: ir.Operation, absorbing: bool) -> ir.Value | None:
    x, y = op.operands
    if x == y:
        return x
    for a, b in ((x, y), (y, x)):
        if truth(b) is not None:
            return b if truth(b) is absorbing else a
    return None


def _pow(op: ir.Operation) -> ir.Value | None:
    x, y = op.operands
    k = number(y)
    if k is None:
        return math_ops.exp2(y) if number(x) == 2.0 else None
    if k in (0.5, -0.5):
        return math_ops.sqrt(x) if k > 0 else math_ops.rsqrt(x)
    if k == 0.0:
        return constant(1.0, x.type)
    if k != int(k) or abs(k) > 4:
        return None
    # Powers of 1 / x, not 1 / x^2: their derivatives are those of x^-2 where x is 0 or infinite, too.
    return _integer_power(x if k > 0 else arith.divf(constant(1.0, x.type), x), int(abs(k)))


def _integer_power(x: ir.Value, k: int) -> ir.Value:
    if k == 1:
        return x
    square = arith.mulf(x, x)
    return square if k == 2 else arith.mulf(square, x if k == 3 else square)


def _detach(op: ir.Operation) -> ir.Value | None:
    """A constant has no gradient; a second detach changes nothing."""
    x = op.operands[0]
    return x if number(x) is not None or maker(x, "attn.detach") is not None else None


def _slope(op: ir.Operation) -> ir.Value | None:
    """A constant has no gradient, and a slope of 0 gives none."""
    x, factor = op.operands
    return constant(0.0, x.type) if number(x) is not None or number(factor) == 0.0 else None


def _reduce(op: ir.Operation) -> ir.Value | None:
    """max(max x) = max x, and the same for min."""
    inner = maker(op.operands[0], "attn.reduce")
    kind = ir.StringAttr(op.attributes["kind"]).value
    return op.operands[0] if inner is not None and kind != "sum" and inner.attributes["kind"] == op.attributes["kind"] else None


def _first_folded(rule: Rule | None) -> Rule:
    """The rule for ops whose operands are not all constants; these are folded."""

    def folds(op: ir.Operation) -> ir.Value | None:
        if not list(op.results[0].uses):
            return None
        value = folded(op)
        if value is not None:
            return constant(value, op.results[0].type)
        return rule(op) if rule else None

    return folds


_OWN: dict[str, Rule] = {
    "arith.addf": _add,
    "arith.subf": _sub,
    "arith.mulf": _mul,
    "arith.divf": _div,
    "arith.negf": _neg,
    "arith.maximumf": _extremum,
    "arith.minimumf": _extremum,
    "arith.select": _select,
    "arith.andi": _and,
    "arith.ori": _or,
    "math.absf": _abs,
    "math.powf": _pow,
    "attn.detach": _detach,
    "attn.slope": _slope,
    "attn.reduce": _reduce,
}
RULES: dict[str, Rule] = {name: _first_folded(_OWN.get(name)) for name in dict.fromkeys([*_OWN, *FOLDED])}
"""By the names of ops."""
