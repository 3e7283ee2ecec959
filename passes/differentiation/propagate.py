"""Reverse and forward mode on expressions."""

from collections.abc import Mapping, Sequence
from math import isfinite

from attn_mlir.passes.derivation.expr import BOOL, FLOAT, Expr, Graph, nodes
from attn_mlir.passes.differentiation.errors import DifferentiationError
from attn_mlir.passes.differentiation.partials import PartialDerivative, chosen, partials


def _rule(g: Graph, n: Expr) -> list[PartialDerivative | None]:
    found = partials(g, n)
    if found is None:
        raise DifferentiationError(f"'{n.op}' has no derivative rule")
    return found


_SAFE = frozenset({"arith.addf", "arith.subf", "arith.negf", "arith.maximumf", "arith.minimumf", "arith.select", "math.absf"})
"""Ops whose derivatives are finite for any argument, NaN and infinities too: with them, 0 stays 0."""

Guard = tuple[tuple[Expr, bool], ...]
"""Conditions, and whether each must hold: where one fails, the adjoint is 0 whatever its formula gives."""


class _Steep:
    """What has a derivative below that may be infinite or NaN."""

    def __init__(self, order: Sequence[Expr]) -> None:
        self._found: set[Expr] = set()
        for n in reversed(order):
            if any(a in self._found for a in n.args) or not (n.is_leaf or n.type != FLOAT or self._is_safe(n)):
                self._found.add(n)

    @staticmethod
    def _is_safe(n: Expr) -> bool:
        if n.op == "arith.mulf":
            return any(a.is_const and isfinite(float(a.attr)) for a in n.args)  # type: ignore[arg-type]
        if n.op == "arith.divf":
            return n.args[1].is_const and n.args[1].attr != 0.0
        return n.op in _SAFE

    def __contains__(self, n: Expr) -> bool:
        return n in self._found


class _Shares:
    """The adjoint of one node: terms by their guards."""

    def __init__(self) -> None:
        self.terms: dict[Guard, Expr] = {}

    def add(self, g: Graph, guard: Guard, x: Expr) -> None:
        self.terms[guard] = g.add(self.terms[guard], x) if guard in self.terms else x

    def total(self, g: Graph) -> Expr:
        """The sum, with 0 for terms whose guard fails."""
        total: Expr | None = None
        for guard, x in self.terms.items():
            for condition, holds in reversed(guard):
                x = chosen(g, condition, holds, x)
            total = x if total is None else g.add(total, x)
        return g.const(0.0) if total is None else total

    def guarded(self, g: Graph) -> tuple[Guard, Expr]:
        """(guard, value): with several terms, one guard for the sum, which fails where all theirs do."""
        if len(self.terms) == 1:
            return next(iter(self.terms.items()))
        if () in self.terms:
            return (), self.total(g)
        some: Expr | None = None
        for guard in self.terms:
            every = _conjunction(g, guard)
            some = every if some is None else g.node("arith.ori", some, every, type=BOOL)
        return (((some, True),) if some is not None else ()), self.total(g)


Tangents = dict[Expr, _Shares]


def _conjunction(g: Graph, guard: Guard) -> Expr:
    true = g.node("const", attr=True, type=BOOL)
    literals = [condition if holds else g.node("arith.xori", condition, true, type=BOOL) for condition, holds in guard]
    found = literals[0]
    for literal in literals[1:]:
        found = g.both(found, literal)
    return found


def adjoints(g: Graph, roots: Sequence[tuple[Expr, Expr]]) -> dict[Expr, Expr]:
    """For (root, adjoint) pairs, the adjoint of every leaf that they depend on: a shared intermediate is counted once.

    What a select does not choose gets 0, and so does everything below it: where a derivative there may not be finite, the
    select is applied after it, since 0 times that would be NaN.
    """
    of: dict[Expr, _Shares] = {}
    for root, adjoint in roots:
        of.setdefault(root, _Shares()).add(g, (), adjoint)
    # Arguments are made before what uses them, so descending numbers are a reverse topological order.
    order = sorted(nodes(*[root for root, _ in roots]), key=lambda n: -n.id)
    steep = _Steep(order)
    for n in order:
        if n not in of or n.is_leaf:
            continue
        rule = _rule(g, n)
        guard, adjoint = of[n].guarded(g) if n in steep else ((), of[n].total(g))
        for argument, partial in zip(n.args, rule, strict=True):
            if partial is None or argument.is_const or argument.type != FLOAT:
                continue
            shares = of.setdefault(argument, _Shares())
            if partial.condition is None:
                shares.add(g, guard, partial.scaled(g, adjoint))
            elif argument in steep:
                literal = (partial.condition, partial.chosen)
                shares.add(g, guard if literal in guard else (*guard, literal), partial.scaled(g, adjoint))
            else:
                shares.add(g, guard, partial.times(g, adjoint))
    return {n: shares.total(g) for n, shares in of.items() if n.is_leaf and not n.is_const}


def tangent(g: Graph, root: Expr, of_leaves: Mapping[Expr, Expr], memo: Tangents | None = None) -> Expr | None:
    """The tangent of `root` where those of leaves are given; None for zero. `memo` serves several roots and the same leaves.

    As in reverse mode, what a select makes 0 stays 0 in a function whose derivative may be infinite.
    """
    memo = {} if memo is None else memo
    for n in sorted(nodes(root, known=memo)):
        shares = _Shares()
        if n in of_leaves:
            shares.add(g, (), of_leaves[n])
        moved = [(i, memo[a]) for i, a in enumerate(n.args) if memo[a].terms]
        rule = _rule(g, n) if moved else []
        for i, of_argument in moved:
            partial = rule[i]
            if partial is None:
                continue
            carried = n.op not in _SAFE and n.op != "arith.mulf" and not (n.op == "arith.divf" and i == 0)
            guard, x = of_argument.guarded(g) if carried else ((), of_argument.total(g))
            if partial.condition is None:
                shares.add(g, guard, partial.scaled(g, x))
            else:
                shares.add(g, (*guard, (partial.condition, partial.chosen)), partial.scaled(g, x))
        memo[n] = shares
    return memo[root].total(g) if memo[root].terms else None
