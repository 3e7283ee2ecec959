"""The numeric confirmation of derived derivatives, in float64: against differences of the program as it was written.

Nothing of the derivation takes part in it: the value <seeds, outputs> of a program is computed at points along a random
direction, extrapolated to its derivative (Richardson), and compared with what the derived program says. Detached values are
held at the base point. Rows on which the value has a kink, where its differences do not settle, do not count, nor do those where
what the derived program says hangs on the last bits of its inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.derivation.evaluate import Array
from attn_mlir.passes.derivation.expr import BOOL, Expr, nodes
from attn_mlir.passes.differentiation.errors import DifferentiationError
from attn_mlir.passes.differentiation.forward import DOT
from attn_mlir.passes.differentiation.model import RowModel
from attn_mlir.passes.differentiation.points import DOMAINS, KEYS, Draw, Point
from attn_mlir.passes.differentiation.reverse import Seeds
from attn_mlir.passes.differentiation.values import PointValues

STEP = 2.0**-9
TOLERANCE = 1e-6
MIN_ROWS = 5
_KINKS = ("math.absf", "arith.maximumf", "arith.minimumf", "arith.cmpf")


@dataclass(frozen=True)
class Certificate:
    """`rows` random rows whose derivative was compared, and the largest error relative to the size of what is summed."""

    rows: int
    error: float


class GradientChecker:
    """Compares the derivatives of one program with differences of its values."""

    def __init__(self, program: RowModel, seeds: Seeds, of: RowModel | None = None) -> None:
        """`seeds` are the outputs' adjoints; `of` is the program whose sums are at hand as tensors (by default `program`)."""
        self.program, self.seeds, self.of = program, seeds, of or program
        rng = np.random.default_rng(7)
        draw = Draw(program, rng)
        self.base, self.direction = draw.base(), draw.point()
        rows = draw.rows
        for leaf in list(self.direction.params):
            if leaf.type == BOOL or program.param(leaf).read is None:
                del self.direction.params[leaf]
        for leaf in list(self.direction.reads):
            del self.direction.reads[leaf]
        self.adjoints = {name: rng.normal(size=draw.shape(side)) for side, name in self._outputs()}
        self.row_adjoints = {name: rng.normal(size=(rows, 1)) for name in seeds.rows}
        self.read_adjoints = {s.param: rng.normal(size=(rows, KEYS if program.is_pair(s.param) else 1)) for s in program.scatters}
        self._look()
        for domain in DOMAINS:
            if self.smooth.sum() >= MIN_ROWS:
                break
            draw.again(self.base, ~self.smooth, *domain)
            self._look()
        if self.smooth.sum() < MIN_ROWS:
            self._refuse()

    def _look(self) -> None:
        """The values at the points, and their differences."""
        self.value = PointValues(self.program, self.base)
        self.frozen = self.value.detached()
        self.slope, self.scale, self.smooth = self._differences()

    def _refuse(self) -> None:
        with np.errstate(all="ignore"):
            lost = ~np.isfinite(self._value(self.value)[0])
        if 2 * lost.sum() > lost.size:
            where = self._origin_of(lost)
            raise DifferentiationError(
                "the row is NaN or infinite at nearly all random samples of scores and captured numbers, so its derivative cannot be "
                "confirmed: keep what roots, logarithms, powers and quotients take within their domain, with .clamp(min=1e-6) say",
                where,
            )
        message = "on nearly all random rows the differences of the row do not settle: it has no usable derivative"
        raise DifferentiationError(message + self._advice())

    def _advice(self) -> str:
        """What helps where reductions are compared, as in a bisection."""
        if any(n.op == "arith.select" and n.args[0].reds and not self.program.is_pair(n.args[0]) for n in self._everything()):
            return "; a value found by comparisons, as by bisection, has no derivative: detach() it and add one Newton step"
        return ""

    def _everything(self) -> set[Expr]:
        return nodes(*self.program.roots())

    def _origin_of(self, lost: Array) -> ir.Location | None:
        """Where the user wrote the first op that makes something not finite of finite numbers, on most of the rows."""

        def fails(n: Expr) -> Array:
            value = np.broadcast_to(self.value.values(n), self.base.present.shape)
            return np.any(~np.isfinite(value) & self.base.present, axis=1)

        for n in sorted(self._everything()):
            if n.type != BOOL and n in self.program.locations and 2 * (fails(n) & lost).sum() > lost.sum():
                return self.program.locations[n]
        return None

    def _outputs(self) -> list[tuple[str, str]]:
        return [(s.side, s.name) for s in self.program.sums if s.name in self.seeds.sums]

    def _value(self, run: PointValues) -> tuple[Array, Array]:
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
        return self._value(PointValues(self.program, self.base.moved(self.direction, t), self.frozen))[0]

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
        kinks = [(n.args[0], p.graph.const(0.0) if n.op == "math.absf" else n.args[1]) for n in self._everything() if n.op in _KINKS]
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

    def _confirm(self, derived: Callable[[Point], Array], what: str) -> Certificate:
        """Compares what `derived` gives at the points with the differences."""
        with np.errstate(all="ignore"):
            got = derived(self.base)
            error = np.abs(got - self.slope) / self.scale
        error = np.where(np.isnan(error), np.inf, error)
        counted = self.smooth & ((error <= TOLERANCE) | ~self._ties())
        if (error[counted] > TOLERANCE).any():
            counted &= (error <= TOLERANCE) | self._firm(derived, got)
        if counted.sum() < MIN_ROWS:
            counted = self.smooth
        error = error[counted]
        worst = float(error.max())
        if worst > TOLERANCE:
            raise DifferentiationError(
                f"the derived {what} disagrees with differences of the row on {int((error > TOLERANCE).sum())} of {error.size} "
                f"random rows, by up to {worst:.1e}{self._advice()}"
            )
        return Certificate(error.size, worst)

    def _firm(self, derived: Callable[[Point], Array], got: Array) -> Array:
        """Rows whose derivative does not hang on the last bits of the inputs, as where a huge slope meets terms that cancel."""
        rng = np.random.default_rng(3)
        shaken = replace(self.base, tensors={n: x * (1 + 1e-14 * rng.normal(size=x.shape)) for n, x in self.base.tensors.items()})
        with np.errstate(all="ignore"):
            moved = np.abs(derived(shaken) - got) / self.scale
        return ~(moved > 0.1 * TOLERANCE)

    def check_reverse(self, derived: RowModel, what: str = "backward") -> Certificate:
        """Confirms that `derived` computes the gradients. Raises DifferentiationError."""
        return self._confirm(lambda point: self._reverse(derived, point), what)

    def _reverse(self, derived: RowModel, base: Point) -> Array:
        tensors = dict(base.tensors)
        tensors.update({seed: self.adjoints[name] for name, seed in self.seeds.sums.items() if name in self.adjoints})
        rows = dict(base.rows)
        rows.update({seed: self.row_adjoints[name] for name, seed in self.seeds.rows.items()})
        reads = {}
        if self.seeds.reads is not None:
            reads = {self.program.adjoint_read(param, self.seeds.reads): x for param, x in self.read_adjoints.items()}
        known = {name: value for (_, name), value in PointValues(self.of, base).sums().items()}
        run = PointValues(derived, Point(tensors, base.params, rows, reads, base.present), {}, known)
        total = np.zeros(len(base.present))
        for (_, name), gradient in run.sums().items():
            if name in self.direction.tensors:
                total = total + (gradient * self.direction.tensors[name]).reshape(len(total), -1).sum(axis=1)
        for name, gradient in run.rows().items():
            total = total + (gradient * self.direction.rows[name]).sum(axis=1)
        for leaf, gradient in run.scatters():
            total = total + (gradient * self.direction.params[leaf]).sum(axis=1)
        return total

    def check_forward(self, derived: RowModel) -> Certificate:
        """Confirms that `derived` computes the tangents, all inputs having one. Raises DifferentiationError."""
        return self._confirm(lambda point: self._forward(derived, point), "tangent")

    def _forward(self, derived: RowModel, base: Point) -> Array:
        tensors = base.tensors | {DOT + name: x for name, x in self.direction.tensors.items()}
        reads = {self.program.adjoint_read(leaf, DOT): x for leaf, x in self.direction.params.items()}
        run = PointValues(derived, Point(tensors, base.params, base.rows, reads, base.present))
        sums, rows = run.sums(), run.rows()
        total = np.zeros(len(base.present))
        for side, name in self._outputs():
            total = total + (self.adjoints[name] * sums[side, DOT + name]).sum(axis=1)
        for name, adjoint in self.row_adjoints.items():
            total = total + (adjoint * rows[DOT + name]).sum(axis=1)
        return total
