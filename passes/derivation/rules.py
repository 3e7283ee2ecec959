"""How each op is brought into normal form. A rule returns None where it knows nothing: the value then stays an atom."""

import math
from collections.abc import Callable
from typing import Protocol

from attn_mlir.passes.derivation.expr import Expr, Graph
from attn_mlir.passes.derivation.signs import Signs
from attn_mlir.passes.derivation.sums import ONE, Mono, Sum, frozen, plus, times
from attn_mlir.passes.order import deepest_first

MAX_POWER = 4


class Forms(Protocol):
    """The normal forms of values, as rules ask for those of arguments: `normal.Normal`, which says what each means."""

    graph: Graph
    running: frozenset[int]
    signs: Signs
    expand: bool

    def mixed(self, node: Expr) -> bool: ...
    def of(self, node: Expr) -> Sum: ...
    def split(self, mono: Mono) -> tuple[Mono, Mono] | None: ...
    def common(self, sum_: Sum) -> tuple[Mono, Sum] | None: ...
    def positive(self, mono: Mono, strictly: bool = True) -> bool: ...
    def node_of(self, sum_: Sum) -> Expr: ...


Rule = Callable[[Forms, Expr], Sum | None]


def _atom(node: Expr, power: float = 1.0) -> Sum:
    return {Mono(((node, power),)): 1.0}


def _const(nf: Forms, n: Expr) -> Sum:
    """Only powers of two multiply and divide exactly; any other constant stays as its author wrote it."""
    value = float(n.attr)  # type: ignore[arg-type]
    if value == 0.0:
        return {}
    if abs(math.frexp(value)[0]) == 0.5:
        return {ONE: value}
    return {Mono(((nf.graph.const(abs(value)), 1.0),)): math.copysign(1.0, value)}


def _add(nf: Forms, n: Expr) -> Sum | None:
    if not (nf.mixed(n) or nf.expand):
        return None
    return plus(nf.of(n.args[0]), nf.of(n.args[1]), -1.0 if n.op == "arith.subf" else 1.0)


def _mul(nf: Forms, n: Expr) -> Sum | None:
    return times(nf.of(n.args[0]), nf.of(n.args[1]))


def _neg(nf: Forms, n: Expr) -> Sum:
    return {m: -c for m, c in nf.of(n.args[0]).items()}


def _div(nf: Forms, n: Expr) -> Sum | None:
    below = power(nf, n.args[1], -1.0)
    return None if below is None else times(nf.of(n.args[0]), below)


def _exp(nf: Forms, n: Expr) -> Sum:
    """exp(A - log x) = exp(A) / x: what only divides needs no rescaling."""
    natural = n.op == "math.exp"
    exponent: Sum = {}
    factors: Sum | None = {ONE: 1.0}
    for mono, c in _addends(nf, n.args[0]).items():
        inverse = _argument_of_log(mono, "math.log" if natural else "math.log2")
        if inverse is None or factors is None:
            exponent[mono] = c
        else:
            factors = times(factors, power(nf, inverse, c) or _atom(inverse, c))
    whole = frozen(exponent)
    return times({Mono((), whole, ()) if natural else Mono((), (), whole): 1.0}, factors or {}) or {}


def _addends(nf: Forms, n: Expr) -> Sum:
    """The terms of an exponent: sums are taken apart wherever reductions take part."""
    found: dict[Expr, Sum] = {}

    def below(n: Expr) -> tuple[Expr, ...]:
        return n.args if n.op == "arith.negf" or (n.op in ("arith.addf", "arith.subf") and n.reds & nf.running) else ()

    for a in deepest_first(n, found, below):
        parts = [found[x] for x in below(a)]
        match len(parts):
            case 2:
                found[a] = plus(parts[0], parts[1], -1.0 if a.op == "arith.subf" else 1.0)
            case 1:
                found[a] = {m: -c for m, c in parts[0].items()}
            case _:
                found[a] = nf.of(a)
    return found[n]


def _argument_of_log(mono: Mono, op: str) -> Expr | None:
    if mono.e or mono.e2 or len(mono.powers) != 1 or mono.powers[0][1] != 1:
        return None
    node = mono.powers[0][0]
    return node.args[0] if node.op == op and not node.varies and node.reds else None


def _powf(nf: Forms, n: Expr) -> Sum | None:
    return power(nf, n.args[0], float(n.args[1].attr)) if n.args[1].is_const else None  # type: ignore[arg-type]


def power(nf: Forms, base: Expr, k: float) -> Sum | None:
    """base^k: of one monomial factor by factor, of a sum multiplied out only where that separates something."""
    whole = k == int(k)
    if not (whole or nf.mixed(base) or base.op in ("math.exp", "math.exp2")):
        return _atom(base, k)
    sum_ = nf.of(base)
    if not sum_:
        return None
    if len(sum_) == 1:
        ((mono, c),) = sum_.items()
        raised = _power_of_mono(nf, mono, k) if whole or c > 0 else None
        if raised is not None:
            return {raised: c**k}
    if not nf.mixed(base):
        return _atom(base, k)
    if whole and 2 <= k <= MAX_POWER:
        out: Sum | None = sum_
        for _ in range(int(k) - 1):
            out = None if out is None else times(out, sum_)
        return out
    shared = nf.common(sum_)
    raised = None if shared is None else _power_of_mono(nf, shared[0], k)
    return None if shared is None or raised is None else times({raised: 1.0}, _atom(nf.node_of(shared[1]), k))


