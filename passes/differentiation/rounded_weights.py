"""Rounded weights: whether <do, o> may stand for the sum over keys of dp p where weights have 16 bits when they meet v.

<do, o> carries what this rounding did to o. In p (dp - <do, o>), as of a softmax, that is as small as what rounding p does to the dense
formula. In the gradient of s softmax(s), where terms of the size of s cancel, it is larger than the gradient itself. So both are tried on
rows of small, large and nearly equal scores: the derived gradient with rounded weights in <do, o>, and the derivative with every
operation rounded, which is what the dense formula in the inputs' type computes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attn_mlir.passes.derivation.evaluate import Array
from attn_mlir.passes.derivation.expr import BOOL, Expr, nodes
from attn_mlir.passes.differentiation.algebra import Algebra, factors_of
from attn_mlir.passes.differentiation.points import DIM, KEYS, Draw, Point
from attn_mlir.passes.differentiation.reverse import Reverse
from attn_mlir.passes.differentiation.values import PointValues, Values

SIGNIFICANT = {"f16": 11, "bf16": 8}
"""The significant bits of types."""
_SIZES = (30.0, 300.0, 3000.0)
_EACH = 8
_FACTOR, _ROUNDINGS, _SINGLE = 4.0, 16.0, 2.0**-20


def rounded(x: Array, bits: int) -> Array:
    """Numbers with so many significant bits, in any range."""
    if x.dtype == bool:
        return x
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.round(np.ldexp(fraction, bits)), exponent - bits)


class _RoundedValues(Values):
    """Expressions whose every operation is rounded to `bits`."""

    bits: int

    def _value(self, n: Expr) -> Array:
        value = super()._value(n)
        return value if n.type == BOOL or n.is_const else rounded(np.asarray(value), self.bits)


@dataclass(eq=False)
class RoundedRun(PointValues):
    """A program's values in arithmetic of `bits`: what its dense formula gives in a type of 16 bits."""

    bits: int = 53

    def evaluator(self, env: dict[Expr, Array]) -> Values:
        values = _RoundedValues(env, self.point.present)
        values.bits = self.bits
        return values

    def product(self, query: str, key: str) -> Array:
        return rounded(super().product(query, key), self.bits)


@dataclass(eq=False)
class RoundedWeights:
    """Tells which sums over keys that a derived gradient takes from products of rows with o are too rough."""

    reverse: Reverse
    bits: int

    def __post_init__(self) -> None:
        self.primal, self.adjoint, self.seeds = self.reverse.primal, self.reverse.result, self.reverse.seeds
        self.algebra = Algebra(self.primal.graph, self.primal.is_pair)
        scores = [k for k, score in enumerate(self.primal.scores) if any(n.op == "x" for n in nodes(score))]
        self.gradients = [self.reverse.as_autograd(self.primal.graph.leaf("s", k)) for k in scores]

    def lost(self) -> list[int]:
        """The reductions to be summed over the keys instead."""
        given = [i for i, r in enumerate(self.adjoint.reductions) if isinstance(r.given, tuple)]
        if not self.adjoint.reductions_of(*self.gradients) & set(given):
            return []
        # Where most rows of a kind are much further off than the dense formula.
        return given if is_off(self.excess(rows_of_scores(_SIZES))) else []

    def excess(self, rows: Sequence[tuple[Array, int]]) -> list[Array]:
        """How many times the error that it may have the gradient by each score of a product has, in each row."""
        point = Point.joined([self._point(scores, np.random.default_rng(seed)) for scores, seed in rows])
        known = {name: x for (_, name), x in PointValues(self.primal, point).sums().items() if name in self.seeds.known}
        ours = PointValues(self.adjoint, point, {}, {name: self._output(point, name) for name in known})
        once, twice = (PointValues(self.adjoint, point, {}, {n: f * x for n, x in known.items()}) for f in (1, 2))
        dense = RoundedRun(self.adjoint, point, bits=self.bits)
        with np.errstate(all="ignore"):
            return [
                self._excess([np.broadcast_to(x.values(g), point.present.shape) for x in (once, ours, dense, twice)])
                for g in self.gradients
            ]

    def _excess(self, values: Sequence[Array]) -> Array:
        wanted, *others = values
        error, of_dense, part = (np.abs(x - wanted).max(axis=1) for x in others)
        allowed = _FACTOR * of_dense + _ROUNDINGS * 2.0**-self.bits * np.abs(wanted).max(axis=1) + _SINGLE * part
        return np.where(np.isfinite(allowed) & (error > 0), error / allowed, 0.0)

    def _point(self, scores: Array, rng: np.random.Generator) -> Point:
        point = Draw(self.primal, rng, scores).base()
        point.present[:] = True
        point.tensors.update({name: rng.normal(size=(len(scores), DIM)) for name in self.seeds.sums.values()})
        point.rows.update({name: rng.normal(size=(len(scores), 1)) for name in self.seeds.rows.values()})
        return point

    def _output(self, point: Point, name: str) -> Array:
        """An output whose weights are rounded when they meet v."""
        run, total = PointValues(self.primal, point), np.zeros(1)
        for out in self.primal.sums:
            for weight, source in out.terms if out.name == name else ():
                with np.errstate(all="ignore"):
                    total = total + np.einsum("rn,rnd->rd", self._rounded(run, weight), point.tensors[source])
        return total

    def _rounded(self, run: PointValues, weight: Expr) -> Array:
        """A weight as an online form rounds it: without factors of the row, exponentials relative to the largest of the row."""
        parts = self.algebra.split(weight)
        row, pair = parts[0] if len(parts) == 1 else (self.primal.graph.const(1.0), weight)
        scale = run.values(row)
        exponentials = [f for f in factors_of(pair) if f.op in ("math.exp", "math.exp2")]
        with np.errstate(all="ignore"):
            for f in exponentials:
                scale = scale * run.weight(f).max(axis=1, keepdims=True)
            return rounded(run.weight(weight) / scale, self.bits) * scale


def is_off(excess: Sequence[Array]) -> bool:
    """Whether most of the rows of a kind are off by more than they may be; `excess`: of outputs, in all rows of `rows_of_scores`."""
    return any(bool((np.median(x.reshape(-1, _EACH), axis=1) > 1.0).any()) for x in excess)


def rows_of_scores(sizes: Sequence[float]) -> Sequence[tuple[Array, int]]:
    """Rows of scores of one kind and size each, and a number for each kind: normal, of one sign, nearly equal, evenly spread."""
    rng = np.random.default_rng(5)
    kinds: Sequence[Callable[[float], Array]] = (
        lambda size: size * rng.normal(size=(_EACH, KEYS)),
        lambda size: size * (0.1 + np.abs(rng.normal(size=(_EACH, KEYS)))),
        lambda size: -size * (0.1 + np.abs(rng.normal(size=(_EACH, KEYS)))),
        lambda size: size + rng.normal(size=(_EACH, KEYS)),
        lambda size: size * rng.permuted(np.tile(np.linspace(-1, 1, KEYS), (_EACH, 1)), axis=1) * (1 + 0.1 * rng.random((_EACH, 1))),
    )
    return [(kind(size), number) for size in sizes for number, kind in enumerate(kinds)]
