"""Reverse mode on programs: the derivative of an attention is again a program over pairs, and so is the derivative of that.

With p_j = e(s_j, r) and r_i = reduce_j g_i(s_j, r_<i), the adjoint of a score is dp_j de/ds + sum_i A_i dg_i/ds, where
A_i = sum_j dp_j de/dr_i + sum_{k>i} A_k sum_j dg_k/dr_i. Each of these sums over keys is, in this order:

* *closed*: if d(log e)/dr_i is the same for all keys, sum_j dp_j de/dr_i = c(r) sum_j dp_j p_j, and that is <do, o>, known
  without a pass (the "delta" of FlashAttention). Likewise sum_j dg_k/dr_i = c(r) r_k;
* *known*: a sum that the forward pass, or another adjoint, needs anyway;
* *second pass*: one more reduction, computed in a pass over the keys before the gradients.

A reduction whose adjoint is identically zero, like a maximum that only stabilises, is dropped; zero is proved, not assumed.
The adjoint of a maximum is shared evenly among the keys that attain it, as in `torch.amax`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from attn_mlir.passes.derivation.expr import Expr
from attn_mlir.passes.differentiation.algebra import Algebra
from attn_mlir.passes.differentiation.extrema import again, attains, is_rearranged, margin, shared
from attn_mlir.passes.differentiation.model import ModelReduction, RowModel, RowValue, Scatter, Sum
from attn_mlir.passes.differentiation.propagate import adjoints
from attn_mlir.passes.differentiation.whole import Whole


@dataclass(frozen=True)
class Seeds:
    """Names of what holds the adjoints of a program's outputs.

    `sums`: a tensor for the sum of that name. `rows`: a tensor [B, Hq, Sq] for that row value. `reads`: prefix of the
    names of tensors shaped like the captured ones, adjoints of scatters. `known`: sums whose value is at hand as a tensor.
    """

    sums: dict[str, str]
    rows: dict[str, str] = field(default_factory=dict)
    reads: str | None = None
    known: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Ruling:
    """One decision, for people: `rule` is closed, follows, known, second pass, whole, rounded, dropped, detached or shared."""

    subject: str
    rule: str
    detail: str


@dataclass(eq=False)
class Reverse:
    """Builds `result`, the adjoint program; its sums, rows and scatters are the gradients of everything that is read."""

    primal: RowModel
    seeds: Seeds
    steps: list[Ruling] = field(default_factory=list)
    dropped: set[int] = field(default_factory=set)
    whole: bool = False
    """Whether values whose sums are not known are summed whole; else differences in them are multiplied out, which finds equal sums."""
    has_unknown: bool = field(init=False, default=False)
    """Whether there are such values, of several parts."""

    def __post_init__(self) -> None:
        p = self.primal
        self.result = RowModel(
            p.graph, list(p.products), list(p.scores), list(p.reductions), p.params, p.tolerance, p.near, p.given, p.large
        )
        # A closed form in place of a pass reads <do, o>, and with it what rounding weights to 16 bits did to o: too much at large scores.
        self.algebra = Algebra(p.graph, self.result.is_pair, p.tolerance, in_any_order=not p.near)
        self._whole = Whole(self.algebra, lambda leaf: self.result.reductions[int(leaf.attr)].given is None)  # type: ignore[call-overload]
        self._known: dict[Expr, Expr] = {}
        self._of_red: dict[int, Expr] = {}
        self._of_pair: dict[Expr, Expr] = {}
        self._sums: dict[tuple[str, str], list[tuple[Expr, str]]] = {}
        self._rows: dict[str, Expr] = {}
        self._scatters: dict[Expr, list[Expr]] = {}
        for i, reduction in enumerate(p.reductions):
            if reduction.kind == "sum":
                self._learn(reduction.value, p.red(i))

    def run(self) -> RowModel:
        for out in self.primal.sums:
            if out.name in self.seeds.sums:
                self._seed_sum(out, self.seeds.sums[out.name])
        for row in self.primal.rows:
            if row.name in self.seeds.rows:
                self._row_root(row.value, self.result.row_leaf(self.seeds.rows[row.name]))
        for scatter in self.primal.scatters:
            if self.seeds.reads is not None:
                self._seed_scatter(scatter, self.result.adjoint_read(scatter.param, self.seeds.reads))
        for i in reversed(range(len(self.primal.reductions))):
            self._reduction(i)
        self._scores_and_products()
        self._collect()
        return self.result

    def second_passes(self) -> int:
        """How many sums over the keys are computed before the gradients."""
        return sum(r.given is None for r in self.result.reductions)

    def kv_pass(self, given: Sequence[int]) -> None:
        """Sums these reductions over the keys, which are given as products of rows."""
        for i in given:
            reduction = self.result.reductions[i]
            self.result.reductions[i] = replace(reduction, given=None)
            self.steps = [replace(step, rule="follows") if step.rule == "closed" else step for step in self.steps]
            self.steps.insert(0, Ruling(reduction.name, "rounded", "at large scores"))

    def as_autograd(self, leaf: Expr) -> Expr:
        """The adjoint of a score with shares added up at every intermediate, in the order of autograd; maxima are left out."""
        roots = [(w, self.result.product(self.seeds.sums[s.name], tensor)) for s in self.primal.sums for w, tensor in s.terms]
        kept = [i for i in self._of_red if self.primal.reductions[i].kind == "sum" and i not in self.dropped]
        roots += [(self.primal.reductions[i].value, self._of_red[i]) for i in kept]
        return adjoints(self.primal.graph, roots).get(leaf, self.primal.graph.const(0.0))

    def _seed_sum(self, out: Sum, seed: str) -> None:
        g, single = self.primal.graph, len(out.terms) == 1
        for weight, tensor in out.terms:
            pair = (seed, tensor) if out.side == "query" else (tensor, seed)
            adjoint = self.result.product(*pair)
            total = None
            if single and out.name in self.seeds.known:
                total = self._delta(g.mul(adjoint, weight), seed, out.name)
            self._pair_root(weight, adjoint, total, f"the weight of {tensor}")
            self._sums.setdefault(("key" if out.side == "query" else "query", tensor), []).append((weight, seed))

    def _seed_scatter(self, scatter: Scatter, adjoint: Expr) -> None:
        if self.result.is_pair(scatter.weight):
            self._pair_root(scatter.weight, adjoint, None, "a captured tensor's gradient")
        else:
            self._row_root(scatter.weight, adjoint)

    def _delta(self, value: Expr, seed: str, name: str) -> Expr:
        self.result.reductions.append(ModelReduction("sum", value, f"delta_{name}", ("row_dot", seed, name)))
        leaf = self.result.red(len(self.result.reductions) - 1)
        self._learn(value, leaf)
        return leaf

    def _learn(self, value: Expr, total: Expr) -> None:
        """From the sum over keys of `value`, the sum of the only part of it that is not known yet."""
        g = self.primal.graph
        parts = self.algebra.split(value)
        unknown = [(c, w) for c, w in parts if w not in self._known]
        inverse = self.algebra.inverse(unknown[0][0]) if len(unknown) == 1 else None
        if inverse is None:
            return
        for coefficient, weight in parts:
            if weight in self._known:
                total = g.sub(total, g.mul(coefficient, self._known[weight]))
        self._known[unknown[0][1]] = g.mul(total, inverse)

    def _row_root(self, root: Expr, adjoint: Expr) -> None:
        for leaf, share in adjoints(self.primal.graph, [(root, adjoint)]).items():
            self._leaf_of_row(leaf, share)

    def _leaf_of_row(self, leaf: Expr, share: Expr) -> None:
        g = self.primal.graph
        if leaf.op == "red":
            i = int(leaf.attr)  # type: ignore[call-overload]
            self._of_red[i] = g.add(self._of_red[i], share) if i in self._of_red else share
        elif leaf.op == "param" and self.result.param(leaf).read is not None:
            self._scatters.setdefault(leaf, []).append(share)
        elif leaf.op == "row":
            name = str(leaf.attr)
            self._rows[name] = g.add(self._rows[name], share) if name in self._rows else share

    def _pair_root(self, root: Expr, adjoint: Expr, total: Expr | None, what: str) -> None:
        """Adds what `root` of every pair contributes; `total` is the sum over keys of adjoint * root, where it is known."""
        g = self.primal.graph
        slopes = adjoints(g, [(root, g.const(1.0))])
        for leaf, share in adjoints(g, [(root, adjoint)]).items():
            if leaf.op in ("x", "s"):
                self._of_pair[leaf] = g.add(self._of_pair[leaf], share) if leaf in self._of_pair else share
            elif leaf.op in ("red", "row"):
                self._leaf_of_row(leaf, self._summed(root, slopes[leaf], share, total, f"{what} by {self._name(leaf)}"))
            elif leaf.op == "param" and self.result.param(leaf).read is not None:
                self._param(leaf, root, slopes[leaf], share, total, f"{what} by {self._name(leaf)}")

    def _param(self, leaf: Expr, root: Expr, slope: Expr, share: Expr, total: Expr | None, what: str) -> None:
        """Of a parameter of the row, one sum for each row where that needs no pass; else one contribution for each pair."""
        if not self.result.is_pair(leaf):
            closed = self._closed(root, slope, total, what)
            if closed is not None:
                self._scatters.setdefault(leaf, []).append(closed)
                return
        # For an expression without keys in it, every key contributes all the same.
        share = share if self.result.is_pair(share) else self.primal.graph.mul(share, self._every_key())
        self._scatters.setdefault(leaf, []).append(share)

    def _every_key(self) -> Expr:
        """1, as a value of a pair."""
        return self.primal.graph.node("one")

    def _closed(self, root: Expr, slope: Expr, total: Expr | None, what: str) -> Expr | None:
        factor = None if total is None else self.algebra.ratio(slope, root)
        if factor is None or total is None:
            return None
        self.steps.append(Ruling(what, "closed", "its logarithmic derivative is the same for all keys"))
        return self.primal.graph.mul(factor, total)

    def _summed(self, root: Expr, slope: Expr, share: Expr, total: Expr | None, what: str) -> Expr:
        """The sum over keys of `share`."""
        closed = self._closed(root, slope, total, what)
        return self._sum_of(share, what) if closed is None else closed

    def _parts(self, value: Expr) -> list[tuple[Expr, Expr]]:
        """`value` in parts whose sums are known, or are to be computed."""
        parts = self.algebra.split(value)
        if len(parts) == 1 or all(weight in self._known for _, weight in parts):
            return parts
        self.has_unknown = True
        return self._whole.parts(value) if self.whole else parts

    def _sum_of(self, value: Expr, what: str) -> Expr:
        g, total = self.primal.graph, self.primal.graph.const(0.0)
        for coefficient, weight in self._parts(value):
            known = weight in self._known
            if not known:
                name = f"adjoint_{self.second_passes()}"
                self.result.reductions.append(ModelReduction("sum", weight, name))
                self._known[weight] = self.result.red(len(self.result.reductions) - 1)
            self.steps.append(Ruling(what, "known" if known else "second pass", self._name(self._known[weight])))
            total = g.add(total, g.mul(coefficient, self._known[weight]))
        return total

    def _reduction(self, i: int) -> None:
        g, reduction, adjoint = self.primal.graph, self.primal.reductions[i], self._of_red.get(i)
        if adjoint is None:
            return
        if self.algebra.is_zero(adjoint):
            self.dropped.add(i)
            self.steps.append(Ruling(reduction.name, "dropped", "its adjoint is identically zero"))
            return
        r = self.primal.red(i)
        if reduction.kind == "sum":
            self._pair_root(reduction.value, adjoint, g.mul(adjoint, r), reduction.name)
            return
        compared = again(self.result, reduction) if is_rearranged(self.primal, reduction) else r
        near = margin(self.primal, reduction.value, compared)
        here = attains(self.primal, reduction.kind, reduction.value, compared, near)
        count = self._sum_of(here, f"the keys that attain {reduction.name}")
        self.steps.append(Ruling(reduction.name, "shared", "evenly among the keys that attain it"))
        share = shared(self.primal, adjoint, count, near)
        self._pair_root(reduction.value, g.mul(here, share), g.mul(adjoint, r), reduction.name)

    def _scores_and_products(self) -> None:
        g = self.primal.graph
        for k in reversed(range(len(self.primal.scores))):
            leaf = g.leaf("s", k)
            if leaf in self._of_pair:
                self._pair_root(self.primal.scores[k], self._of_pair[leaf], None, "the score")
        for k, (query, key) in enumerate(self.primal.products):
            adjoint = self._of_pair.get(g.leaf("x", k))
            if adjoint is not None:
                self._sums.setdefault(("query", query), []).append((adjoint, key))
                self._sums.setdefault(("key", key), []).append((adjoint, query))

    def _collect(self) -> None:
        for (side, tensor), terms in self._sums.items():
            merged: dict[str, Expr] = {}
            for weight, source in terms:
                merged[source] = self.primal.graph.add(merged[source], weight) if source in merged else weight
            self.result.sums.append(Sum(side, tensor, tuple((w, source) for source, w in merged.items())))
        self.result.rows += [RowValue(name, value) for name, value in self._rows.items()]
        for leaf, weights in self._scatters.items():
            for level in (True, False):
                total = None
                for weight in weights:
                    if self.result.is_pair(weight) == level:
                        total = weight if total is None else self.primal.graph.add(total, weight)
                if total is not None and not (total.is_const and total.attr == 0.0):
                    self.result.scatters.append(Scatter(leaf, total))

    def _name(self, leaf: Expr) -> str:
        if leaf.op == "red":
            return self.result.reductions[int(leaf.attr)].name  # type: ignore[call-overload]
        return self.result.param(leaf).name if leaf.op == "param" else str(leaf.attr)
