"""The check of a derived program in the range of its types: on large, small and equal scores, in f32 and with f16 weights."""

from dataclasses import dataclass

import numpy as np

from attn_mlir.passes.derivation.check import BLOCKS, KEYS, Samples, Simulation, dense
from attn_mlir.passes.derivation.evaluate import Array, Evaluator
from attn_mlir.passes.derivation.expr import Expr
from attn_mlir.passes.derivation.program import OnlineRow
from attn_mlir.passes.derivation.row import Row

_LARGE = (20.0, 50.0, 100.0, 1e3, 1e4)
_MASKS = (-3e5, -1e9, 1e9, 1e30, float(np.finfo(np.float32).min))
_FAR = 1e35
"""A row's own sums beyond are made of masks."""
_SMALL = (1e-3, 1e-2, 1e-1)
_TINY = 1e-12
_FACTOR = 16.0
_EPSILON = {None: 1e-2, np.float16: 2e-2}
_EPSILON_SMALL = 1e-4
_CANCELLED, _LEAST = 1e-3, 1e-16


def range_samples(row: Row, dtype: type, tiny: bool) -> Samples:
    """Rows of scores of every size, in blocks that differ in it; `tiny` ones are left out where the type of weights has none."""
    rng = np.random.default_rng(11)
    first = np.arange(KEYS) < BLOCKS[0]
    last = np.arange(KEYS) == KEYS - 1
    sizes = [*_SMALL, *_LARGE, *([_TINY] if tiny else [])]
    kinds = [size * rng.normal(size=(3, KEYS)) for size in sizes]
    for size in sizes:
        kinds += [sign * size * (np.abs(rng.normal(size=(1, KEYS))) + 0.1) for sign in (1, -1)]
        kinds.append(np.array([[size], [-size]]) * np.ones(KEYS))
    for size in _LARGE:
        for there in (first, last, ~first, ~last):
            kinds += [np.where(there, size, -size)[None], np.where(there, size, 0.0)[None], np.where(there, -size, 0.0)[None]]
        kinds.append(np.array([[size], [-size]]) * np.linspace(-1, 1, KEYS))
    scores = np.concatenate([np.zeros((1, KEYS)), *kinds])
    rows = len(scores)
    present = np.ones((rows, KEYS), bool)
    present[2::5] = rng.random((len(present[2::5]), KEYS)) < 0.6
    present[:, -1] |= ~present.any(axis=1)
    params = {leaf: parameter(leaf.type, rng, rows, dtype) for leaf in row.params.leaves}
    return _with_values(row, rng, scores.astype(dtype), present, params)


def masked_samples(row: Row, dtype: type) -> Samples:
    """Rows of scores that masks of numbers, which are finite and large, are added to: here and there, or everywhere."""
    rng = np.random.default_rng(13)
    places = [np.arange(KEYS) < BLOCKS[0], np.arange(KEYS) == KEYS - 1, np.ones(KEYS, bool)]
    places += [~place for place in places[:2]] + [rng.random(KEYS) < 0.5]
    scores = np.concatenate([rng.normal(size=(4, KEYS)) + np.where(place, low, 0.0) for low in _MASKS for place in places])
    rows = len(scores)
    params = {leaf: parameter(leaf.type, rng, rows, dtype) for leaf in row.params.leaves}
    sizes = np.resize([1.0, 1.0, 8.0, 0.125], (rows, 1)).astype(dtype)  # multiples of the lowest number overflow
    params = {leaf: drawn if drawn.dtype == bool else drawn * sizes for leaf, drawn in params.items()}
    return _with_values(row, rng, scores.astype(dtype), np.ones((rows, KEYS), bool), params)


def _with_values(row: Row, rng: np.random.Generator, scores: Array, present: Array, params: dict[Expr, Array]) -> Samples:
    """Samples of these first scores, with others and values drawn, of their type."""
    others = [rng.normal(size=scores.shape).astype(scores.dtype) for _ in row.scores[1:]]
    values = [rng.normal(size=(*scores.shape, 2)).astype(scores.dtype) for _ in range(1 + max(len(row.weights) - 1, 0))]
    return Samples(scores, values[0], present, params, np.ones(len(scores), bool), others, values[1:])


def parameter(type_: str, rng: np.random.Generator, rows: int, dtype: type) -> Array:
    """A number for each row, positive in every second one, or a condition."""
    drawn = rng.normal(size=(rows, 1))
    drawn[::2] = np.abs(drawn[::2]) + 0.1
    return drawn > 0 if type_ == "i1" else drawn.astype(dtype)


