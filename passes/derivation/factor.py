"""Factors an expression as sum_k C_k(r) w_k(s, r), where w_k changes with r only by a factor exp(shift_k(r))."""

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.passes.derivation.absorb import BOUNDED, OWN, PLAIN, absorbed, vanishes
from attn_mlir.passes.derivation.expr import Expr, text
from attn_mlir.passes.derivation.normal import Normal
from attn_mlir.passes.derivation.sums import Mono, Sum, exponent_varies, frozen, invariant_powers, mono_product, plus

Exponent = tuple[tuple[Mono, float], ...]


@dataclass(frozen=True, eq=False)
class FactorGroup:
    """One product: `coefficient` applied once at the end, `weight` summed, `shift` (exp, exp2) what rescales the sum."""

    weight: Expr
    coefficient: Expr
    shift: tuple[Sum, Sum]

    @property
    def shifts(self) -> bool:
        return bool(self.shift[0] or self.shift[1])


def factorise(nf: Normal, node: Expr, names: Mapping[Expr, str], exponents: str = PLAIN) -> list[FactorGroup] | str:
    """The groups of `node`, fewest first found, or the reason why it does not separate; `exponents` as in a `CarriedForm`."""
    if not node.varies and not node.reds & nf.running:
        return [FactorGroup(nf.graph.const(1.0), node, ({}, {}))]
    buckets: dict[tuple[Mono, tuple[object, object]], Sum] = {}
    for mono, c in nf.of(node).items():
        halves = nf.split(mono)
        if halves is None:
            return f"{text(nf.node_of_mono(_mixed_part(nf, mono)), names)} does not separate s from the reductions"
        weight, late, shift = _place_exponents(*halves) if exponents == PLAIN else (*halves, ((), ()))
        buckets.setdefault((late, shift), {})[weight] = buckets.get((late, shift), {}).get(weight, 0.0) + c
    groups = [_group(nf, late, shift, weights, exponents) for (late, shift), weights in buckets.items()]
    return _merged(nf, groups)


def _mixed_part(nf: Normal, mono: Mono) -> Mono:
    for node, p in mono.powers:
        if nf.mixed(node):
            return Mono(((node, p),))
    return Mono((), mono.e, mono.e2)


def _place_exponents(g: Mono, h: Mono) -> tuple[Mono, Mono, tuple[object, object]]:
    """Exponents of r stay with an exponent of s (that keeps it small); without one they are plain factors."""
    inner: list[tuple[tuple[Mono, float], ...]] = []
    outer: list[tuple[tuple[Mono, float], ...]] = []
    shift: list[tuple[tuple[Mono, float], ...]] = []
    for of_s, of_r in ((g.e, h.e), (g.e2, h.e2)):
        together = frozen(plus(dict(of_s), dict(of_r)))
        varies = exponent_varies(of_s)
        inner.append(together if varies else ())
        outer.append(() if varies else together)
        shift.append(of_r if varies else ())
    return Mono(g.powers, inner[0], inner[1]), Mono(h.powers, outer[0], outer[1]), (shift[0], shift[1])


def _group(nf: Normal, late: Mono, shift: tuple[object, object], weights: Sum, exponents: str) -> FactorGroup:
    fixed = invariant_powers(weights)
    inverse = Mono(tuple((n, -p) for n, p in fixed))
    rest = {mono_product(m, inverse): c for m, c in weights.items()}
    factors = set(rest.values())
    scale = factors.pop() if len(factors) == 1 else 1.0
    weight = nf.node_of({m: c / scale for m, c in rest.items()})
    if exponents not in (PLAIN, OWN) and weight.varies:
        weight, late, shift = _kept(nf, weight, late, exponents == BOUNDED and not vanishes(nf.graph, weight))
    coefficient = nf.node_of_mono(mono_product(late, Mono(fixed)), scale)
    return FactorGroup(weight, coefficient, (dict(shift[0]), dict(shift[1])))  # type: ignore[call-overload]


def _kept(nf: Normal, weight: Expr, late: Mono, bounded: bool) -> tuple[Expr, Mono, tuple[object, object]]:
    """The exponents of `late` in the terms of `weight`; with `bounded` no more of them than makes terms smaller."""
    g = nf.graph
    left: list[Exponent] = [(), ()]
    shift: list[Exponent] = [(), ()]
    for i, (op, exponent) in enumerate((("math.exp", late.e), ("math.exp2", late.e2))):
        if not exponent:
            continue
        whole = nf.node_of(dict(exponent))
        inner = exponent
        if bounded and whole.reds & nf.running:
            smaller, larger = g.minimum(whole, g.const(0.0)), g.maximum(whole, g.const(0.0))
            inner, left[i] = ((Mono(((smaller, 1.0),)), 1.0),), ((Mono(((larger, 1.0),)), 1.0),)
        weight = absorbed(g, weight, op, nf.node_of(dict(inner)))
        shift[i] = tuple(part for part in inner if part[0].reds & nf.running)
    return weight, Mono(late.powers, left[0], left[1]), (shift[0], shift[1])


def _merged(nf: Normal, groups: list[FactorGroup]) -> list[FactorGroup]:
    """Groups with one weight need one sum."""
    by_weight: dict[Expr, FactorGroup] = {}
    for group in groups:
        known = by_weight.get(group.weight)
        if known is None:
            by_weight[group.weight] = group
        else:
            by_weight[group.weight] = FactorGroup(group.weight, nf.graph.add(known.coefficient, group.coefficient), group.shift)
    return list(by_weight.values())
