"""Sums over keys that stay whole: of a row, only factors that are not known before the sum are taken out of it.

`Algebra.split` multiplies products of differences out, so that sums are found to be known ones. Where they are not, that only does
harm: sum_j (s_j - m)^2 p_j by way of the sums of s^2 p, s p and p loses all digits once scores are large, and costs three sums for one.
What depends on another sum of the same pass is taken out all the same, since it would ask for one more pass.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from attn_mlir.passes.derivation.expr import Expr, leaves
from attn_mlir.passes.differentiation.algebra import Algebra, factors_of
from attn_mlir.passes.order import deepest_first

Parts = dict[Expr, Expr]
"""Values of pairs by the factors of the row that are taken out of their sums."""
_MOST = 4


@dataclass(eq=False)
class Whole:
    """Takes expressions apart; `is_swept` tells which reductions are sums of the same pass."""

    algebra: Algebra
    is_swept: Callable[[Expr], bool]
    _found: dict[Expr, Parts] = field(default_factory=dict)
    _factors: dict[Expr, tuple[Expr, Expr]] = field(default_factory=dict)
    _late: dict[Expr, bool] = field(default_factory=dict)

    def parts(self, value: Expr) -> list[tuple[Expr, Expr]]:
        """`value` as a sum of (row factor, value to be summed) products, as few as there are factors known too late."""
        value = self.algebra.opened(value)
        for n in deepest_first(value, self._found, self._below):
            self._found[n] = self._of(n)
        g = self.algebra.graph
        taken = [(c, *self._factored(w)) for c, w in self._found[value].items()]
        return self.algebra.merged([(g.mul(c, early), w) for c, early, w in taken])

    def is_late(self, node: Expr) -> bool:
        if node not in self._late:
            self._late[node] = any(leaf.op == "red" and self.is_swept(leaf) for leaf in leaves(node))
        return self._late[node]

    def _below(self, n: Expr) -> tuple[Expr, ...]:
        if not self.is_late(n) or not self.algebra.is_pair(n):
            return ()
        if n.op == "arith.divf":
            return () if self.algebra.is_pair(n.args[1]) else n.args[:1]
        return n.args if n.op in ("arith.addf", "arith.subf", "arith.negf", "arith.mulf") else ()

    def _of(self, n: Expr) -> Parts:
        g, one = self.algebra.graph, self.algebra.graph.const(1.0)
        if not self.is_late(n):
            return {one: n}
        if not self.algebra.is_pair(n):
            return {n: one}
        found = [self._found[a] for a in self._below(n)]
        if n.op in ("arith.addf", "arith.subf"):
            total = dict(found[0])
            for c, w in found[1].items():
                total[c] = g.node(n.op, total[c], w) if c in total else w if n.op == "arith.addf" else g.neg(w)
            return total
        if n.op == "arith.negf":
            return {c: g.neg(w) for c, w in found[0].items()}
        if n.op == "arith.divf" and found:
            divisor = n.args[1]
            late = self.is_late(divisor)
            return {g.div(c, divisor) if late else c: w if late else g.div(w, divisor) for c, w in found[0].items()}
        if n.op == "arith.mulf" and len(found[0]) * len(found[1]) <= _MOST:
            total = Parts()
            for a, x in found[0].items():
                for b, y in found[1].items():
                    c, w = g.mul(a, b), g.mul(x, y)
                    total[c] = g.add(total[c], w) if c in total else w
            return total
        return {one: n}

    def _factored(self, value: Expr) -> tuple[Expr, Expr]:
        """(row factor, value of a pair) with all factors of the row that stand before a product or before both sides of a sum."""
        for n in deepest_first(value, self._factors, self._factors_below):
            self._factors[n] = self._taken_out(n)
        return self._factors[value]

    def _factors_below(self, n: Expr) -> tuple[Expr, ...]:
        if n.op == "arith.divf":
            return () if self.algebra.is_pair(n.args[1]) else n.args[:1]
        return n.args if self.algebra.is_pair(n) and n.op in ("arith.addf", "arith.subf", "arith.negf", "arith.mulf") else ()

    def _taken_out(self, n: Expr) -> tuple[Expr, Expr]:
        g, one = self.algebra.graph, self.algebra.graph.const(1.0)
        if not self.algebra.is_pair(n):
            return n, one
        found = [self._factors[a] for a in self._factors_below(n)]
        if n.op == "arith.mulf":
            (a, x), (b, y) = found
            return g.mul(a, b), self.algebra.product([*factors_of(x), *factors_of(y)])
        if n.op == "arith.negf":
            return g.neg(found[0][0]), found[0][1]
        if n.op == "arith.divf" and found:
            return g.div(found[0][0], n.args[1]), found[0][1]
        if n.op in ("arith.addf", "arith.subf"):
            (a, x), (b, y) = found
            if x is y:
                return g.node(n.op, a, b), x
            (shared, minus), (other, minus_too) = _signed(a), _signed(b)
            if shared is other:
                subtracted = (n.op == "arith.subf") != (minus != minus_too)
                return a, g.sub(x, y) if subtracted else g.add(x, y)
        return one, n


def _signed(c: Expr) -> tuple[Expr, bool]:
    """A factor without its sign, and whether that is a minus."""
    return (c.args[0], True) if c.op == "arith.negf" else (c, False)
