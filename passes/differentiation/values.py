"""Values of a program at random points, in float64, with numpy."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from attn_mlir.passes.derivation.evaluate import Array, Evaluator
from attn_mlir.passes.derivation.expr import Expr, nodes
from attn_mlir.passes.differentiation.model import RowModel
from attn_mlir.passes.differentiation.points import Point

ROUNDING = 1e-13
"""The largest margin for rounding, relative to what is rounded: larger ones are those of programs in f32 or 16 bits."""


class Values(Evaluator):
    """Expressions of a program at a point; `frozen` holds the values of what is detached, and of the arguments of slopes."""

    frozen: Mapping[Expr, Array]

    def _value(self, n: Expr) -> Array:
        if n.op == "one" and n not in self.env:
            return np.asarray(1.0)
        if n.op == "rounding":
            return np.asarray(min(float(n.attr), ROUNDING))  # type: ignore[arg-type]
        if n.op == "attn.detach":
            return self.frozen[n] if n in self.frozen else self(n.args[0])
        if n.op == "attn.slope":
            return self._slope(n)
        return super()._value(n)

    def _slope(self, n: Expr) -> Array:
        """The line of that slope through 0 at the point where values were frozen."""
        x = self(n.args[0])
        if n.args[0] not in self.frozen:
            return np.zeros_like(x)
        return self.frozen[n.args[1]] * (x - self.frozen[n.args[0]])


@dataclass(eq=False)
class PointValues:
    """A program's values at a point. `known`: sums at hand as tensors, for reductions that are given as products of rows."""

    program: RowModel
    point: Point
    frozen: Mapping[Expr, Array] = field(default_factory=dict)
    known: Mapping[str, Array] | None = None

    def __post_init__(self) -> None:
        program, graph, point = self.program, self.program.graph, self.point
        env: dict[Expr, Array] = {**point.params, **point.reads}
        env |= {graph.node("row", attr=name): x for name, x in point.rows.items()}
        for k, (query, key) in enumerate(program.products):
            env[graph.leaf("x", k)] = self.product(query, key)
        self.values = self.evaluator(env)
        self.values.frozen = self.frozen
        for k, score in enumerate(program.scores):
            env[graph.leaf("s", k)] = self.values(score)
        for i, reduction in enumerate(program.reductions):
            if self.known is not None and isinstance(reduction.given, tuple):
                _, a, b = reduction.given
                value = (point.tensors[a] * self.known[b]).sum(axis=1, keepdims=True)
            else:
                value = self.values(graph.reduce(reduction.kind, reduction.value))
            env[program.red(i)] = value

    def evaluator(self, env: dict[Expr, Array]) -> Values:
        return Values(env, self.point.present)

    def product(self, query: str, key: str) -> Array:
        """The products of the rows of two tensors."""
        return np.einsum("rd,rnd->rn", self.point.tensors[query], self.point.tensors[key])

    def weight(self, node: Expr) -> Array:
        """A value of every pair, 0 where there is none."""
        return np.where(self.point.present, np.broadcast_to(self.values(node), self.point.present.shape), 0.0)

    def sums(self) -> dict[tuple[str, str], Array]:
        out: dict[tuple[str, str], Array] = {}
        for s in self.program.sums:
            for node, source in s.terms:
                tensor, weight = self.point.tensors[source], self.weight(node)
                with np.errstate(all="ignore"):
                    part = np.einsum("rn,rnd->rd", weight, tensor) if s.side == "query" else weight[..., None] * tensor[:, None]
                    out[s.side, s.name] = out.get((s.side, s.name), 0.0) + part
        return out

    def rows(self) -> dict[str, Array]:
        return {r.name: np.broadcast_to(self.values(r.value), (len(self.point.present), 1)) for r in self.program.rows}

    def scatters(self) -> list[tuple[Expr, Array]]:
        """(parameter, weight) for every scatter; over the keys where the parameter is of the row."""
        found = []
        for s in self.program.scatters:
            if not self.program.is_pair(s.weight):
                found.append((s.param, np.broadcast_to(self.values(s.weight), (len(self.point.present), 1))))
                continue
            weight = self.weight(s.weight)
            found.append((s.param, weight if self.program.is_pair(s.param) else weight.sum(axis=1, keepdims=True)))
        return found

    def detached(self) -> dict[Expr, Array]:
        p = self.program
        found = nodes(*p.roots())
        return {n: self.values(n) for m in found for n in ((m,) if m.op == "attn.detach" else m.args if m.op == "attn.slope" else ())}
