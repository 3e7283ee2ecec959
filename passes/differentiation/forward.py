"""Forward mode on programs: the tangent of an attention is computed in the same pass over the keys as the attention.

For a sum r_i = sum_j g_i(s_j, r_<i) the tangent is sum_j dg_i/ds s_dot_j + sum_k r_dot_k sum_j dg_i/dr_k; where dg_i/dr_k is a
multiple c(r) g_i, the inner sum is c r_i and needs nothing. A maximum that only stabilises (`reverse` finds out) has tangent
0; any other one has the mean of the tangents of the keys that attain it, as `torch.amax` has.
"""

from dataclasses import dataclass, field

from attn_mlir.passes.derivation.expr import Expr
from attn_mlir.passes.differentiation.algebra import Algebra
from attn_mlir.passes.differentiation.extrema import attains, is_rearranged, margin, shared, stages
from attn_mlir.passes.differentiation.model import ModelReduction, RowModel, RowValue, Sum
from attn_mlir.passes.differentiation.propagate import Tangents, tangent
from attn_mlir.passes.differentiation.reverse import Ruling

DOT = "dot_"


@dataclass(eq=False)
class TangentBuilder:
    """Builds `result`: the program of the attention and of its tangent, for the inputs that have tangents.

    `tensors` names those of q, k, v and of further products that have a tangent (called "dot_q" and so on), `reads` the parameters
    that read a captured tensor which has one, `dropped` the reductions whose tangent does not matter.
    """

    primal: RowModel
    tensors: frozenset[str]
    reads: frozenset[Expr]
    dropped: frozenset[int]
    steps: list[Ruling] = field(default_factory=list)
    rearranged: list[int] = field(default_factory=list)
    """Extrema of the result that are compared with the keys of values computed again."""

    def stages(self) -> list[list[int]]:
        """The reductions to compute in passes of their own, one after the other, before all others."""
        return stages(self.result, self.rearranged)

    def run(self) -> RowModel:
        p = self.primal
        self.result = t = RowModel(p.graph, list(p.products), list(p.scores), [], p.params, p.tolerance, p.near, p.given, p.large)
        self.algebra = Algebra(p.graph, t.is_pair, p.tolerance)
        self._of: dict[Expr, Expr] = {leaf: t.adjoint_read(leaf, DOT) for leaf in sorted(self.reads)}
        self._products()
        self._scores()
        self._renumbered: dict[Expr, Expr] = {}
        for i in range(len(p.reductions)):
            self._reduction(i)
        self._outputs()
        return t

    def _products(self) -> None:
        g = self.primal.graph
        for k, (query, key) in enumerate(self.primal.products):
            total = None
            if query in self.tensors:
                total = self.result.product(DOT + query, key)
            if key in self.tensors:
                other = self.result.product(query, DOT + key)
                total = other if total is None else g.add(total, other)
            if total is not None:
                self._of[g.leaf("x", k)] = total

    def _scores(self) -> None:
        g = self.primal.graph
        for k, score in enumerate(self.primal.scores):
            found = tangent(g, score, self._of)
            if found is not None:
                self.result.scores.append(found)
                self._of[g.leaf("s", k)] = g.leaf("s", len(self.result.scores) - 1)

    def _now(self, node: Expr) -> Expr:
        """`node` with the primal's reductions, and stand-ins for their tangents, as they are called in the result."""
        return self.primal.graph.substitute(node, lambda n: self._renumbered.get(n))

    def _set_tangent(self, leaf: Expr, value: Expr) -> None:
        self._of[leaf] = stand_in = self.primal.graph.node("red_dot", attr=leaf.attr)
        self._renumbered[stand_in] = value

    def _add(self, reduction: ModelReduction) -> Expr:
        self.result.reductions.append(reduction)
        return self.primal.graph.leaf("red", len(self.result.reductions) - 1)

    def _reduction(self, i: int) -> None:
        g, reduction, leaf = self.primal.graph, self.primal.reductions[i], self.primal.red(i)
        name = reduction.name
        self._renumbered[leaf] = now = self._add(
            ModelReduction(reduction.kind, self._now(reduction.value), name, location=reduction.location)
        )
        if i in self.dropped:
            self.steps.append(Ruling(f"{name}_dot", "dropped", "nothing depends on it"))
            return
        # Tangents of reductions are leaves of their own until here, so that sums over keys can be taken apart.
        reds = {n: t for n, t in self._of.items() if n.op == "red"}
        direct = tangent(g, reduction.value, {n: t for n, t in self._of.items() if n.op != "red"})
        if reduction.kind != "sum":
            self._extremum(i, now)
            return
        total = None if direct is None else self._add(ModelReduction("sum", self._now(direct), f"{name}_dot"))
        for red, of_red in reds.items():
            slope = tangent(g, reduction.value, {red: g.const(1.0)})
            if slope is None:
                continue
            factor = self.algebra.ratio(slope, reduction.value)
            if factor is not None:
                self.steps.append(
                    Ruling(f"{name}_dot by {self._name(red)}", "closed", "its logarithmic derivative is the same for all keys")
                )
                summed = g.mul(self._now(factor), now)
            else:
                summed = self._add(ModelReduction("sum", self._now(slope), f"{name}_by_{self._name(red)}"))
            share = g.mul(self._now(of_red), summed)
            total = share if total is None else g.add(total, share)
        if total is not None:
            self._set_tangent(leaf, total)

    def _extremum(self, i: int, now: Expr) -> None:
        g, reduction = self.primal.graph, self.primal.reductions[i]
        moved = tangent(g, reduction.value, self._of)
        if moved is None:
            return
        value = self._now(reduction.value)
        number = int(now.attr)  # type: ignore[call-overload]
        if is_rearranged(self.result, self.result.reductions[number]):
            self.rearranged.append(number)
        near = margin(self.result, value, now)
        here = attains(self.primal, reduction.kind, value, now, near)
        count = self._add(ModelReduction("sum", here, f"{reduction.name}_count"))
        total = self._add(ModelReduction("sum", g.mul(here, self._now(moved)), f"{reduction.name}_dot"))
        self.steps.append(Ruling(f"{reduction.name}_dot", "shared", "the mean over the keys that attain it"))
        self._set_tangent(self.primal.red(i), shared(self.primal, total, count, near))

    def _outputs(self) -> None:
        g = self.primal.graph
        memo: Tangents = {}
        for out in self.primal.sums:
            terms = tuple((self._now(w), tensor) for w, tensor in out.terms)
            self.result.sums.append(Sum(out.side, out.name, terms))
            moved: list[tuple[Expr, str]] = []
            for weight, tensor in out.terms:
                of_weight = tangent(g, weight, self._of, memo)
                if of_weight is not None:
                    moved.append((self._now(of_weight), tensor))
                if tensor in self.tensors:
                    moved.append((self._now(weight), DOT + tensor))
            self.result.sums.append(Sum(out.side, DOT + out.name, tuple(moved) or ((g.const(0.0), out.terms[0][1]),)))
        for row in self.primal.rows:
            self.result.rows.append(RowValue(row.name, self._now(row.value)))
        for row in self.primal.rows:
            of_row = tangent(g, row.value, self._of, memo)
            self.result.rows.append(RowValue(DOT + row.name, g.const(0.0) if of_row is None else self._now(of_row)))

    def _name(self, leaf: Expr) -> str:
        return self.primal.reductions[int(leaf.attr)].name if leaf.op == "red" else str(leaf.attr)  # type: ignore[call-overload]


def readable(program: RowModel) -> list[Expr]:
    """The parameters that read elements of captured floating tensors."""
    return [program.graph.leaf("param", i) for i, p in enumerate(program.params) if p.read is not None]
