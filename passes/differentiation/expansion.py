"""Reverse mode with or without products of differences multiplied out in sums over the keys.

Multiplied out, sums are often equal to others: the second derivative of softmax takes five of them, not eight. But sum_j (s_j - m)
(s_j - c) p_j by way of the sums of s^2 p, s p and p loses all digits in f32 where scores are large. So a program is derived in both ways:
the one with fewer sums is taken, and the other one where multiplied out terms cancel, on rows of small, large and nearly equal scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attn_mlir.passes.derivation.evaluate import Array
from attn_mlir.passes.derivation.expr import Expr
from attn_mlir.passes.differentiation.model import RowModel
from attn_mlir.passes.differentiation.points import DIM, KEYS, Draw, Point
from attn_mlir.passes.differentiation.reverse import Reverse, Ruling, Seeds
from attn_mlir.passes.differentiation.rounded_weights import RoundedRun, is_off, rows_of_scores
from attn_mlir.passes.differentiation.values import PointValues

_BITS = 24
_SIZES = (1.0, 30.0, 300.0)
_FACTOR, _ROUNDINGS = 8.0, 16.0


def reversed_program(primal: RowModel, seeds: Seeds) -> Reverse:
    """The reverse mode of a program, with the sums that are fewer or more accurate."""
    expanded = Reverse(primal, seeds)
    expanded.run()
    if not expanded.has_unknown:
        return expanded
    whole = Reverse(primal, seeds, whole=True)
    whole.run()
    if whole.second_passes() < expanded.second_passes():
        return whole
    if _Cancellation(expanded, whole).found():
        whole.steps.append(Ruling("sums over keys", "whole", "terms would cancel that are much larger than what is left, at large scores"))
        return whole
    return expanded


@dataclass(eq=False)
class _Cancellation:
    """Compares two derivations of one gradient in arithmetic of single precision."""

    expanded: Reverse
    whole: Reverse

    def found(self) -> bool:
        """Whether gradients that are multiplied out are much further off, on most of the rows of a kind."""
        return is_off(self._excess(rows_of_scores(_SIZES)))

    def _excess(self, rows: Sequence[tuple[Array, int]]) -> list[Array]:
        """How many times the error that it may have each output has, in each row."""
        point = Point.joined([self._point(scores, np.random.default_rng(seed)) for scores, seed in rows])
        with np.errstate(all="ignore"):
            exact = PointValues(self.expanded.result, point)
            ours, other = (_outputs(RoundedRun(r.result, point, bits=_BITS)) for r in (self.expanded, self.whole))
            sizes = _sizes(exact)
            return [_error(ours[key], x, other[key], sizes[key]) for key, x in _outputs(exact).items() if key in other]

    def _point(self, scores: Array, rng: np.random.Generator) -> Point:
        primal, seeds, rows = self.expanded.primal, self.expanded.seeds, len(scores)
        point = Draw(primal, rng, scores).base()
        point.present[:] = True
        for s in primal.sums:
            if s.name in seeds.sums:
                point.tensors[seeds.sums[s.name]] = rng.normal(size=(rows, DIM) if s.side == "query" else (rows, KEYS, DIM))
        point.rows.update({name: rng.normal(size=(rows, 1)) for name in seeds.rows.values()})
        if seeds.reads is not None:
            for s in primal.scatters:
                point.reads[primal.adjoint_read(s.param, seeds.reads)] = rng.normal(size=(rows, KEYS if primal.is_pair(s.param) else 1))
        return point


def _outputs(run: PointValues) -> Mapping[object, Array]:
    """The weights of sums, and the other outputs."""
    weights: dict[object, Array] = {(s.name, source): run.weight(w) for s in run.program.sums for w, source in s.terms}
    weights |= {(s.param, run.program.is_pair(s.weight)): x for s, (_, x) in zip(run.program.scatters, run.scatters(), strict=True)}
    return weights | run.rows()


def _sizes(run: PointValues) -> Mapping[object, Array]:
    """The size of the terms of which each output is the sum."""
    p = run.program
    roots: dict[object, Expr] = {(s.name, source): w for s in p.sums for w, source in s.terms}
    roots |= {(s.param, p.is_pair(s.weight)): s.weight for s in p.scatters} | {r.name: r.value for r in p.rows}
    return {key: sum((np.abs(run.weight(n)) for n in _terms(root)), np.zeros(1)) for key, root in roots.items()}


def _terms(root: Expr) -> list[Expr]:
    found, todo = list[Expr](), [root]
    while todo:
        n = todo.pop()
        if n.op in ("arith.addf", "arith.subf", "arith.negf"):
            todo += n.args
        else:
            found.append(n)
    return found


def _error(ours: Array, exact: Array, other: Array, size: Array) -> Array:
    """The error by what it may be: a factor times that of the other way, and some roundings of the terms."""
    error, of_other = (np.abs(x - exact).max(axis=1) for x in (ours, other))
    allowed = _FACTOR * of_other + _ROUNDINGS * 2.0**-_BITS * size.max(axis=1)
    return np.where(np.isfinite(allowed) & (error > 0), error / allowed, 0.0)
