"""Points at which derivatives are compared: random tensors, parameters and rows of scores.

Rows of scores are normal, of one sign, with ties, zero, equal, shifted, tiny and large. Where a program is not a number at most of
them, since a root or a logarithm leaves its domain, other ranges are tried for what fails.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attn_mlir.passes.derivation.evaluate import Array
from attn_mlir.passes.derivation.expr import BOOL, Expr, nodes
from attn_mlir.passes.differentiation.model import RowModel

KEYS, DIM = 11, 3
Range = tuple[float, float]
DOMAINS: tuple[tuple[Range, Range], ...] = (
    ((-0.1, 0.1), (0.2, 0.8)),
    ((0.1, 0.9), (0.1, 0.9)),
    ((1.1, 4.0), (1.1, 4.0)),
    ((-0.9, 0.9), (1.5, 4.0)),
    ((1.5, 4.0), (0.1, 0.9)),
)
"""Ranges of (scores, parameters) in which many functions exist: of the unit ball, between 0 and 1, beyond 1."""


@dataclass(eq=False)
class Point:
    """Inputs of a program: tensors and values by name, parameters and rows by leaf; each row of scores stands alone."""

    tensors: dict[str, Array]
    params: dict[Expr, Array]
    rows: dict[str, Array]
    reads: dict[Expr, Array]
    present: Array

    def moved(self, by: "Point", t: float) -> "Point":
        """This point plus t times a direction."""
        return Point(
            {n: x + t * by.tensors[n] for n, x in self.tensors.items()},
            {n: x + t * by.params[n] if n in by.params else x for n, x in self.params.items()},
            {n: x + t * by.rows[n] for n, x in self.rows.items()},
            {n: x + t * by.reads[n] if n in by.reads else x for n, x in self.reads.items()},
            self.present,
        )

    @classmethod
    def joined(cls, points: Sequence["Point"]) -> "Point":
        """The rows of several points of one program: to evaluate it for all of them takes little longer than for one."""

        def of(field: str) -> dict[Any, Array]:
            return {n: np.concatenate([getattr(point, field)[n] for point in points]) for n in getattr(points[0], field)}

        present = np.concatenate([point.present for point in points])
        return cls(of("tensors"), of("params"), of("rows"), of("reads"), present)


@dataclass(eq=False)
class Draw:
    """Draws points of one program; `scores` are those of its own products, by default small ones of many kinds."""

    program: RowModel
    rng: np.random.Generator
    scores: Array | None = None
    rows: int = field(init=False)
    present: Array = field(init=False)

    def __post_init__(self) -> None:
        self._scores = _scores(self.rng) if self.scores is None else self.scores
        self.rows = len(self._scores)
        self.present = self.rng.random((self.rows, KEYS)) < 0.8
        self.present[:, 0] = True

    def shape(self, side: str) -> tuple[int, ...]:
        """Of a tensor of queries or keys."""
        return (self.rows, DIM) if side == "query" else (self.rows, KEYS, DIM)

    def base(self) -> Point:
        """A point whose first product has the prepared scores; others that scores are made of have the same ones, in another order."""
        point = self.point()
        for number, (query, key) in enumerate(self.program.products[: self.program.given]):
            # With this query the product is the first column of the keys.
            point.tensors[query] = np.tile([1.0, 0.0, 0.0], (self.rows, 1))
            point.tensors[key][..., 0] = self.rng.permuted(self._scores, axis=1) if number else self._scores
        return point

    def point(self) -> Point:
        """Normal numbers; every second row of parameters is positive."""
        p, rng = self.program, self.rng
        tensors = {}
        sides = [("query", q) for q, _ in p.products] + [("key", k) for _, k in p.products]
        sides += [("key" if s.side == "query" else "query", source) for s in p.sums for _, source in s.terms]
        for side, name in sides:
            if name not in tensors:
                tensors[name] = rng.normal(size=self.shape(side))
        params = {}
        for i, param in enumerate(p.params):
            leaf = p.graph.leaf("param", i, BOOL if str(param.value.type) == BOOL else "f")
            drawn = rng.normal(size=(self.rows, KEYS if p.is_pair(leaf) else 1))
            # A parameter may be meant to be positive, as one under a logarithm is; the others stay as they are drawn.
            drawn[1::2] = np.abs(drawn[1::2]) + 0.1
            params[leaf] = drawn > 0 if leaf.type == BOOL else drawn
        row_values = {str(n.attr): rng.normal(size=(self.rows, 1)) for n in sorted(nodes(*p.roots())) if n.op == "row"}
        return Point(tensors, params, row_values, {}, self.present)

    def again(self, point: Point, rows: Array, scores: Range, params: Range) -> None:
        """Other scores and parameters for some rows of a point, evenly from their ranges."""
        count = int(rows.sum())
        for _, key in self.program.products[: self.program.given]:
            point.tensors[key][rows, :, 0] = self.rng.uniform(*scores, size=(count, KEYS))
        for leaf, drawn in point.params.items():
            if leaf.type != BOOL:
                drawn[rows] = self.rng.uniform(*params, size=(count, drawn.shape[1]))


def _scores(rng: np.random.Generator) -> Array:
    kinds = [
        rng.normal(size=(6, KEYS)),
        np.abs(rng.normal(size=(6, KEYS))) + 0.1,
        -np.abs(rng.normal(size=(2, KEYS))) - 0.1,
        np.round(rng.normal(size=(3, KEYS)) * 2) / 2,
        np.zeros((1, KEYS)),
        np.full((1, KEYS), 1.5),
        rng.normal(size=(2, KEYS)) + 4,
        rng.normal(size=(2, KEYS)) * 1e-2,
        rng.normal(size=(2, KEYS)) * 15,
    ]
    return np.concatenate(kinds)
