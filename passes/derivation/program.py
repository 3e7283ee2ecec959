"""The online program of a plan: what the pieces `attn.init`, `step`, `merge` and `finalize` compute, as expressions.

Leaves: in a step the scores and the "old" states; in a merge the states "a" and "b"; in finalize the accumulators "acc"
and the "old" states. A "reduce" node reduces over the present keys of the block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from attn_mlir.passes.derivation.absorb import PLAIN
from attn_mlir.passes.derivation.centre import moved
from attn_mlir.passes.derivation.expr import BOOL, FLOAT, Expr, leaves
from attn_mlir.passes.derivation.guards import breaks_identity
from attn_mlir.passes.derivation.normal import Normal
from attn_mlir.passes.derivation.plan import Moment, RowPlan, used_states
from attn_mlir.passes.derivation.sums import Mono, Sum, mono_product, shared_powers
from attn_mlir.passes.derivation.weights import Accumulator

LOWEST = -3.4028234663852886e38
LOWEST_DOUBLE = -1.7976931348623157e308


@dataclass(frozen=True)
class PassUpdate:
    """One pass's update; `weights` and `scales` only in the last."""

    states: list[Expr]
    weights: list[Expr]
    scales: list[Expr]


@dataclass(frozen=True)
class Merge:
    """The merged states, and the factors of both sides' accumulators."""

    states: list[Expr]
    scales_a: list[Expr]
    scales_b: list[Expr]


