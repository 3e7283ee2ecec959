"""Normal form: a sum of monomials in which factors of the score and of the reductions can be told apart.

Only what helps to separate the two is expanded. A part that reads just one of them stays whole, as an atom, the way
its author wrote it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_mlir.passes.derivation.expr import FLOAT, Expr, Graph
from attn_mlir.passes.derivation.row import Reduction
from attn_mlir.passes.derivation.rules import ALWAYS, MAX_POWER, RULES
from attn_mlir.passes.derivation.signs import Signs
from attn_mlir.passes.derivation.sums import Mono, Sum, mono_product, plus
from attn_mlir.passes.order import deepest_first


@dataclass(eq=False)
class Normal:
    """Normal forms with respect to the reductions `running` in the current pass; all others count as constants."""

    graph: Graph
    running: frozenset[int]
    signs: Signs
    expand: bool = False
    reductions: Sequence[Reduction] = ()
    _memo: dict[Expr, Sum] = field(default_factory=dict)

    def mixed(self, node: Expr) -> bool:
        return node.varies and bool(node.reds & self.running)

    def of(self, node: Expr) -> Sum:
        for n in deepest_first(node, self._memo, self._below):
            rule: Callable[..., Sum | None] | None = RULES.get(n.op)
            found = rule(self, n) if rule else None
            self._memo[n] = {Mono(((n, 1.0),)): 1.0} if found is None else found
        return self._memo[node]

    def _below(self, n: Expr) -> tuple[Expr, ...]:
        """What rules ask for, mostly."""
        taken_apart = n.op in ALWAYS or (n.op in RULES and self.mixed(n)) or (self.expand and n.op in ("arith.addf", "arith.subf"))
        return tuple(a for a in n.args if a.type == FLOAT) if taken_apart else ()

    def split(self, mono: Mono) -> tuple[Mono, Mono] | None:
        """(factors without, factors with running reductions), or None when some factor mixes them with the score."""
        halves: list[list[Any]] = [[], [], [], [], [], []]
        for i, parts in enumerate((mono.powers, mono.e, mono.e2)):
            for part in parts:
                runs = bool(part[0].reds & self.running)
                if runs and part[0].varies:
                    return None
                halves[i + 3 * runs].append(part)
        g = [tuple(h) for h in halves]
        return Mono(g[0], g[1], g[2]), Mono(g[3], g[4], g[5])

    def common(self, sum_: Sum) -> tuple[Mono, Sum] | None:
        """(H, G) with sum = H * G where H holds all running reductions, or None when the terms do not agree on H."""
        rest: Sum = {}
        shared: Mono | None = None
        for mono, c in sum_.items():
            halves = self.split(mono)
            if halves is None or shared not in (None, halves[1]):
                return None
            shared = halves[1]
            rest = plus(rest, {halves[0]: c})
        return None if shared is None else (shared, rest)

    def positive(self, mono: Mono, strictly: bool = True) -> bool:
        """True when the product of powers is known to be positive (or not negative)."""
        test = self.signs.positive if strictly else self.signs.nonnegative
        return all(test(n) or (not strictly and p % 2 == 0) for n, p in mono.powers)

    def node_of_mono(self, mono: Mono, c: float = 1.0) -> Expr:
        g = self.graph
        above, below = g.const(1.0), g.const(1.0)
        for node, power in mono.powers:
            if power > 0:
                above = g.mul(above, self._power(node, power))
            else:
                below = g.mul(below, self._power(node, -power))
        for op, exponent in (("math.exp", mono.e), ("math.exp2", mono.e2)):
            if exponent:
                above = g.mul(above, g.unary(op, self.node_of(dict(exponent))))
        scaled = g.mul(above, g.const(c)) if not above.is_const else g.const(float(above.attr) * c)  # type: ignore[arg-type]
        return g.div(scaled, below)

    def node_of(self, sum_: Sum) -> Expr:
        """The sum of the terms. A factor of x - max x is applied to the difference: multiples of x may be rounded, or overflow."""
        terms = _ordered(sum_)
        for mono, c in terms:
            for factor, node in self._extrema(mono):
                own = {mono_product(factor, m): -c * d for m, d in self.of(self._reduction(node).value).items()}
                if own and all(sum_.get(m) == d for m, d in own.items()):
                    difference = {**self.of(self._reduction(node).value), Mono(((node, 1.0),)): -1.0}
                    inner = self._added([(m, d if c < 0 else -d) for m, d in _ordered(difference)])
                    first = self.graph.mul(inner, self.node_of_mono(factor, abs(c)))
                    return self._added([t for t in terms if t[0] != mono and t[0] not in own], first)
        return self._added(terms)

    def _added(self, terms: list[tuple[Mono, float]], total: Expr | None = None) -> Expr:
        total = self.graph.const(0.0) if total is None else total
        for mono, c in terms:
            if c < 0:
                total = self.graph.sub(total, self.node_of_mono(mono, -c))
            else:
                total = self.graph.add(total, self.node_of_mono(mono, c))
        return total

    def _extrema(self, mono: Mono) -> list[tuple[Mono, Expr]]:
        """The extrema that a term is a multiple of, with the factor of each."""
        if not self.reductions or mono.e or mono.e2:
            return []
        found = [n for n, power in mono.powers if n.op == "red" and power == 1.0 and self._reduction(n).kind != "sum"]
        return [(Mono(tuple((m, p) for m, p in mono.powers if m is not n)), n) for n in found]

    def _reduction(self, node: Expr) -> Reduction:
        return self.reductions[int(node.attr)]  # type: ignore[call-overload]

    def _power(self, node: Expr, power: float) -> Expr:
        whole = self.graph.const(1.0)
        if power == int(power) and power <= MAX_POWER:
            for _ in range(int(power)):
                whole = self.graph.mul(whole, node)
            return whole
        if power * 2 == int(power * 2) and power <= MAX_POWER:
            return self.graph.mul(self._power(node, int(power)), self.graph.unary("math.sqrt", node))
        return self.graph.node("math.powf", node, self.graph.const(power))


def _ordered(sum_: Sum) -> list[tuple[Mono, float]]:
    """The terms in the order they are added."""
    return sorted(sum_.items(), key=lambda t: (t[1] < 0, not t[0].varies, t[0]))
