"""The numeric confirmation of derived derivatives, in float64: against differences of the program as it was written.

Nothing of the derivation takes part in it: the value <seeds, outputs> of a program is computed at points along a random
direction, extrapolated to its derivative (Richardson), and compared with what the derived program says. Detached values are
held at the base point. Rows of scores are normal, of one sign, with ties, zero, equal, shifted, tiny and large; rows on which
the value has a kink, where its differences do not settle, do not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from attn_mlir.passes.derivation.evaluate import Array, Evaluator
from attn_mlir.passes.derivation.expr import BOOL, Node, nodes
from attn_mlir.passes.differentiation.errors import DifferentiationError
from attn_mlir.passes.differentiation.forward import DOT
from attn_mlir.passes.differentiation.model import Program
from attn_mlir.passes.differentiation.reverse import Seeds

KEYS, DIM = 11, 3
STEP = 2.0**-9
TOLERANCE = 1e-6
MIN_ROWS = 5
_KINKS = ("math.absf", "arith.maximumf", "arith.minimumf", "arith.cmpf")


@dataclass(frozen=True)
class Certificate:
    """`rows` random rows whose derivative was compared, and the largest error relative to the size of what is summed."""

    rows: int
    error: float


@dataclass(eq=False)
class Point:
    """Inputs of a program: tensors and values by name, parameters and rows by leaf; each row of scores stands alone."""

    tensors: dict[str, Array]
    params: dict[Node, Array]
    rows: dict[str, Array]
    reads: dict[Node, Array]
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


class _Values(Evaluator):
    """Expressions of a program at a point; `frozen` holds the values of what is detached."""

    frozen: Mapping[Node, Array]

    def _value(self, n: Node) -> Array:
        if n.op == "one" and n not in self.env:
            return np.asarray(1.0)
        if n.op == "attn.detach":
            return self.frozen[n] if n in self.frozen else self(n.args[0])
        return super()._value(n)


@dataclass(eq=False)
class Run:
    """A program's values at a point. `known`: sums at hand as tensors, for reductions that are given as products of rows."""

    program: Program
    point: Point
    frozen: Mapping[Node, Array] = field(default_factory=dict)
    known: Mapping[str, Array] | None = None

    def __post_init__(self) -> None:
        program, graph, point = self.program, self.program.graph, self.point
        env: dict[Node, Array] = {**point.params, **point.reads}
        env |= {graph.node("row", attr=name): x for name, x in point.rows.items()}
        for k, (query, key) in enumerate(program.products):
            env[graph.leaf("x", k)] = np.einsum("rd,rnd->rn", point.tensors[query], point.tensors[key])
        self.values = _Values(env, point.present)
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

    def weight(self, node: Node) -> Array:
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

    def scatters(self) -> list[tuple[Node, Array]]:
        """(parameter, weight) for every scatter; over the keys where the parameter is of the row."""
        found = []
        for s in self.program.scatters:
            if not self.program.is_pair(s.weight):
                found.append((s.param, np.broadcast_to(self.values(s.weight), (len(self.point.present), 1))))
                continue
            weight = self.weight(s.weight)
            found.append((s.param, weight if self.program.is_pair(s.param) else weight.sum(axis=1, keepdims=True)))
        return found

    def detached(self) -> dict[Node, Array]:
        p = self.program
        roots = [w for s in p.sums for w, _ in s.terms] + [r.value for r in p.rows] + [s.weight for s in p.scatters]
        everything = nodes(*roots, *p.scores, *[r.value for r in p.reductions])
        return {n: self.values(n) for n in everything if n.op == "attn.detach"}


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


