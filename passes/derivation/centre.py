"""Central moments: sum_j (x_j - c)^k about a centre c that moves, e.g. the running mean.

Raw moments of (x - c)^2 cancel in f32 when c is large. About the centre they do not; when it moves by d they follow
the binomial theorem (for k = 2 this is the update of Chan, Golub and LeVeque).
"""

from dataclasses import dataclass

from attn_mlir.passes.derivation.expr import Expr, Graph, nodes
from attn_mlir.passes.derivation.normal import Normal

MAX_ORDER = 4
_BINOMIAL = {2: (1.0, 2.0, 1.0), 3: (1.0, 3.0, 3.0, 1.0), 4: (1.0, 4.0, 6.0, 4.0, 1.0)}


@dataclass(frozen=True, eq=False)
class Centre:
    """`c` as a function of reductions, `lower` the moments of order 0..k-1 about it as functions of states and reductions."""

    c: Expr
    lower: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class CentredMoments:
    """sum_j g = sum_k coefficients[k] sum_j (x_j - c)^k."""

    x: Expr
    c: Expr
    coefficients: dict[int, Expr]


def centred_moments(nf: Normal, value: Expr) -> CentredMoments | None:
    """`value` as a polynomial in some x - c, where that leaves no other dependence on s and a power of 2 or more."""
    for candidate in sorted(nodes(value)):
        if candidate.op == "arith.subf" and _is_centred(nf, *candidate.args):
            found = _polynomial(nf, value, candidate)
            if found is not None:
                return CentredMoments(candidate.args[0], candidate.args[1], found)
    return None


def _is_centred(nf: Normal, x: Expr, c: Expr) -> bool:
    return x.varies and not x.reds & nf.running and not c.varies and bool(c.reds & nf.running)


def _polynomial(nf: Normal, value: Expr, difference: Expr) -> dict[int, Expr] | None:
    g, u = nf.graph, nf.graph.leaf("u")
    replaced = g.substitute(value, lambda n: u if n is difference else None)
    coefficients: dict[int, Expr] = {}
    for mono, c in Normal(g, nf.running, nf.signs).of(replaced).items():
        order = dict(mono.powers).get(u, 0.0)
        rest = mono._replace(powers=tuple((n, p) for n, p in mono.powers if n is not u))
        if rest.varies or order not in range(MAX_ORDER + 1):
            return None
        factor = nf.node_of_mono(rest, c)
        known = coefficients.get(int(order))
        coefficients[int(order)] = factor if known is None else g.add(known, factor)
    return coefficients if max(coefficients, default=0) >= 2 else None


def moved(g: Graph, order: int, distance: Expr, lower: tuple[Expr, ...], itself: Expr) -> Expr:
    """The moment of `order` about c - `distance`, from those about c: sum_i binomial(order, i) distance^(order-i) M_i."""
    total = itself
    power = g.const(1.0)
    for i in range(order - 1, -1, -1):
        power = g.mul(power, distance)
        if not (lower[i].is_const and lower[i].attr == 0.0):
            total = g.add(total, g.mul(g.mul(g.const(_BINOMIAL[order][i]), power), lower[i]))
    return total