def _power_of_mono(nf: Forms, mono: Mono, k: float) -> Mono | None:
    """(x^p exp(A))^k; for fractional k only of factors that cannot be negative, where (x^2)^(1/2) is |x|."""
    scaled = [frozen({m: k * d for m, d in exponent}) for exponent in (mono.e, mono.e2)]
    if k == int(k):
        return Mono(tuple((n, p * k) for n, p in mono.powers), *scaled)
    powers = []
    for n, p in mono.powers:
        if nf.signs.nonnegative(n):
            powers.append((n, p * k))
        elif p % 2 == 0:
            powers.append((nf.graph.unary("math.absf", n), p * k))
        else:
            return None
    return Mono(tuple(sorted(powers)), *scaled)


def _sqrt(nf: Forms, n: Expr) -> Sum | None:
    return power(nf, n.args[0], 0.5 if n.op == "math.sqrt" else -0.5)


def _abs(nf: Forms, n: Expr) -> Sum | None:
    """|H G| = |H| |G|."""
    shared = nf.common(nf.of(n.args[0])) if nf.mixed(n) else None
    if shared is None:
        return None
    h, g = shared
    outer = Mono(tuple(sorted((nf.graph.unary("math.absf", x), p) for x, p in h.powers)), h.e, h.e2)
    return times({outer: 1.0}, _atom(nf.graph.unary("math.absf", nf.node_of(g))))


def _log(nf: Forms, n: Expr) -> Sum | None:
    """log(H G) = log H + log G where H is positive; G then is wherever the logarithm exists."""
    if not nf.mixed(n):
        return None
    shared = nf.common(nf.of(n.args[0]))
    if shared is None or not nf.positive(shared[0]):
        return None
    h, g = shared
    out: Sum = {}
    for x, p in h.powers:
        out = plus(out, _atom(nf.graph.unary("math.log", x)), p)
    out = plus(out, dict(h.e))
    (inner, c), *more = g.items()
    if not more and c == 1.0 and not inner.powers and not inner.e2:
        return None if h.e2 else plus(out, dict(inner.e))
    return None if h.e2 else plus(out, _atom(nf.graph.unary("math.log", nf.node_of(g))))


def _extremum(nf: Forms, n: Expr) -> Sum | None:
    """max(H x, H y) = H max(x, y) for positive H, and max(x + K, y + K) = max(x, y) + K."""
    if not nf.mixed(n):
        return None
    x, y = nf.of(n.args[0]), nf.of(n.args[1])
    by_factor = _common_factor(nf, n.op, x, y)
    return _common_addend(nf, n.op, x, y) if by_factor is None else by_factor


def _common_factor(nf: Forms, op: str, x: Sum, y: Sum) -> Sum | None:
    shared = [nf.common(side) for side in (x, y) if side]
    if any(s is None for s in shared) or len({s[0] for s in shared if s}) != 1 or shared[0] is None:
        return None
    h = shared[0][0]
    if not nf.positive(h):
        return None
    rests = [nf.common(side)[1] if side else {} for side in (x, y)]  # type: ignore[index]
    return times({h: 1.0}, _atom(nf.graph.node(op, *[nf.node_of(r) for r in rests])))


def _common_addend(nf: Forms, op: str, x: Sum, y: Sum) -> Sum | None:
    def is_addend(mono: Mono) -> bool:
        return not mono.varies and bool(mono.reds & nf.running)

    addend = {m: c for m, c in x.items() if is_addend(m)}
    rests = [{m: c for m, c in side.items() if not is_addend(m)} for side in (x, y)]
    if addend != {m: c for m, c in y.items() if is_addend(m)} or any(m.reds & nf.running for r in rests for m in r):
        return None
    return plus(addend, _atom(nf.graph.node(op, *[nf.node_of(r) for r in rests])))


def _select(nf: Forms, n: Expr) -> Sum | None:
    """where(c, sum G H, sum G' H') = sum where(c, G, 0) H + sum where(c, 0, G') H', for a condition on s alone."""
    condition, zero = n.args[0], nf.graph.const(0.0)
    if not nf.mixed(n) or condition.reds & nf.running:
        return None
    parts: dict[Mono, list[Sum]] = {}
    for side in (0, 1):
        for mono, c in nf.of(n.args[1 + side]).items():
            halves = nf.split(mono)
            if halves is None:
                return None
            g = Mono(halves[0].powers)
            h = Mono(halves[1].powers, *[frozen(plus(dict(a), dict(b))) for a, b in zip(halves[0][1:], halves[1][1:], strict=True)])
            parts.setdefault(h, [{}, {}])[side][g] = c
    out: Sum = {}
    for h, (x, y) in parts.items():
        chosen = nf.graph.select(condition, nf.node_of(x) if x else zero, nf.node_of(y) if y else zero)
        product = times({h: 1.0}, _atom(chosen))
        out = plus(out, product or {})
    return out


ALWAYS = frozenset({"arith.mulf", "arith.divf", "arith.negf", "math.sqrt", "math.rsqrt", "math.powf"})
"""Ops whose rules look at the arguments' normal forms wherever they stand."""

RULES: dict[str, Rule] = {
    "const": _const,
    "arith.addf": _add,
    "arith.subf": _add,
    "arith.mulf": _mul,
    "arith.divf": _div,
    "arith.negf": _neg,
    "math.exp": _exp,
    "math.exp2": _exp,
    "math.powf": _powf,
    "math.sqrt": _sqrt,
    "math.rsqrt": _sqrt,
    "math.absf": _abs,
    "math.log": _log,
    "arith.maximumf": _extremum,
    "arith.minimumf": _extremum,
    "arith.select": _select,
}