@dataclass(eq=False)
class RangeFinder:
    """Finds where a program of one row leaves the range of its types though the row as written does not.

    `weights` is the type that weights are rounded to before they meet v: np.float16, or None where it has the range of f32.
    """

    row: Row
    weights: type | None = None

    def __post_init__(self) -> None:
        self._dtype: type = np.float64 if self.row.double else np.float32
        self._data = self._samples()
        self._epsilon = self._allowance(np.abs(self._data.scores).max(axis=1, keepdims=True))
        exact = _in(self._data, np.float64)
        self._exact = self._results(dense(self.row, exact, exact.scores))
        self._written = self._results(dense(self.row, self._data, self._data.scores, self._dtype, self.weights))
        self._size = [self._summands(exact), *[np.ones((len(exact.scores), 1)) for _ in self.row.outputs]]

    def _samples(self) -> Samples:
        return range_samples(self.row, self._dtype, self.weights is None)

    def _allowance(self, largest: Array) -> Array:
        """The error that rows may have anyway, relative to the size of what is summed."""
        # Nothing is near the ends of the range where scores are small: there only differences lose digits, and rounded weights.
        return np.where((largest <= 1.0) & (self.weights is None), _EPSILON_SMALL, _EPSILON[self.weights])

    def fails(self, program: OnlineRow) -> str:
        """What is wrong with the first output that is: "overflows" or "loses its digits"; empty where all is well."""
        simulation = Simulation(program, self._data, self._dtype, self.weights)
        runs = [simulation.final(*simulation.run())]
        if program.merge is not None:
            runs.append(simulation.final(*simulation.run_merged()))
        for run in runs:
            for got, exact, written, size in zip(self._results(run), self._exact, self._written, self._size, strict=True):
                with np.errstate(all="ignore"):
                    usable = np.isfinite(exact) & np.isfinite(written)
                    if (usable & ~np.isfinite(got)).any():
                        return "overflows"
                    if (usable & _lost(got, exact, written, size, self._epsilon)).any():
                        return "loses its digits"
        return ""

    def _summands(self, data: Samples) -> Array:
        """The largest sum of |weight| |v| of each row: what errors of o are relative to, where its terms cancel."""
        env = data.leaves(self.row) | data.params | {self.row.red(i): x for i, x in dense(self.row, data, data.scores)[0].items()}
        evaluator, total = Evaluator(env, data.present), np.zeros((len(data.scores), 1))
        for weight in self.row.weights:
            w = np.where(data.present, np.broadcast_to(np.abs(evaluator(weight.node)), data.scores.shape), 0)
            with np.errstate(all="ignore"):
                total = total + (w[..., None] * np.abs(data.source(weight.source))).sum(axis=1).max(axis=1, keepdims=True)
        return total

    def _results(self, found: tuple[dict[int, Array], Array, list[Array]]) -> list[Array]:
        return [found[1], *found[2]]


@dataclass(eq=False)
class MaskFinder(RangeFinder):
    """The same on scores that masks of numbers are added to, but for rows that add these up themselves, as a linear one does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        exact = _in(self._data, np.float64)
        reduced = dense(self.row, exact, exact.scores)[0]
        sums = [np.abs(reduced[i]) for i, reduction in enumerate(self.row.reductions) if reduction.kind == "sum"]
        far = np.any([np.broadcast_to(each, (len(exact.scores), 1)) > _FAR for each in sums], axis=0) if sums else False
        self._written = [np.where(far, np.nan, each) for each in self._written]

    def _samples(self) -> Samples:
        return masked_samples(self.row, self._dtype)


def _in(data: Samples, dtype: type) -> Samples:
    """The same numbers in another type."""
    params = {leaf: x if x.dtype == bool else x.astype(dtype) for leaf, x in data.params.items()}
    more_scores, more_values = ([x.astype(dtype) for x in several] for several in (data.more_scores, data.more_values))
    return Samples(data.scores.astype(dtype), data.values.astype(dtype), data.present, params, data.tame, more_scores, more_values)


def _lost(got: Array, exact: Array, written: Array, size: Array, epsilon: Array) -> Array:
    """Where the error is much larger than that of the row as written, in rows whose terms do not cancel."""
    largest = np.abs(exact).max(axis=1, keepdims=True)
    allowed = _FACTOR * np.abs(written - exact) + epsilon * np.maximum(largest, size)
    return (largest > np.maximum(_CANCELLED * size, _LEAST)) & (np.abs(got - exact) > allowed)
