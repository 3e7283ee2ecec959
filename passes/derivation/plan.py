"""Decides how every reduction and the outputs are computed: in which pass over keys, from which states."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from attn_mlir.passes.derivation.absorb import SCALED, USUAL, CarriedForm
from attn_mlir.passes.derivation.centre import Centre, CentredMoments, centred_moments
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.expr import Expr, leaves, text
from attn_mlir.passes.derivation.factor import FactorGroup, factorise
from attn_mlir.passes.derivation.normal import Normal
from attn_mlir.passes.derivation.relative import Largest, scaled, shifted
from attn_mlir.passes.derivation.row import Row
from attn_mlir.passes.derivation.signs import Signs
from attn_mlir.passes.derivation.sums import Sum
from attn_mlir.passes.derivation.weights import Accumulator, accumulators_of, as_written, factorise_weights, verbatim
from attn_mlir.passes.order import deepest_first

OUTPUT = -1
MAX_MOMENTS = 8


@dataclass(frozen=True, eq=False)
class Moment:
    """A row state: reduce_j weight(s_j, r). It changes by exp(shift) (and exp2) when the reductions in there move."""

    kind: str
    weight: Expr
    shift: tuple[Sum, Sum]
    kv_pass: int
    name: str
    centre: Centre | None = None


@dataclass(frozen=True)
class ReductionRule:
    """How one reduction, or one weight, is computed; `detail` is for people."""

    kv_pass: int
    method: str
    detail: str


@dataclass(eq=False)
class RowPlan:
    """Moments (states) in order, the reductions as functions of them, and the accumulators.

    `terms` says for each output which accumulators it sums, and with which factor at the end. Decision i is that of
    reduction i, OUTPUT - w that of weight w.
    """

    row: Row
    max_accumulators: int = 2
    distrusted: frozenset[int] = frozenset()
    form: CarriedForm = USUAL
    moments: list[Moment] = field(default_factory=list)
    decisions: dict[int, ReductionRule] = field(default_factory=dict)
    definitions: dict[int, Expr] = field(default_factory=dict)
    accumulators: list[Accumulator] = field(default_factory=list)
    terms: list[list[tuple[int, Expr]]] = field(default_factory=list)
    kv_passes: int = 1
    multiplied: set[int] = field(default_factory=set)
    """The reductions that are sums of several moments, since differences in them were multiplied out."""
    _defined: dict[int, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.signs = Signs(self.row)
        needed = self._needed()
        for index in sorted(needed):
            self._place_reduction(index)
        self._place_output()

    def state(self, moment: Moment) -> Expr:
        return self.row.graph.leaf("state", self.moments.index(moment))

    def define(self, node: Expr) -> Expr:
        """`node` with its reductions expressed by states."""
        for i in sorted(node.reds):
            for r in deepest_first(i, self._defined, lambda r: sorted(self.definitions[r].reds)):
                self._defined[r] = self._in_states(self.definitions[r])
        return self._in_states(node)

    def _in_states(self, node: Expr) -> Expr:
        return self.row.graph.substitute(node, lambda n: self._defined[int(n.attr)] if n.op == "red" else None)  # type: ignore[call-overload]

    def names(self) -> dict[Expr, str]:
        return self.row.names | {self.row.graph.leaf("state", i): m.name for i, m in enumerate(self.moments)}

    def _needed(self) -> set[int]:
        todo = [*[w.node for w in self.row.weights], *self.row.outputs]
        needed: set[int] = set()
        while todo:
            for index in todo.pop().reds - needed:
                needed.add(index)
                todo.append(self.row.reductions[index].value)
        return needed

    def _normal(self, running: frozenset[int]) -> Normal:
        return Normal(self.row.graph, running, self.signs, reductions=self.row.reductions)

    def _kv_pass_of(self, node: Expr) -> tuple[int, frozenset[int]]:
        kv_pass = max((self.decisions[i].kv_pass for i in node.reds), default=1)
        return kv_pass, frozenset(i for i in node.reds if self.decisions[i].kv_pass == kv_pass)

    def _place_reduction(self, index: int) -> None:
        reduction = self.row.reductions[index]
        kv_pass, running = self._kv_pass_of(reduction.value)
        reason = "the numeric check failed"
        if index not in self.distrusted:
            reason = self._try(index, kv_pass, running)
            if not reason:
                return
        if not running:
            raise DerivationError(f"'{reduction.name}' cannot be accumulated: {reason}")
        failure = self._try(index, kv_pass + 1, frozenset(), f"; {reason}")
        if failure:
            raise DerivationError(f"'{reduction.name}' cannot be accumulated: {failure}")

    def _try(self, index: int, kv_pass: int, running: frozenset[int], why: str = "") -> str:
        """Plans one reduction; returns why that is impossible, or an empty string."""
        reduction = self.row.reductions[index]
        nf = self._normal(running)
        groups = self._factored(nf, reduction.value)
        if isinstance(groups, str):
            return groups
        groups = [shifted(group, nf, self.form.exponents, self._largest(kv_pass)) for group in groups]
        if reduction.kind != "sum":
            return self._extremum(index, kv_pass, groups, nf, why)
        return self._sum(index, kv_pass, groups, nf, why)

    def _factored(self, nf: Normal, value: Expr) -> list[FactorGroup] | str:
        """A reduction that reads nothing that still moves is taken as its author wrote it."""
        if value.varies and not value.reds & nf.running:
            return [as_written(self.row, value)]
        return factorise(nf, value, self.row.names, self.form.exponents)

    def _sum(self, index: int, kv_pass: int, groups: list[FactorGroup], nf: Normal, why: str) -> str:
        g, reduction = self.row.graph, self.row.reductions[index]
        if len(groups) > MAX_MOMENTS:
            return f"it would need {len(groups)} moments"
        centred = centred_moments(nf, reduction.value) if len(groups) > 1 else None
        total = g.const(0.0)
        if centred is None:
            self.multiplied |= {index} if len(groups) > 1 else set()
            for group in groups:
                total = g.add(total, g.mul(self._moment("sum", group, kv_pass, index, len(groups) == 1), group.coefficient))
        else:
            for order, coefficient in sorted(centred.coefficients.items()):
                total = g.add(total, g.mul(self._central(centred, order, kv_pass, index), coefficient))
        self.definitions[index] = total
        self._decide(index, kv_pass, groups, centred, why)
        return ""

    def _extremum(self, index: int, kv_pass: int, groups: list[FactorGroup], nf: Normal, why: str) -> str:
        g, kind = self.row.graph, self.row.reductions[index].kind
        addend = g.const(0.0)
        varying = [group for group in groups if group.weight.varies]
        for group in groups:
            if not group.weight.varies:
                addend = g.add(addend, g.mul(group.weight, group.coefficient))
        if len(varying) > 1:
            return f"the {kind} does not separate into one function of s and one of the reductions"
        total = addend
        if varying:
            total = g.add(self._scaled_extremum(varying[0], kind, kv_pass, index, nf), addend)
        self.definitions[index] = total
        self._decide(index, kv_pass, varying, None, why)
        return ""

    def _scaled_extremum(self, group: FactorGroup, kind: str, kv_pass: int, index: int, nf: Normal) -> Expr:
        """max_j C w_j is C max w for positive C, C min w for negative C; both are kept when the sign is open."""
        g, c = self.row.graph, group.coefficient
        opposite = "min" if kind == "max" else "max"
        if c.is_const and not nf.signs.positive(c):
            return g.mul(self._moment(opposite, group, kv_pass, index, False), c)
        largest = self._moment(kind, group, kv_pass, index, True)
        if nf.signs.positive(c):
            return g.mul(largest, c)
        smallest = self._moment(opposite, group, kv_pass, index, False)
        rising = g.node("arith.cmpf", c, g.const(0.0), attr=3, type="i1")
        return g.mul(g.select(rising, largest, smallest), c)

    def _moment(self, kind: str, group: FactorGroup, kv_pass: int, index: int, alone: bool) -> Expr:
        wanted = (kind, group.weight, group.shift)
        for known in self.moments:
            if (known.kind, known.weight, known.shift) == wanted and known.centre is None and known.kv_pass <= kv_pass:
                return self.state(known)
        name = self.row.reductions[index].name
        return self._add(Moment(kind, group.weight, group.shift, kv_pass, self._free_name(name if alone else f"{name}_{kind}")))

    def _central(self, centred: CentredMoments, order: int, kv_pass: int, index: int) -> Expr:
        """sum_j (x - c)^order, where c moves with the states."""
        g = self.row.graph
        x = FactorGroup(centred.x, g.const(1.0), ({}, {}))
        count = FactorGroup(g.const(1.0), g.const(1.0), ({}, {}))
        lower = [self._moment("sum", count, kv_pass, index, False)]
        if order > 0:
            first = g.sub(self._moment("sum", x, kv_pass, index, False), g.mul(lower[0], centred.c))
            lower.append(self._simplified(first))
        for k in range(2, order + 1):
            weight = g.const(1.0)
            for _ in range(k):
                weight = g.mul(weight, g.sub(centred.x, centred.c))
            same = [m for m in self.moments if m.centre is not None and m.weight is weight and m.kv_pass == kv_pass]
            name = self._free_name(self.row.reductions[index].name)
            moment = Moment("sum", weight, ({}, {}), kv_pass, name, Centre(centred.c, tuple(lower)))
            lower.append(self.state(same[0]) if same else self._add(moment))
        return lower[order]

    def _simplified(self, node: Expr) -> Expr:
        """Finds out that sum x - n (sum x / n) is zero."""
        expanded = Normal(self.row.graph, frozenset(), self.signs, expand=True)
        return node if expanded.of(self.define(node)) else self.row.graph.const(0.0)

    def _add(self, moment: Moment) -> Expr:
        self.moments.append(moment)
        return self.state(moment)

    def _free_name(self, name: str) -> str:
        taken = {m.name for m in self.moments}
        return name if name not in taken else next(f"{name}_{i}" for i in range(1, 100) if f"{name}_{i}" not in taken)

    def _place_output(self) -> None:
        weights = self.row.weights
        kv_pass = max((d.kv_pass for d in self.decisions.values()), default=1)
        running = frozenset(i for w in weights for i in w.node.reds if self.decisions[i].kv_pass == kv_pass)
        why, reason = "", "the numeric check failed"
        groups = reason if OUTPUT in self.distrusted else self._weights(running)
        if isinstance(groups, str):
            why, kv_pass = f"; {groups}", kv_pass + bool(running)
            if OUTPUT not in self.distrusted:
                groups = self._weights(frozenset())
            if isinstance(groups, str):
                groups = verbatim(self.row)
        groups = [
            [shifted(group, self._normal(running), self.form.exponents, self._largest(kv_pass)) for group in of_weight]
            for of_weight in groups
        ]
        self.accumulators, self.terms = accumulators_of(self.row, groups)
        if self.form.weights == SCALED:
            self.accumulators = [scaled(accumulator, self.row.graph, self._largest(kv_pass)) for accumulator in self.accumulators]
        for number, of_weight in enumerate(groups):
            self._decide(OUTPUT - number, kv_pass, of_weight, None, why)
        self.kv_passes = kv_pass

    def _weights(self, running: frozenset[int]) -> list[list[FactorGroup]] | str:
        return factorise_weights(self.row, self._normal(running), self.max_accumulators, self.form)

    def _largest(self, kv_pass: int) -> Largest:
        def state(weight: Expr, shift: tuple[Sum, Sum]) -> Expr:
            for known in self.moments:
                if (known.kind, known.weight, known.shift, known.centre, known.kv_pass) == ("max", weight, shift, None, kv_pass):
                    return self.state(known)
            return self._add(Moment("max", weight, shift, kv_pass, self._free_name("largest")))

        return state

    def _decide(self, index: int, kv_pass: int, groups: Sequence[FactorGroup], centred: CentredMoments | None, why: str) -> None:
        names = self.names()
        if why:
            method = "one more pass"
            detail = f"in pass {kv_pass}{why}"
        elif centred is not None:
            method, detail = f"moments, rank {len(groups)}", f"centred at {text(centred.c, names)}"
        elif index <= OUTPUT and not groups:
            method, detail = "zero", "nothing is summed"
        elif len(groups) > 1:
            method, detail = f"moments, rank {len(groups)}", ", ".join(text(group.weight, names) for group in groups)
        elif any(group.shifts for group in groups):
            method, detail = "rescaled", f"by {_factor_text(groups[0], self)}"
        else:
            method, detail = "independent", "accumulated as it is"
        late = [text(g.coefficient, names) for g in groups if not g.coefficient.is_const or g.coefficient.attr != 1.0]
        if late and centred is None:
            detail += f"; applied at the end: {', '.join(late)}"
        self.decisions[index] = ReductionRule(kv_pass, method, detail)


def _factor_text(group: FactorGroup, plan: RowPlan) -> str:
    """The rescaling in words of the reductions: exp(-m_new + m_old)."""
    nf = plan._normal(frozenset())
    parts = [f"{op}(change of {text(nf.node_of(s), plan.names())})" for op, s in zip(("exp", "exp2"), group.shift, strict=True) if s]
    return " * ".join(parts)


def used_states(*roots: Expr) -> set[int]:
    """Indices of the states below `roots`."""
    return {int(n.attr) for n in leaves(*roots) if n.op == "state"}  # type: ignore[call-overload]
