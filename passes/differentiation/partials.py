"""Derivatives of the scalar ops.

At kinks and ties they are PyTorch's: abs has derivative 0 at 0, relu 0 at 0, clamp 1 at its bounds, maximum of two equal
values half for each, floor and its like 0 everywhere. `attn.tie` on an `arith.maximumf` or `arith.minimumf` says whose the
gradient is where both operands are equal: the "second" for a relu, the "first" for a clamp; without it, a constant has none.
A NaN passes its gradient on. x^p has no gradient by p where x = 0 <= p (0 log 0 = 0), and none by x where p = 0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.passes.derivation.expr import BOOL, FLOAT, Expr, Graph

_EQUAL, _GREATER, _AT_LEAST, _LESS, _AT_MOST = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class PartialDerivative:
    """The derivative by one argument: a factor and a divisor, where it is not 0 at all since a condition does not choose the argument."""

    factor: Expr | None = None
    divisor: Expr | None = None
    condition: Expr | None = None
    chosen: bool = True

    def times(self, g: Graph, x: Expr) -> Expr:
        """The derivative times `x`; what the condition does not choose gives 0, also where x is not finite."""
        product = self.scaled(g, x)
        return product if self.condition is None else chosen(g, self.condition, self.chosen, product)

    def scaled(self, g: Graph, x: Expr) -> Expr:
        """The same where the condition chooses the argument."""
        taken = None if self.divisor is None else _exponential(g, x, self.divisor)
        other, x = (None, x) if taken is None else taken
        product = x if self.factor is None else g.mul(x, self.factor)
        product = product if self.divisor is None else g.div(product, self.divisor)
        return product if other is None else g.mul(other, product)


def _exponential(g: Graph, x: Expr, divisor: Expr) -> tuple[Expr, Expr] | None:
    """(t, e) of x = t e where it is divided by c + e, as in a sigmoid: only divided first, a large exponential does not overflow."""
    if divisor.op != "arith.addf":
        return None
    if x.op == "arith.select" and any(a.is_const and a.attr == 0.0 for a in x.args[1:]):
        holds = x.args[1].is_const
        found = _exponential(g, x.args[2 if holds else 1], divisor)
        return None if found is None else (chosen(g, x.args[0], not holds, found[0]), found[1])
    if x.op == "arith.mulf":
        for t, e in (x.args, x.args[::-1]):
            if e.op in ("math.exp", "math.exp2") and e in divisor.args:
                return t, e
    return None


Rule = Callable[[Graph, Expr], list[PartialDerivative | None]]
_ONE = PartialDerivative()


def _by(factor: Expr) -> PartialDerivative:
    return PartialDerivative(factor)


def compare(g: Graph, predicate: int, x: Expr, y: Expr) -> Expr:
    """`arith.cmpf` with MLIR's predicate number."""
    return g.node("arith.cmpf", x, y, attr=predicate, type=BOOL)


def chosen(g: Graph, condition: Expr, holds: bool, x: Expr) -> Expr:
    """`x` where the condition holds (or where it does not), else 0."""
    zero = g.const(0.0)
    return g.select(condition, x, zero) if holds else g.select(condition, zero, x)


def indicator(g: Graph, condition: Expr) -> Expr:
    """1 where the condition holds, else 0."""
    return g.select(condition, g.const(1.0), g.const(0.0))


def _square(g: Graph, x: Expr) -> Expr:
    return g.mul(x, x)


def _sign(g: Graph, x: Expr) -> Expr:
    zero = g.const(0.0)
    negative = g.select(compare(g, _LESS, x, zero), g.const(-1.0), zero)
    return g.select(compare(g, _GREATER, x, zero), g.const(1.0), negative)


def _div(g: Graph, n: Expr) -> list[PartialDerivative | None]:
    return [PartialDerivative(divisor=n.args[1]), PartialDerivative(g.neg(n), n.args[1])]


def _extremum(g: Graph, n: Expr) -> list[PartialDerivative | None]:
    x, y = n.args
    loses, at_most = (_LESS, _AT_MOST) if n.op in ("arith.maximumf", "arith.maxnumf") else (_GREATER, _AT_LEAST)
    if n.attr is None and not (x.is_const or y.is_const):
        half = g.select(compare(g, _EQUAL, x, y), g.const(0.5), g.const(1.0))
        parts = list[PartialDerivative | None]()
        for a, b in ((x, y), (y, x)):
            # A factor, which cancels as others do where a maximum only stabilises.
            parts.append(_by(g.select(compare(g, loses, a, b), g.const(0.0), half)))
        return parts
    first = y.is_const if n.attr is None else n.attr == "first"
    # Who has the tie has everything that does not lose against it; so a NaN passes its gradient on, too.
    kept, other = (x, y) if first else (y, x)
    if n.attr == "second" and y.is_const:
        return [PartialDerivative(condition=compare(g, at_most, x, y), chosen=False), None]
    lost = compare(g, loses, kept, other)
    one, other_one = PartialDerivative(condition=lost, chosen=False), PartialDerivative(condition=lost)
    return [one, other_one] if first else [other_one, one]


