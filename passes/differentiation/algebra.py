"""Algebra on expressions: what is zero, what factors of a row can be taken out of a sum over its keys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from attn_mlir.passes.derivation.expr import Expr, Graph
from attn_mlir.passes.derivation.normal import Normal
from attn_mlir.passes.derivation.sums import Mono, Sum, mono_product, plus, times
from attn_mlir.passes.order import deepest_first

_MAX_TERMS = 48
_MAX_ROUNDS = 6
_MAX_FACTORS = 64
_MAX_MATCHED = 16


def _never(node: Expr) -> bool:
    """Nothing is known of any expression."""
    return False


@dataclass(frozen=True)
class _NoSigns:
    """Nothing is taken to be positive: then no rule of the normal form needs an assumption."""

    def of(self, node: Expr) -> int:
        return 0

    def positive(self, node: Expr) -> bool:
        return False

    def nonnegative(self, node: Expr) -> bool:
        return False


@dataclass(eq=False)
class Algebra:
    """Decisions about expressions of one graph; `is_pair` tells what differs from key to key.

    Constants are only as precise as the program's type: terms that cancel up to `tolerance` do cancel.
    """

    graph: Graph
    is_pair: Callable[[Expr], bool]
    tolerance: float = 1e-13
    in_any_order: bool = True
    """Whether ratios of sums are found whose terms stand in another order; without, more sums over keys take a second pass."""
    _split: dict[Expr, list[tuple[Expr, Expr]]] = field(default_factory=dict)
    _gathered: dict[Expr, Expr] = field(default_factory=dict)
    _open: dict[Expr, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        signs: object = _NoSigns()
        self._expanded = Normal(self.graph, frozenset(), signs, expand=True)  # type: ignore[arg-type]
        self._plain = Normal(self.graph, frozenset(), signs)  # type: ignore[arg-type]

    def is_zero(self, node: Expr) -> bool:
        """Whether an expression is zero for all values of its leaves: proved by bringing it over a common denominator."""
        if node.is_const:
            return node.attr == 0.0
        left = self._without_constants(self._expanded.of(node))
        for _ in range(_MAX_ROUNDS):
            if not left:
                return True
            denominators = {n for mono in left for n, p in mono.powers if p < 0 and n.op in ("arith.addf", "arith.subf")}
            if not denominators or len(left) > _MAX_TERMS:
                return False
            found = self._multiplied(left, min(denominators))
            if found is None:
                return False
            left = self._without_constants(found)
        return False

    def _without_constants(self, terms: Sum) -> Sum:
        """`terms` with constant factors multiplied out, and without those that cancel."""
        out: Sum = {}
        sizes: dict[Mono, float] = {}
        for mono, c in terms.items():
            rest = []
            for n, p in mono.powers:
                if n.is_const and (float(n.attr) > 0 or p == int(p)):  # type: ignore[arg-type]
                    c *= float(n.attr) ** p  # type: ignore[arg-type]
                else:
                    rest.append((n, p))
            key = Mono(tuple(rest), mono.e, mono.e2)
            out[key] = out.get(key, 0.0) + c
            sizes[key] = max(sizes.get(key, 0.0), abs(c))
        return {mono: c for mono, c in out.items() if abs(c) > self.tolerance * sizes[mono]}

    def _multiplied(self, terms: Sum, denominator: Expr) -> Sum | None:
        """`terms` times the power of `denominator` that it is divided by, multiplied out."""
        lowest = min(dict(mono.powers).get(denominator, 0.0) for mono in terms)
        if lowest != int(lowest):
            return None
        expanded, out = self._expanded.of(denominator), Sum()
        for mono, c in terms.items():
            power = dict(mono.powers).get(denominator, 0.0) - lowest
            if power != int(power):
                return None
            rest = Mono(tuple((n, p) for n, p in mono.powers if n is not denominator), mono.e, mono.e2)
            product: Sum | None = {rest: c}
            for _ in range(int(power)):
                product = None if product is None else times(product, expanded)
            if product is None:
                return None
            out = plus(out, product)
        return out

    def gathered(self, node: Expr) -> Expr:
        """`node` with factors that both sides of a sum share taken out: a e + b e becomes e (a + b)."""

        def gather(n: Expr) -> Expr:
            return self._gather(n) if n.op in ("arith.addf", "arith.subf") and self.is_pair(n) else n

        return self.graph.rebuild(node, gather, self._gathered)

    def rows_first(self, node: Expr) -> Expr:
        """`node` with the factors of a product that are the same for a whole row together, so that they become one."""

        def order(n: Expr) -> Expr:
            return self._in_order(factors_of(n)) if n.op == "arith.mulf" and self.is_pair(n) else n

        return self.graph.rebuild(node, order)

    def _gather(self, n: Expr) -> Expr:
        g = self.graph
        x, y = n.args
        if x.op == y.op == "arith.select" and x.args[0] is y.args[0]:
            for zero, kept in ((1, 2), (2, 1)):
                if x.args[zero] is y.args[zero] is g.const(0.0):
                    inner = g.node(n.op, x.args[kept], y.args[kept])
                    chosen = (g.const(0.0), inner) if zero == 1 else (inner, g.const(0.0))
                    return g.select(x.args[0], *chosen)
        left, right = (factors_of(a) for a in n.args)
        shared = []
        for f in left:
            if f in right and self.is_pair(f):
                right.remove(f)
                shared.append(f)
        if not shared:
            return n
        for f in shared:
            left.remove(f)
        a, b = (self._in_order(rest) for rest in (left, right))
        inner = g.add(a, b) if n.op == "arith.addf" else g.sub(a, b)
        return g.mul(self._in_order(shared), inner)

    def _in_order(self, factors: list[Expr]) -> Expr:
        """The product; what is the same for a whole row first, so that it becomes one factor."""
        total = self.graph.const(1.0)
        for f in sorted(factors, key=lambda n: (self.is_pair(n), n.id)):
            total = self.graph.mul(total, f)
        return total

    def split(self, node: Expr) -> list[tuple[Expr, Expr]]:
        """`node` as the sum of (row factor, pair factor) products."""
        if node not in self._split:
            opened = self.opened(node)
            for n in deepest_first(opened, self._split, self._split_below):
                self._split[n] = self.merged(self._parts(n))
            self._split[node] = self._split[opened]
        return self._split[node]

    def _split_below(self, n: Expr) -> tuple[Expr, ...]:
        """What is split to split `n`, which is opened."""
        if not self.is_pair(n):
            return ()
        if n.op == "arith.divf":
            return () if self.is_pair(n.args[1]) else n.args[:1]
        return n.args if n.op in ("arith.addf", "arith.subf", "arith.negf", "arith.mulf") else ()

    def _parts(self, n: Expr) -> list[tuple[Expr, Expr]]:
        g, one = self.graph, self.graph.const(1.0)
        if not self.is_pair(n):
            return [(n, one)]
        if n.op == "arith.addf":
            return self.split(n.args[0]) + self.split(n.args[1])
        if n.op == "arith.subf":
            return self.split(n.args[0]) + [(g.neg(c), w) for c, w in self.split(n.args[1])]
        if n.op == "arith.negf":
            return [(g.neg(c), w) for c, w in self.split(n.args[0])]
        if n.op == "arith.divf" and not self.is_pair(n.args[1]):
            return [(g.div(c, n.args[1]), w) for c, w in self.split(n.args[0])]
        if n.op == "arith.mulf":
            left, right = self.split(n.args[0]), self.split(n.args[1])
            if len(left) * len(right) <= 4:
                return [(g.mul(a, b), self.product([*factors_of(x), *factors_of(y)])) for a, x in left for b, y in right]
            for rows, pairs in ((n.args[0], n.args[1]), (n.args[1], n.args[0])):
                if not self.is_pair(rows):
                    return [(g.mul(rows, c), w) for c, w in self.split(pairs)]
        return [(one, n)]

    def product(self, factors: Sequence[Expr]) -> Expr:
        """Products in one order, so that equal ones are one node."""
        total = self.graph.const(1.0)
        for f in sorted(factors, key=lambda n: n.id):
            total = self.graph.mul(total, f)
        return total

    def merged(self, parts: list[tuple[Expr, Expr]]) -> list[tuple[Expr, Expr]]:
        """The parts with the row factors of equal values of pairs added up, without those that are 0."""
        total: dict[Expr, Expr] = {}
        for c, w in parts:
            if w.is_const:
                c, w = (c if w.attr == 1.0 else self.graph.mul(c, w)), self.graph.const(1.0)
            total[w] = self.graph.add(total[w], c) if w in total else c
        return [(c, w) for w, c in total.items() if not (c.is_const and c.attr == 0.0)]

    def inverse(self, node: Expr) -> Expr | None:
        """1 / node where that divides by nothing that may be zero: for a constant, or what is itself one over something."""
        terms = list(self._plain.of(node).items())
        if len(terms) != 1:
            return None
        mono, c = terms[0]
        if any(p > 0 and not (n.is_const and n.attr) for n, p in mono.powers):
            return None
        return self._plain.node_of({Mono(*[tuple((a, -p) for a, p in part) for part in mono]): 1.0 / c})  # type: ignore[arg-type]

    def ratio(self, x: Expr, y: Expr, positive: Callable[[Expr], bool] = _never) -> Expr | None:
        """c with x = c y where c is the same for all keys of a row, or None when there is no such c to be seen.

        What is `positive` may be divided by.
        """
        x = self.opened(x)
        for nf in (self._plain, self._expanded):
            found = self._ratio(self._terms(nf, x), self._terms(nf, y), positive)
            if found is not None:
                node = nf.node_of(found)
                if not self.is_pair(node):
                    return node
        return None

    def _ratio(self, above: list[tuple[Mono, float]], below: list[tuple[Mono, float]], positive: Callable[[Expr], bool]) -> Sum | None:
        if not above or not below:
            return None
        if len(below) == 1:
            quotients = [self._quotient(term, below[0], positive) for term in above]
        else:
            # Several terms each: one by one, in an order that only looks at what differs from key to key.
            if len(above) != len(below):
                return None
            quotients = [self._quotient(*pair) for pair in zip(above, below, strict=True)]
            if any(q != quotients[0] for q in quotients):
                return self._matched(above, below) if self.in_any_order else None
            quotients = quotients[:1]
        total: Sum = {}
        for quotient in quotients:
            if quotient is None:
                return None
            total = plus(total, {quotient[0]: quotient[1]})
        return total

    def _matched(self, above: list[tuple[Mono, float]], below: list[tuple[Mono, float]]) -> Sum | None:
        """The ratio of two sums of as many terms in whatever order: that of the first term above to some term below."""
        wanted = dict(above)
        for term in below if len(below) <= _MAX_MATCHED else ():
            quotient = self._quotient(above[0], term)
            if quotient is None:
                continue
            mono, c = quotient
            product = {mono_product(mono, m): c * d for m, d in below}
            if product.keys() == wanted.keys() and all(abs(product[m] - d) <= self.tolerance * abs(d) for m, d in above):
                return {mono: c}
        return None

    def opened(self, node: Expr) -> Expr:
        """`node` with choices between something and 0 that are made for a whole row written as factors 1 or 0."""
        g = self.graph

        def opened(n: Expr) -> Expr:
            if n.op != "arith.select" or self.is_pair(n.args[0]) or not self.is_pair(n):
                return n
            condition, x, y = n.args
            one, zero = g.const(1.0), g.const(0.0)
            if y.is_const and y.attr == 0.0:
                return g.mul(x, g.select(condition, one, zero))
            if x.is_const and x.attr == 0.0:
                return g.mul(y, g.select(condition, zero, one))
            return n

        return g.rebuild(node, opened, self._open)

    def _terms(self, nf: Normal, node: Expr) -> list[tuple[Mono, float]]:
        return sorted(nf.of(node).items(), key=lambda t: repr([(n.id, p) for n, p in t[0].powers if self.is_pair(n)]))

    @staticmethod
    def _quotient(x: tuple[Mono, float], y: tuple[Mono, float], positive: Callable[[Expr], bool] = _never) -> tuple[Mono, float] | None:
        """x / y; None where that would divide by what y itself does not divide by: it would be 0 / 0 where that is zero."""
        (m, c), (n, d) = x, y
        inverse = Mono(*[tuple((a, -p) for a, p in part) for part in n])  # type: ignore[arg-type]
        quotient = mono_product(m, inverse)
        divided = {a for a, p in (*m.powers, *n.powers) if p < 0}
        return None if any(p < 0 and a not in divided and not positive(a) for a, p in quotient.powers) else (quotient, c / d)


def factors_of(n: Expr) -> list[Expr]:
    """The factors of a product; those of a long one are not told apart, since x^2^2^2... has too many."""
    found, todo = list[Expr](), [n]
    while todo:
        f = todo.pop()
        if f.op == "arith.mulf":
            todo += reversed(f.args)
        elif not (f.is_const and f.attr == 1.0):
            found.append(f)
        if len(found) + len(todo) > _MAX_FACTORS:
            return [n]
    return found
