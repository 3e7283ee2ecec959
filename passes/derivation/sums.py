"""Sums of monomials c * x^a * y^b * exp(A) * exp2(B): the values of the normal form."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from attn_mlir.passes.derivation.expr import Expr

MAX_TERMS = 64


class Mono(NamedTuple):
    """Product of powers of atoms, times exp(e), times exp2(e2); both exponents are sums as sorted (monomial, coefficient)."""

    powers: tuple[tuple[Expr, float], ...] = ()
    e: tuple[tuple["Mono", float], ...] = ()
    e2: tuple[tuple["Mono", float], ...] = ()

    @property
    def varies(self) -> bool:
        return any(n.varies for n, _ in self.powers) or exponent_varies(self.e) or exponent_varies(self.e2)

    @property
    def reds(self) -> frozenset[int]:
        inner = [n.reds for n, _ in self.powers] + [m.reds for m, _ in self.e + self.e2]
        return frozenset().union(*inner)


ONE = Mono()
Sum = dict[Mono, float]


def exponent_varies(exponent: tuple[tuple[Mono, float], ...]) -> bool:
    return any(m.varies for m, _ in exponent)


def frozen(sum_: Sum) -> tuple[tuple[Mono, float], ...]:
    return tuple(sorted((m, c) for m, c in sum_.items() if c != 0))


def mono_product(x: Mono, y: Mono) -> Mono:
    powers = dict(x.powers)
    for node, power in y.powers:
        powers[node] = powers.get(node, 0) + power
    merged = tuple(sorted((n, p) for n, p in powers.items() if p != 0))
    return Mono(merged, frozen(plus(dict(x.e), dict(y.e))), frozen(plus(dict(x.e2), dict(y.e2))))


def plus(x: Sum, y: Sum, factor: float = 1.0) -> Sum:
    out = dict(x)
    for mono, c in y.items():
        out[mono] = out.get(mono, 0.0) + factor * c
    return {m: c for m, c in out.items() if c != 0}


def times(x: Sum, y: Sum) -> Sum | None:
    if len(x) * len(y) > MAX_TERMS:
        return None
    out: Sum = {}
    for m, c in x.items():
        for n, d in y.items():
            out = plus(out, {mono_product(m, n): c * d})
    return out


def invariant_powers(monos: Iterable[Mono]) -> tuple[tuple[Expr, float], ...]:
    """The factors without the score that all of `monos` share."""
    shared: set[tuple[Expr, float]] | None = None
    for mono in monos:
        here = {(n, p) for n, p in mono.powers if not n.varies}
        shared = here if shared is None else shared & here
    return tuple(sorted(shared or ()))


def shared_powers(factors: Sequence[Sum]) -> tuple[tuple[Expr, float], ...]:
    """The powers in all of `factors`, where each is one monomial: of 1 / l and x / (l l) it is 1 / l."""
    if not factors or any(len(factor) != 1 for factor in factors):
        return ()
    powers = [dict(mono.powers) for factor in factors for mono in factor]
    shared = []
    for node in sorted(set[Expr].intersection(*[set(p) for p in powers])):
        of_node = [p[node] for p in powers]
        if all(p > 0 for p in of_node) or all(p < 0 for p in of_node):
            shared.append((node, min(of_node, key=abs)))
    return tuple(shared)