def _pow(g: Graph, n: Expr) -> list[PartialDerivative | None]:
    x, y = n.args
    zero = g.const(0.0)
    if y.is_const:
        c = float(y.attr)  # type: ignore[arg-type]
        if c == 0:
            return [None, None]
        lower = g.const(1.0) if c == 1 else x if c == 2 else _square(g, x) if c == 3 else g.node("math.powf", x, g.const(c - 1))
        return [_by(g.mul(g.const(c), lower)), None]
    below = g.mul(y, g.node("math.powf", x, g.sub(y, g.const(1.0))))
    nothing = g.both(g.equal(x, zero), compare(g, _AT_LEAST, y, zero))
    by_exponent = PartialDerivative(g.mul(n, g.unary("math.log", x)), condition=nothing, chosen=False)
    return [PartialDerivative(below, condition=g.equal(y, zero), chosen=False), by_exponent]


def _atan2(g: Graph, n: Expr) -> list[PartialDerivative | None]:
    y, x = n.args
    norm = g.add(_square(g, x), _square(g, y))
    return [_by(g.div(x, norm)), _by(g.neg(g.div(y, norm)))]


def _rsqrt(g: Graph, n: Expr) -> Expr:
    return g.mul(g.const(-0.5), g.mul(n, _square(g, n)))


_TWO_OVER_SQRT_PI = 2 / math.sqrt(math.pi)
_UNARY: dict[str, Callable[[Graph, Expr], Expr]] = {
    "math.exp": lambda g, n: n,
    "math.exp2": lambda g, n: g.mul(n, g.const(math.log(2))),
    "math.expm1": lambda g, n: g.add(n, g.const(1.0)),
    "math.log": lambda g, n: g.div(g.const(1.0), n.args[0]),
    "math.log2": lambda g, n: g.div(g.const(1 / math.log(2)), n.args[0]),
    "math.log1p": lambda g, n: g.div(g.const(1.0), g.add(n.args[0], g.const(1.0))),
    "math.sqrt": lambda g, n: g.div(g.const(0.5), n),
    "math.rsqrt": _rsqrt,
    "math.absf": lambda g, n: _sign(g, n.args[0]),
    "math.tanh": lambda g, n: g.sub(g.const(1.0), _square(g, n)),
    "math.sinh": lambda g, n: g.unary("math.cosh", n.args[0]),
    "math.cosh": lambda g, n: g.unary("math.sinh", n.args[0]),
    "math.sin": lambda g, n: g.unary("math.cos", n.args[0]),
    "math.cos": lambda g, n: g.neg(g.unary("math.sin", n.args[0])),
    "math.tan": lambda g, n: g.add(g.const(1.0), _square(g, n)),
    "math.atan": lambda g, n: g.div(g.const(1.0), g.add(g.const(1.0), _square(g, n.args[0]))),
    "math.erf": lambda g, n: g.mul(g.const(_TWO_OVER_SQRT_PI), g.unary("math.exp", g.neg(_square(g, n.args[0])))),
}

_RULES: dict[str, Rule] = {
    "arith.addf": lambda g, n: [_ONE, _ONE],
    "arith.subf": lambda g, n: [_ONE, _by(g.const(-1.0))],
    "arith.negf": lambda g, n: [_by(g.const(-1.0))],
    "arith.mulf": lambda g, n: [_by(n.args[1]), _by(n.args[0])],
    "arith.divf": _div,
    "arith.maximumf": _extremum,
    "arith.minimumf": _extremum,
    "arith.maxnumf": _extremum,
    "arith.minnumf": _extremum,
    "arith.select": lambda g, n: [None, PartialDerivative(condition=n.args[0]), PartialDerivative(condition=n.args[0], chosen=False)],
    "arith.remf": lambda g, n: [_ONE, _by(g.neg(g.unary("math.trunc", g.div(*n.args))))],
    "math.fma": lambda g, n: [_by(n.args[1]), _by(n.args[0]), _ONE],
    "math.powf": _pow,
    "math.atan2": _atan2,
    "math.copysign": lambda g, n: [_by(g.mul(_sign(g, n.args[0]), g.node("math.copysign", g.const(1.0), n.args[1]))), None],
    "attn.detach": lambda g, n: [None],
    "attn.slope": lambda g, n: [_by(n.args[1]), None],
}
_CONSTANT = frozenset({"math.floor", "math.ceil", "math.round", "math.roundeven", "math.trunc", "arith.uitofp", "arith.cmpf"})


def partials(g: Graph, n: Expr) -> list[PartialDerivative | None] | None:
    """The derivative of a node by each argument (None: zero); None for an op without a rule."""
    if n.op in _UNARY:
        return [_by(_UNARY[n.op](g, n))]
    if n.op in _CONSTANT or n.type != FLOAT:
        return [None for _ in n.args]
    rule = _RULES.get(n.op)
    return None if rule is None else rule(g, n)
