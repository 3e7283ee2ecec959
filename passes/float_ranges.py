"""Intervals of the floats in a piece, whatever scores and states are, with what is never above the maximum of a row."""

import math
from collections.abc import Callable, Mapping

from attn_mlir.mlir import ir
from attn_mlir.passes.order import deepest_first
from attn_mlir.passes.regions import maker

Range = tuple[float, float]
ANY: Range = (-math.inf, math.inf)
_UNIT: Range = (-1.0, 1.0)


class FloatRanges:
    """Ranges of values, NaN aside; `known` are those of arguments, anything where there is none."""

    def __init__(self, known: Mapping[ir.Value, Range]) -> None:
        self._known: dict[ir.Value, Range] = dict(known)

    def of(self, value: ir.Value) -> Range:
        """The lowest and the highest number that a value may be."""
        for each in deepest_first(value, self._known, _float_operands):
            self._known[each] = self._compute(each)
        return self._known[value]

    def _compute(self, value: ir.Value) -> Range:
        if isinstance(value.owner, ir.Block):
            return ANY
        op = value.owner.operation
        match op.name:
            case "arith.constant":
                number = ir.FloatAttr(op.attributes["value"]).value
                return number, number
            case "arith.subf":
                return self._difference(op.operands[0], op.operands[1])
            case "arith.divf" if self._known[op.operands[0]][0] >= 0 and _never_above(op.operands[0], op.operands[1], self._known):
                return 0.0, 1.0
            case "arith.mulf" if op.operands[0] == op.operands[1]:
                ends = [abs(end) for end in self._known[op.operands[0]]]
                return 0.0, _product(max(ends), max(ends))
            case "arith.select":
                return _hull(*(self._known[operand] for operand in list(op.operands)[1:]))
            case "attn.reduce":
                return _reduced(self._known[op.operands[0]], ir.StringAttr(op.attributes["kind"]).value)
        rule = _RULES.get(op.name)
        return ANY if rule is None else rule(*(self._known[operand] for operand in op.operands))

    def _difference(self, a: ir.Value, b: ir.Value) -> Range:
        low, high = sum_of(self._known[a], _negated(self._known[b]))
        if _never_above(a, b, self._known):
            high = min(high, 0.0)
        return (max(low, 0.0) if _never_above(b, a, self._known) else low), high


def _float_operands(value: ir.Value) -> list[ir.Value]:
    if isinstance(value.owner, ir.Block):
        return []
    operands = list(value.owner.operation.operands)
    return operands[1:] if value.owner.operation.name == "arith.select" else [x for x in operands if isinstance(x.type, ir.FloatType)]


def _never_above(a: ir.Value, b: ir.Value, known: Mapping[ir.Value, Range]) -> bool:
    """Whether a <= b for every key of a row, as b is a maximum that a enters, or both are made alike of such values."""
    if a == b:
        return True
    of_b = None if isinstance(b.owner, ir.Block) else b.owner.operation
    of_a = None if isinstance(a.owner, ir.Block) else a.owner.operation
    if of_b is not None and of_b.name == "arith.maximumf" and any(_never_above(a, operand, known) for operand in of_b.operands):
        return True
    if of_b is not None and of_b.name == "arith.addf":
        x, y = of_b.operands
        if any(known.get(more, ANY)[0] >= 0 and _never_above(a, part, known) for part, more in ((x, y), (y, x))):
            return True
    if of_b is not None and of_b.name == "attn.reduce":
        return ir.StringAttr(of_b.attributes["kind"]).value == "max" and _never_above(a, of_b.operands[0], known)
    if of_a is not None and of_a.name == "arith.minimumf" and any(_never_above(operand, b, known) for operand in of_a.operands):
        return True
    if of_a is None or of_b is None or of_a.name != of_b.name:
        return False
    x, y = list(of_a.operands), list(of_b.operands)
    match of_a.name:
        case "arith.addf":
            return _never_above(x[0], y[0], known) and _never_above(x[1], y[1], known)
        case "arith.subf":
            return _never_above(x[0], y[0], known) and _never_above(y[1], x[1], known)
        case "arith.negf":
            return _never_above(y[0], x[0], known)
        case "arith.mulf":
            return _equal(x[1], y[1]) and known.get(y[1], ANY)[0] >= 0 and _never_above(x[0], y[0], known)
        case "math.exp" | "math.exp2" | "math.tanh":
            return _never_above(x[0], y[0], known)
    return False


def _equal(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values are one, or constants of the same number."""
    of_a, of_b = maker(a, "arith.constant"), maker(b, "arith.constant")
    return a == b or (of_a is not None and of_b is not None and of_a.attributes["value"] == of_b.attributes["value"])


def _hull(*ranges: Range) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _negated(x: Range) -> Range:
    return -x[1], -x[0]


def sum_of(x: Range, y: Range) -> Range:
    low, high = x[0] + y[0], x[1] + y[1]
    return (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)


def _product(x: float, y: float) -> float:
    return 0.0 if x == 0 or y == 0 else x * y


def product_of(x: Range, y: Range) -> Range:
    ends = [_product(a, b) for a in x for b in y]
    return min(ends), max(ends)


def _quotient(x: Range, y: Range) -> Range:
    if y[0] < 0 < y[1] or y == (0.0, 0.0):
        return ANY
    return product_of(x, _inverse(y))


def _inverse(y: Range) -> Range:
    """1 / y for numbers on one side of 0."""
    if y[0] >= 0:
        return (1 / y[1] if y[1] else math.inf), (1 / y[0] if y[0] else math.inf)
    return _negated(_inverse(_negated(y)))


def _reduced(x: Range, kind: str) -> Range:
    """A reduction of any number of values, or of none."""
    if kind != "sum":
        return _hull(x, (-3.5e38, -3.5e38)) if kind == "max" else _hull(x, (3.5e38, 3.5e38))
    return (0.0 if x[0] >= 0 else -math.inf), (0.0 if x[1] <= 0 else math.inf)


def _rising(function: Callable[[float], float]) -> Callable[[Range], Range]:
    def rule(x: Range) -> Range:
        return function(x[0]), function(x[1])

    return rule


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _exp2(x: float) -> float:
    return _exp(x * math.log(2.0)) if math.isinf(x) or x > 1023 else 2.0**x


def _absolute(x: Range) -> Range:
    most = max(abs(x[0]), abs(x[1]))
    return (0.0 if x[0] <= 0 <= x[1] else min(abs(x[0]), abs(x[1]))), most


_RULES: dict[str, Callable[..., Range]] = {
    "arith.addf": sum_of,
    "arith.mulf": product_of,
    "arith.divf": _quotient,
    "arith.negf": _negated,
    "arith.maximumf": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "arith.minimumf": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "math.absf": _absolute,
    "math.exp": _rising(_exp),
    "math.exp2": _rising(_exp2),
    "math.tanh": _rising(math.tanh),
    "math.log": _rising(lambda x: math.log(x) if x > 0 else -math.inf),
    "math.log2": _rising(lambda x: math.log2(x) if x > 0 else -math.inf),
    "math.log1p": _rising(lambda x: math.log1p(x) if x > -1 else -math.inf),
    "math.erf": _rising(math.erf),
    "math.sqrt": lambda x: (math.sqrt(max(x[0], 0.0)), math.sqrt(max(x[1], 0.0))),
    "math.sin": lambda _: _UNIT,
    "math.cos": lambda _: _UNIT,
    "attn.detach": lambda x: x,
}
"""Ranges of what ops make of numbers in ranges."""