@dataclass(eq=False)
class OnlineRow:
    """Everything `attn.online` holds; `reductions` are their final values, for checking."""

    plan: RowPlan
    names: list[str] = field(default_factory=list)
    init: list[Expr] = field(default_factory=list)
    steps: list[PassUpdate] = field(default_factory=list)
    merge: Merge | None = None
    o: list[Expr] = field(default_factory=list)
    outputs: list[Expr] = field(default_factory=list)
    reductions: dict[int, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph = self.plan.row.graph
        self._guarded: dict[Moment | None, bool] = {}
        self.names = [m.name for m in self.plan.moments]
        self.init = [self.identity(m.kind) for m in self.plan.moments]
        self.steps = [self._step(kv_pass) for kv_pass in range(1, self.plan.kv_passes + 1)]
        if self.plan.kv_passes == 1:
            self.merge = self._merge()
            self._carry_parameters()
        self._finalize()

    def identity(self, kind: str) -> Expr:
        lowest = LOWEST_DOUBLE if self.plan.row.double else LOWEST
        return self.graph.const({"sum": 0.0, "max": lowest, "min": -lowest}[kind])

    def at(self, node: Expr, states: Sequence[Expr]) -> Expr:
        """`node` with its reductions and states expressed by `states`."""
        replaced = self.plan.define(node)
        return self.graph.substitute(replaced, lambda n: states[int(n.attr)] if n.op == "state" else None)  # type: ignore[call-overload]

    def side(self, op: str, count: int | None = None) -> list[Expr]:
        return [self.graph.leaf(op, i) for i in range(len(self.names) if count is None else count)]

    def _step(self, kv_pass: int) -> PassUpdate:
        old = self.side("old")
        new = list(old)
        for k, m in enumerate(self.plan.moments):
            if m.kv_pass == kv_pass:
                block = self.graph.reduce(m.kind, self.at(m.weight, new))
                new[k] = self._combined(m.kind, self._carried(m, k, old, new), block)
        if kv_pass < self.plan.kv_passes:
            return PassUpdate(new, [], [])
        weights = [self._weight(group, new) for group in self.plan.accumulators]
        return PassUpdate(new, weights, [self._accumulator_scale(group, old, new) for group in self.plan.accumulators])

    def _weight(self, group: Accumulator, new: Sequence[Expr]) -> Expr:
        weight = self.at(group.weight, new)
        return weight if group.norm is None else self.graph.mul(weight, self.graph.div(self.graph.const(1.0), self.at(group.norm, new)))

    def _accumulator_scale(self, group: Accumulator, old: Sequence[Expr], new: Sequence[Expr]) -> Expr:
        scale = self._scale(group.shift, old, new)
        if group.norm is None:
            return scale
        # In this order: the largest weight was rescaled, too, so that the quotient is at most 2, but that of the norms may overflow.
        return self.graph.div(self.graph.mul(self.at(group.norm, old), scale), self.at(group.norm, new))

    def _combined(self, kind: str, x: Expr, y: Expr) -> Expr:
        make: dict[str, Callable[[Expr, Expr], Expr]] = {"sum": self.graph.add, "max": self.graph.maximum, "min": self.graph.minimum}
        return make[kind](x, y)

    def _carried(self, m: Moment, k: int, old: Sequence[Expr], new: Sequence[Expr]) -> Expr:
        """What state k of one side is worth once the other reductions have moved to their new values."""
        g, state = self.graph, old[k]
        if m.centre is not None:
            distance = g.sub(self.at(m.centre.c, old), self.at(m.centre.c, new))
            lower = tuple(self.at(n, old) for n in m.centre.lower)
            value = moved(g, len(lower), distance, lower, state)
            return self._guard(value, g.const(0.0), [m.centre.c, *m.centre.lower], old, m)
        if not (m.shift[0] or m.shift[1]):
            return state
        scale = self._scale(m.shift, old, new)
        if m.kind == "sum":
            return g.mul(state, scale)
        identity = self.identity(m.kind)
        return g.select(g.equal(state, identity), identity, g.mul(state, scale))

    def _scale(self, shift: tuple[Sum, Sum], old: Sequence[Expr], new: Sequence[Expr]) -> Expr:
        g = self.graph
        factor = g.const(1.0)
        for op, exponent in zip(("math.exp", "math.exp2"), shift, strict=True):
            if exponent:
                factor = g.mul(factor, g.unary(op, self._change(exponent, old, new)))
        if factor.is_const:
            return factor
        roots = [n for s in shift for m in s for n, _ in m.powers]
        return self._guard(factor, g.const(0.0), roots, old, None)

    def _change(self, exponent: Sum, old: Sequence[Expr], new: Sequence[Expr]) -> Expr:
        """exponent(new) - exponent(old), as differences of the values that change: finite where their products are not."""
        g, nf = self.graph, Normal(self.graph, frozenset(), self.plan.signs)
        total = g.const(0.0)
        for mono, c in sorted(exponent.items()):
            changing = [n for n, _ in mono.powers if self.at(n, old) is not self.at(n, new)]
            whole = nf.node_of_mono(mono, abs(c))
            before, after = self.at(whole, old), self.at(whole, new)
            if len(changing) == 1 and dict(mono.powers)[changing[0]] == 1:
                rest = Mono(tuple((n, p) for n, p in mono.powers if n is not changing[0]), mono.e, mono.e2)
                outer = self.at(nf.node_of_mono(rest, abs(c)), new)
                before, after = self.at(changing[0], old), self.at(changing[0], new)
                difference = g.mul(outer, g.sub(after, before) if c > 0 else g.sub(before, after))
            else:
                difference = g.sub(after, before) if c > 0 else g.sub(before, after)
            total = g.add(total, difference)
        return total

    def _guard(self, value: Expr, fallback: Expr, roots: Sequence[Expr], old: Sequence[Expr], owner: Moment | None) -> Expr:
        """`value`, or `fallback` for a side without keys, where `value` would not be finite."""
        states = sorted(used_states(*[self.plan.define(n) for n in roots]))
        stepping = all(n.op == "old" for n in old)
        key = (owner, tuple(roots))
        if stepping:
            identities = {self.graph.leaf("old", i): self.identity(m.kind) for i, m in enumerate(self.plan.moments)}
            self._guarded[key] = breaks_identity(self.graph, value, identities, self.plan.row.double)  # type: ignore[index]
        if not self._guarded[key]:  # type: ignore[index]
            return value
        return self.graph.select(self._untouched(states, old), fallback, value)

    def _untouched(self, states: Sequence[int], old: Sequence[Expr]) -> Expr:
        """True for a side that has seen no key. One count or extremum tells; else all sums are still zero."""
        g, moments = self.graph, self.plan.moments
        telling = [k for k in states if moments[k].kind == "sum" and moments[k].weight.is_const]
        telling = telling or [k for k in states if moments[k].kind != "sum"]
        test: Expr | None = None
        for k in telling[:1] or states:
            same = g.equal(old[k], self.identity(moments[k].kind))
            test = same if test is None else g.both(test, same)
        return g.node("const", attr=False, type="i1") if test is None else test

    def _merge(self) -> Merge:
        a, b = self.side("a"), self.side("b")
        new: list[Expr] = []
        for k, m in enumerate(self.plan.moments):
            known = new + a[len(new) :]
            new.append(self._combined(m.kind, self._carried(m, k, a, known), self._carried(m, k, b, known)))
        groups = self.plan.accumulators
        return Merge(new, *[[self._accumulator_scale(g, side, new) for g in groups] for side in (a, b)])

    def _carry_parameters(self) -> None:
        """Merging knows no head or position: what it needs of them travels as states, the same on both sides."""
        merge = self.merge
        if merge is None:
            return
        carried: dict[Expr, Expr] = {}
        parts = (merge.states, merge.scales_a, merge.scales_b)
        self.merge = Merge(*[[self.graph.substitute(n, lambda x: self._swap(x, carried)) for n in part] for part in parts])
        for node, leaf in carried.items():
            old = self.graph.leaf("old", len(self.names))
            self.names.append(self.plan.row.params.names.get(node, f"carried{len(self.names)}"))
            self.init.append(node if node.type == FLOAT else self._indicator(node))
            self.merge.states.append(leaf)
            for step in self.steps:
                step.states.append(old)

    def _swap(self, node: Expr, carried: dict[Expr, Expr]) -> Expr | None:
        """A state for the largest expressions of the position alone; conditions travel as 1 or 0."""
        below = leaves(node)
        if any(n.op in ("a", "b") for n in below) or not any(n.op == "param" and self.plan.row.params.uses_position(n) for n in below):
            return None
        leaf = carried.setdefault(node, self.graph.leaf("a", len(self.names) + len(carried)))
        return leaf if node.type == FLOAT else self.graph.node("arith.cmpf", leaf, self.graph.const(0.5), attr=2, type=BOOL)

    def _indicator(self, node: Expr) -> Expr:
        return self.graph.select(node, self.graph.const(1.0), self.graph.const(0.0))

    def _finalize(self) -> None:
        states = self.side("old", len(self.plan.moments))
        self.o = [self.at(self._output(terms), states) for terms in self.plan.terms]
        self.outputs = [self.at(n, states) for n in self.plan.row.outputs]
        self.reductions = {i: self.at(self.plan.row.red(i), states) for i in self.plan.definitions}

    def _output(self, terms: Sequence[tuple[int, Expr]]) -> Expr:
        """sum_k C_k acc_k with the factors that all C_k share applied once, a division as a division."""
        g, nf = self.graph, Normal(self.graph, frozenset(), self.plan.signs)
        # Exponentials that outputs and their normalisers have in common cancel once the latter are written out.
        whole = self.plan.form.exponents != PLAIN
        coefficients = [nf.of(self.plan.define(coefficient) if whole else coefficient) for _, coefficient in terms]
        shared = shared_powers(coefficients)
        inverse = Mono(tuple((n, -p) for n, p in shared))
        inner = g.const(0.0)
        norms = [self.plan.accumulators[i].norm for i, _ in terms]
        alone = norms[0] if len(terms) == 1 else None
        for (i, _), c in zip(terms, coefficients, strict=True):
            rest = {mono_product(m, inverse): factor for m, factor in c.items()}
            negative = all(factor < 0 for factor in rest.values())
            norm = self.plan.accumulators[i].norm
            acc = g.leaf("acc", i) if norm is None or alone is not None else g.mul(g.leaf("acc", i), norm)
            term = g.mul(acc, nf.node_of({m: -factor if negative else factor for m, factor in rest.items()}))
            inner = g.sub(inner, term) if negative else g.add(inner, term)
        above = nf.node_of_mono(Mono(tuple((n, p) for n, p in shared if p > 0)))
        if alone is not None:
            above = g.mul(above, alone)
        below = nf.node_of_mono(Mono(tuple((n, -p) for n, p in shared if p < 0)))
        if above.is_const and above.attr == 1.0:
            return g.div(inner, below)
        return g.mul(inner, g.div(above, below))
