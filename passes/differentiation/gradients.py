"""Writes an adjoint program as IR: known row values, one pass for row sums where needed, then all pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.derivation.expr import FLOAT, Expr, leaves, nodes
from attn_mlir.passes.differentiation.absorb import Absorber
from attn_mlir.passes.differentiation.algebra import Algebra
from attn_mlir.passes.differentiation.host import PAIR_NAMES, HostBuilder, HostExpressions, scatter_to_read
from attn_mlir.passes.differentiation.kv_pass import write_kv_pass
from attn_mlir.passes.differentiation.model import RowModel, Scatter, Sum, largest
from attn_mlir.passes.differentiation.read import is_half
from attn_mlir.passes.magnitudes import scores_may_be_large


@dataclass(eq=False)
class Gradients:
    """Values of some outputs of an adjoint program, computed in the host function."""

    host: HostBuilder
    program: RowModel
    sums: Sequence[Sum]
    scatters: Sequence[Scatter]
    rows_wanted: Sequence[Expr] = ()
    count: Expr | None = None
    rows: dict[Expr, ir.Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._algebra = Algebra(self.program.graph, self.program.is_pair)
        self._absorbed: dict[Expr, Expr] = {}

    def write(self) -> tuple[list[ir.Value], list[ir.Value], list[ir.Value]]:
        """The sums, the scatters and the row values."""
        pair_weights = [self._prepared(w) for s in self.sums for w, _ in s.terms]
        pair_weights += [self._prepared(s.weight) for s in self.scatters if self.program.is_pair(s.weight)]
        # A large maximum plus a logarithm loses digits that matter where weights are not rounded to 16 bits.
        attention = self.host.primal.attention
        absorber = Absorber(self.program, self._algebra, whole=not scores_may_be_large(attention))
        weights = absorber.all(pair_weights) if is_half(attention) else pair_weights
        self._absorbed = dict(zip(pair_weights, weights, strict=True))
        pair_weights = [self._absorbed[w] for w in pair_weights]
        row_weights = [self._guarded(s.weight) for s in self.scatters if not self.program.is_pair(s.weight)]
        rows_wanted = [self._guarded(n) for n in self.rows_wanted]
        self._row_values([*pair_weights, *row_weights, *rows_wanted])
        self._hoist(pair_weights)
        order = list(dict.fromkeys(pair_weights))
        of_pairs = self._pairs(order)
        of_rows = self._row_results([*row_weights, *rows_wanted])
        values = iter(pair_weights)
        sums = [self._sum(s, of_pairs, order, [next(values) for _ in s.terms]) for s in self.sums]
        scatters, position = [], 0
        for s in self.scatters:
            if self.program.is_pair(s.weight):
                number = order.index(next(values))
                scatters.append(scatter_to_read(self.host, self.program, s.param, of_pairs, number, PAIR_NAMES))
            else:
                scatters.append(scatter_to_read(self.host, self.program, s.param, of_rows, position, ("b", "h", "i")))
                position += 1
        collected = [build.collect(of_rows, position + i, self.host.row_type()) for i in range(len(rows_wanted))] if of_rows else []
        return sums, scatters, collected

    def _guarded(self, weight: Expr) -> Expr:
        """0 for fully masked rows, where formulas of the row may not be finite."""
        return weight if self.count is None else self.program.where_keys(self.count, weight)

    def _prepared(self, weight: Expr) -> Expr:
        """x / r becomes x * (1 / r), whose second factor is computed once for each row; shared factors are taken out."""
        g = self.program.graph

        def reciprocal(n: Expr) -> Expr:
            if n.op != "arith.divf" or not self.program.is_pair(n.args[0]) or self.program.is_pair(n.args[1]) or n.args[1].is_const:
                return n
            return g.mul(n.args[0], g.div(g.const(1.0), n.args[1]))

        # Comparisons stay as they are: they decide as the forward pass did only on the very same numbers.
        gathered = self._algebra.gathered(g.rebuild(weight, reciprocal))
        return self._algebra.rows_first(gathered) if self.program.has_dropout else gathered

    def _row_values(self, roots: Sequence[Expr]) -> None:
        """Tensors for all reductions that the roots need."""
        apart: list[int] = []
        for i in sorted(self.program.reductions_of(*roots)):
            reduction = self.program.reductions[i]
            if reduction.given == "saved":
                self.rows[self.program.red(i)] = self.host.tensors[f"saved_{reduction.name}"]
            elif reduction.given is None:
                apart.append(i)
            else:
                _, a, b = reduction.given  # type: ignore[misc]
                with ir.Location.name(reduction.name, ir.Location.current):
                    self.rows[self.program.red(i)] = self.host.row_dot(a, b)
        if apart:
            self.rows.update(write_kv_pass(self.host, self.program, apart, self.rows))

    def _hoist(self, weights: Sequence[Expr]) -> None:
        """Computes what is the same for a whole row once, as a tensor."""
        hoisted = largest(
            weights,
            lambda n: n.is_leaf or n in self.rows,
            lambda n: n.type == FLOAT and not self.program.is_pair(n) and any(leaf.op in ("red", "row") for leaf in leaves(n)),
        )
        if not hoisted:
            return
        made = self._elements(hoisted)
        for i, n in enumerate(hoisted):
            with ir.Location.name(f"row_{i}", ir.Location.current):
                self.rows[n] = build.collect(made, i, self.host.row_type())

    def _elements(self, values: Sequence[Expr]) -> ir.Value:
        rows = dict(self.rows)

        def body(*indices: ir.Value) -> list[ir.Value]:
            expressions = HostExpressions(self.host, self.program, indices, {}, rows)
            return [expressions.emit(n) for n in values]

        return build.elements(self._any_row(values), body, self.host.sequences("query"))

    def _any_row(self, values: Sequence[Expr]) -> ir.Value:
        for n in sorted(nodes(*values)):
            if n in self.rows:
                return self.rows[n]
            if n.op == "row":
                return self.host.tensors[str(n.attr)]
        q = self.host.tensors["q"]
        return next(iter(self.rows.values()), None) or build.row_dot(q, q, self.host.row_type())

    def _row_results(self, values: Sequence[Expr]) -> ir.Value | None:
        return self._elements(values) if values else None

    def _pairs(self, weights: Sequence[Expr]) -> ir.Value | None:
        if not weights:
            return None
        used = sorted({int(n.attr) for n in self.program.below(weights, self.rows) if n.op == "x"})  # type: ignore[call-overload]
        names = {w: name for w, name in zip(weights, self._weight_names(weights), strict=True) if not w.is_leaf}
        op, block = build.pairs()
        with ir.InsertionPoint(block):
            for k in used or [0]:
                query, key = self.program.products[k]
                build.product(self.host.tensors[query], self.host.tensors[key])
            self.host.clone_present()

            def body(*arguments: ir.Value) -> list[ir.Value]:
                known = {self.program.graph.leaf("x", k): value for k, value in zip(used, arguments, strict=False)}
                expressions = HostExpressions(self.host, self.program, arguments[len(used or [0]) :], known, self.rows, names)
                return [expressions.emit(w) for w in weights]

            scalars = [
                ("x" if query == "q" else f"{query}_{key}", self.host.score)
                for query, key in (self.program.products[k] for k in used or [0])
            ]
            build.piece("pair", [*scalars, *[(name, ir.IndexType.get()) for name in PAIR_NAMES]], body)
        return op.result

    def _weight_names(self, weights: Sequence[Expr]) -> list[str]:
        names = {}
        for s in self.sums:
            for weight, source in s.terms:
                names.setdefault(self._absorbed[self._prepared(weight)], f"for_{s.name}_{source}")
        return [names.get(w, "for_captured") for w in weights]

    def _sum(self, s: Sum, of: ir.Value | None, order: list[Expr], weights: Sequence[Expr]) -> ir.Value:
        make = build.query_sum if s.side == "query" else build.key_sum
        by_type: dict[str, tuple[list[ir.Value], list[int]]] = {}
        for weight, (_, source) in zip(weights, s.terms, strict=True):
            tensor = self.host.tensors[source]
            terms, numbers = by_type.setdefault(str(tensor.type), ([], []))
            terms.append(tensor)
            numbers.append(order.index(weight))
        if of is None:
            raise ValueError("a sum without weights")
        total = None
        for terms, numbers in by_type.values():
            with ir.Location.name(f"d{s.name}", ir.Location.current):
                part = make(of, terms, numbers, self.host.like(terms[0]))
            total = part if total is None else arith.addf(total, part)
        if total is None:
            raise ValueError("a sum without terms")
        return total
