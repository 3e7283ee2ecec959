"""Factors of a row become part of an exponential's argument: exp(s - m) / l is exp(s - (m + log l)), which costs nothing for each pair.

Only where weights are rounded to 16 bits: m + log l has the rounding of m, a relative error of the weights that grows with the scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from attn_mlir.passes.derivation.expr import Expr, nodes
from attn_mlir.passes.derivation.signs import Signs
from attn_mlir.passes.differentiation.algebra import Algebra, factors_of
from attn_mlir.passes.differentiation.model import RowModel
from attn_mlir.passes.order import deepest_first

_LOGARITHMS = {"math.exp": "math.log", "math.exp2": "math.log2"}
_SUMS = ("arith.addf", "arith.subf")


@dataclass(eq=False)
class Absorber:
    """Rewrites weights of pairs. A factor is absorbed if it is positive for all rows that have keys.

    `whole`: as part of what is subtracted from the score, exp(s - (m + log l)); else s - m comes first, as a large m + log l is m.
    """

    program: RowModel
    algebra: Algebra
    whole: bool = True
    signs: Signs = field(init=False)
    _found: dict[Expr, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.signs = Signs(self.program)  # type: ignore[arg-type]

    def all(self, weights: Sequence[Expr]) -> list[Expr]:
        """The weights with what can be absorbed; as they are if that would mean more exponentials."""
        for weight in weights:
            for n in deepest_first(weight, self._found, lambda n: n.args if n.op in _SUMS else ()):
                self._found[n] = self._of(n)
        new = [self._found[weight] for weight in weights]
        return new if len(self._exponentials(new)) <= len(self._exponentials(weights)) else list(weights)

    def _exponentials(self, weights: Sequence[Expr]) -> set[Expr]:
        return {n for n in nodes(*weights) if n.op in _LOGARITHMS and self.program.is_pair(n)}

    def _of(self, n: Expr) -> Expr:
        if not self.program.is_pair(n):
            return n
        g = self.program.graph
        if n.op in _SUMS:
            a, b = (self._found[x] for x in n.args)
            return n if (a, b) == n.args else g.add(a, b) if n.op == "arith.addf" else g.sub(a, b)
        return self._product(n) if n.op in ("arith.mulf", "arith.divf") else n

    def _factors(self, n: Expr) -> list[Expr]:
        """The factors of a product, 1 / x for a divisor x that is captured or belongs to a row."""
        g, found = self.program.graph, list[Expr]()
        for f in factors_of(n):
            divided = f.op == "arith.divf" and (f.args[1].op == "param" or not self.program.is_pair(f.args[1])) and not f.args[0].is_const
            found += [*self._factors(f.args[0]), g.div(g.const(1.0), f.args[1])] if divided else [f]
        return found

    def _product(self, n: Expr) -> Expr:
        g, found = self.program.graph, self._factors(n)
        exponential = next((f for f in found if f.op in _LOGARITHMS and self.program.is_pair(f)), None)
        if exponential is None:
            return n
        absorbed, rest = [], []
        for f in found:
            if f is exponential:
                continue
            if not self.program.is_pair(f) and not f.is_const and self.signs.positive(f):
                absorbed.append(f)
                continue
            row, inner = self._pulled(f) if f.op in _SUMS and not absorbed else (None, f)
            rest.append(inner)
            if row is not None:
                absorbed += self._factors(row)
        if not absorbed:
            return n
        total = self._shifted(exponential, absorbed)
        for f in rest:
            total = g.mul(total, f)
        return total

    def _pulled(self, n: Expr) -> tuple[Expr | None, Expr]:
        """A positive factor of all terms of a sum that is the same for the whole row, and what is left."""
        g, parts = self.program.graph, self.algebra.split(n)
        for row, _ in parts:
            if row.is_const or not self.signs.positive(row):
                continue
            ratios = [self.algebra.ratio(c, row, self.signs.positive) for c, _ in parts]
            total = g.const(0.0)
            for ratio, (_, pair) in zip(ratios, parts, strict=True):
                if ratio is None:
                    break
                total = g.add(total, ratio if pair.is_const and pair.attr == 1.0 else g.mul(ratio, pair))
            else:
                return row, total
        return None, n

    def _shifted(self, exponential: Expr, factors: Sequence[Expr]) -> Expr:
        g, (argument,) = self.program.graph, exponential.args
        logarithm = _LOGARITHMS[exponential.op]
        shift = g.const(0.0)
        for f in sorted(factors, key=lambda f: f.id):  # the same product has the same logarithm
            if f.op == "arith.divf" and f.args[0].is_const and f.args[0].attr == 1.0:
                shift = g.add(shift, g.unary(logarithm, f.args[1]))
            else:
                shift = g.sub(shift, g.unary(logarithm, f))
        if self.whole and argument.op == "arith.subf" and not self.program.is_pair(argument.args[1]):
            return g.unary(exponential.op, g.sub(argument.args[0], g.add(argument.args[1], shift)))
        return g.unary(exponential.op, g.sub(argument, shift))