class Checker:
    """Compares the derivatives of one program with differences of its values."""

    def __init__(self, program: Program, seeds: Seeds, of: Program | None = None) -> None:
        """`seeds` are the outputs' adjoints; `of` is the program whose sums are at hand as tensors (by default `program`)."""
        self.program, self.seeds, self.of = program, seeds, of or program
        rng = np.random.default_rng(7)
        scores = _scores(rng)
        rows = len(scores)
        present = rng.random((rows, KEYS)) < 0.8
        present[:, 0] = True
        self.base = self._point(rng, rows, present)
        # The first product is the score's: with this query it is the first column of the keys.
        query, key = program.products[0]
        self.base.tensors[query] = np.tile([1.0, 0.0, 0.0], (rows, 1))
        self.base.tensors[key][..., 0] = scores
        self.direction = self._point(rng, rows, present)
        for leaf in list(self.direction.params):
            if leaf.type == BOOL or program.param(leaf).read is None:
                del self.direction.params[leaf]
        for leaf in list(self.direction.reads):
            del self.direction.reads[leaf]
        self.adjoints = {name: rng.normal(size=self._shape(side, rows)) for side, name in self._outputs()}
        self.row_adjoints = {name: rng.normal(size=(rows, 1)) for name in seeds.rows}
        self.read_adjoints = {s.param: rng.normal(size=(rows, KEYS if program.is_pair(s.param) else 1)) for s in program.scatters}
        base = Run(program, self.base)
        self.frozen = base.detached()
        self.value = base
        self.slope, self.scale, self.smooth = self._differences()
        if self.smooth.sum() < MIN_ROWS:
            raise DifferentiationError("on nearly all random rows the differences of the row do not settle: it has no usable derivative")

    def _outputs(self) -> list[tuple[str, str]]:
        return [(s.side, s.name) for s in self.program.sums if s.name in self.seeds.sums]

    def _shape(self, side: str, rows: int) -> tuple[int, ...]:
        return (rows, DIM) if side == "query" else (rows, KEYS, DIM)

    def _point(self, rng: np.random.Generator, rows: int, present: Array) -> Point:
        p = self.program
        tensors = {}
        sides = [("query", q) for q, _ in p.products] + [("key", k) for _, k in p.products]
        sides += [("key" if s.side == "query" else "query", source) for s in p.sums for _, source in s.terms]
        for side, name in sides:
            if name not in tensors:
                tensors[name] = rng.normal(size=self._shape(side, rows))
        params = {}
        for i, param in enumerate(p.params):
            leaf = p.graph.leaf("param", i, BOOL if str(param.value.type) == BOOL else "f")
            drawn = rng.normal(size=(rows, KEYS if p.is_pair(leaf) else 1))
            # A parameter may be meant to be positive, as one under a logarithm is; the others stay as they are drawn.
            drawn[1::2] = np.abs(drawn[1::2]) + 0.1
            params[leaf] = drawn > 0 if leaf.type == BOOL else drawn
        everything = nodes(*[w for s in p.sums for w, _ in s.terms], *[r.value for r in p.rows], *[s.weight for s in p.scatters],
                           *[r.value for r in p.reductions], *p.scores)  # fmt: skip
        row_values = {str(n.attr): rng.normal(size=(rows, 1)) for n in sorted(everything) if n.op == "row"}
        return Point(tensors, params, row_values, {}, present)

    def _value(self, run: Run) -> tuple[Array, Array]:
        """<adjoints, outputs> for each row, and the sum of the products' sizes."""
        rows = len(self.base.present)
        total, size = np.zeros(rows), np.zeros(rows)
        sums, values = run.sums(), run.rows()
        products = [self.adjoints[name] * sums[side, name] for side, name in self._outputs()]
        products += [adjoint * values[name] for name, adjoint in self.row_adjoints.items()]
        if self.seeds.reads is not None:
            products += [self.read_adjoints[param] * weight for param, weight in run.scatters()]
        for product in products:
            flat = product.reshape(rows, -1)
            total, size = total + flat.sum(axis=1), size + np.abs(flat).sum(axis=1)
        return total, size

    def _at(self, t: float) -> Array:
        return self._value(Run(self.program, self.base.moved(self.direction, t), self.frozen))[0]

    def _differences(self) -> tuple[Array, Array, Array]:
        with np.errstate(all="ignore"):
            here, size = self._value(self.value)
            steps = (STEP, STEP / 2, STEP / 4, STEP / 8)
            sides = [(self._at(h), self._at(-h)) for h in steps]
            central = [(up - down) / (2 * h) for h, (up, down) in zip(steps, sides, strict=True)]
            # The slopes to either side differ by bend + O(h); at a kink their mean, which is `central`, settles all the same.
            bends = [(up + down - 2 * here) / h for h, (up, down) in zip(steps, sides, strict=True)]
            bend = 2 * bends[3] - bends[2]
            first = [(4 * b - a) / 3 for a, b in pairwise(central)]
            second = [(16 * b - a) / 15 for a, b in pairwise(first)]
            scale = 1.0 + size + np.abs(second[-1])
            settled = np.abs(second[1] - second[0]) <= 0.1 * TOLERANCE * scale
            settled &= np.abs(first[2] - first[1]) <= 10 * TOLERANCE * scale
            settled &= np.abs(bend) <= TOLERANCE * scale
            return second[-1], scale, settled & np.isfinite(second[-1])

    def _ties(self) -> Array:
        """Rows on which a kink is met exactly. There a derivative is a convention, which differences need not follow."""
        p, present = self.program, self.base.present
        roots = [w for s in p.sums for w, _ in s.terms] + [r.value for r in p.rows] + [s.weight for s in p.scatters]
        kinks = [(n.args[0], p.graph.const(0.0) if n.op == "math.absf" else n.args[1])
                 for n in nodes(*roots, *p.scores, *[r.value for r in p.reductions]) if n.op in _KINKS]  # fmt: skip
        found = np.zeros(len(present), bool)
        with np.errstate(all="ignore"):
            for x, y in kinks:
                equal = np.asarray(self.value.values(x) == self.value.values(y))
                found |= (np.broadcast_to(equal, present.shape) & present).any(axis=1)
            for i, reduction in enumerate(p.reductions):
                if reduction.kind != "sum":
                    equal = np.asarray(self.value.values(reduction.value) == self.value.values(p.red(i)))
                    found |= (np.broadcast_to(equal, present.shape) & present).sum(axis=1) > 1
        return found

    def _confirm(self, got: Array, what: str) -> Certificate:
        with np.errstate(all="ignore"):
            error = np.abs(got - self.slope) / self.scale
        error = np.where(np.isnan(error), np.inf, error)
        counted = self.smooth & ((error <= TOLERANCE) | ~self._ties())
        if counted.sum() < MIN_ROWS:
            counted = self.smooth
        error = error[counted]
        worst = float(error.max())
        if worst > TOLERANCE:
            raise DifferentiationError(
                f"the derived {what} disagrees with differences of the row on {int((error > TOLERANCE).sum())} of {error.size} "
                f"random rows, by up to {worst:.1e}"
            )
        return Certificate(error.size, worst)

    def check_reverse(self, derived: Program, what: str = "backward") -> Certificate:
        """Confirms that `derived` computes the gradients. Raises DifferentiationError."""
        tensors = dict(self.base.tensors)
        tensors.update({seed: self.adjoints[name] for name, seed in self.seeds.sums.items() if name in self.adjoints})
        rows = dict(self.base.rows)
        rows.update({seed: self.row_adjoints[name] for name, seed in self.seeds.rows.items()})
        reads = {}
        if self.seeds.reads is not None:
            reads = {self.program.adjoint_read(param, self.seeds.reads): x for param, x in self.read_adjoints.items()}
        known = {name: value for (_, name), value in Run(self.of, self.base).sums().items()}
        run = Run(derived, Point(tensors, self.base.params, rows, reads, self.base.present), {}, known)
        total = np.zeros(len(self.base.present))
        for (_, name), gradient in run.sums().items():
            if name in self.direction.tensors:
                total = total + (gradient * self.direction.tensors[name]).reshape(len(total), -1).sum(axis=1)
        for name, gradient in run.rows().items():
            total = total + (gradient * self.direction.rows[name]).sum(axis=1)
        for leaf, gradient in run.scatters():
            total = total + (gradient * self.direction.params[leaf]).sum(axis=1)
        return self._confirm(total, what)

    def check_forward(self, derived: Program) -> Certificate:
        """Confirms that `derived` computes the tangents, all inputs having one. Raises DifferentiationError."""
        tensors = self.base.tensors | {DOT + name: x for name, x in self.direction.tensors.items()}
        reads = {self.program.adjoint_read(leaf, DOT): x for leaf, x in self.direction.params.items()}
        run = Run(derived, Point(tensors, self.base.params, self.base.rows, reads, self.base.present))
        sums, rows = run.sums(), run.rows()
        total = np.zeros(len(self.base.present))
        for side, name in self._outputs():
            total = total + (self.adjoints[name] * sums[side, DOT + name]).sum(axis=1)
        for name, adjoint in self.row_adjoints.items():
            total = total + (adjoint * rows[DOT + name]).sum(axis=1)
        return self._confirm(total, "tangent")
