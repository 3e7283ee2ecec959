"""The numeric confirmation of a derived program: blockwise against the dense row, in float64, on hostile real scores."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.evaluate import Array, Evaluator
from attn_mlir.passes.derivation.expr import Expr
from attn_mlir.passes.derivation.plan import OUTPUT
from attn_mlir.passes.derivation.program import OnlineRow
from attn_mlir.passes.derivation.row import Row

KEYS = 21
BLOCKS = (2, 4, 5, 6, 9, KEYS)
EMPTY = (2, 4)
TOLERANCE, LOOSE = 1e-10, 1e-6
MIN_ROWS = 6
ROOM = 64.0
"""Weights of sums that are rescaled may be this much larger than they say: where a target rescales only now and then."""


@dataclass(frozen=True)
class CheckReport:
    """`points` values compared, the largest relative error, and what failed: reductions, or the OUTPUT."""

    points: int
    error: float
    failed: frozenset[int]


@dataclass(frozen=True, eq=False)
class Samples:
    """Rows of scores with values, presence and parameters; `tame` rows must agree to the tight tolerance.

    A row with several scores has the others in `more_scores`, weights of several tensors have the others in `more_values`.
    """

    scores: Array
    values: Array
    present: Array
    params: dict[Expr, Array]
    tame: Array
    more_scores: Sequence[Array] = ()
    more_values: Sequence[Array] = ()

    def leaves(self, row: Row, keys: slice = slice(None)) -> dict[Expr, Array]:
        """The scores of some keys by their leaves."""
        return {leaf: scores[:, keys] for leaf, scores in zip(row.score_leaves, (self.scores, *self.more_scores), strict=True)}

    def source(self, number: int, keys: slice = slice(None)) -> Array:
        """What a weight sums."""
        return (self.values, *self.more_values)[number][:, keys]

    def shaken(self) -> "Samples":
        """The same with scores that differ in the last bits."""
        rng = np.random.default_rng(1)
        first, *others = [scores * (1 + 1e-13 * rng.normal(size=scores.shape)) for scores in (self.scores, *self.more_scores)]
        return replace(self, scores=first, more_scores=others)


def samples(row: Row, seed: int = 0) -> Samples:
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=(8, KEYS))
    pairs = rng.normal(size=(3, KEYS))
    pairs[:, 1] = -pairs[:, 0]
    ties = np.round(rng.normal(size=(4, KEYS)))
    kinds = [
        (normal, True),
        (np.abs(rng.normal(size=(4, KEYS))) + 0.1, True),
        (-np.abs(rng.normal(size=(3, KEYS))), True),
        (pairs, True),
        (ties, True),
        (np.round(rng.normal(size=(2, KEYS))) * rng.normal(size=(2, 1)), True),
        (np.zeros((1, KEYS)), True),
        (np.full((1, KEYS), 1.5), True),
        (rng.normal(size=(3, KEYS)) * 3 + 4, True),
        (rng.normal(size=(3, KEYS)) * 40, False),
        (np.linspace(-30, 30, KEYS)[None] * np.array([[1.0], [-1.0]]), False),
    ]
    scores = np.concatenate([k for k, _ in kinds])
    tame = np.concatenate([np.full(len(k), t) for k, t in kinds])
    rows = len(scores)
    present = np.ones((rows, KEYS), bool)
    present[1::2] = rng.random((rows // 2, KEYS)) < 0.7
    present[:, -1] |= ~present.any(axis=1)
    present[3::4, EMPTY[0] : EMPTY[1]] = False
    present[5::6, : BLOCKS[0]] = False
    present[:, -1] |= ~present.any(axis=1)
    params: dict[Expr, Array] = {}
    for leaf in row.params.leaves:
        drawn = rng.normal(size=(rows, 1))
        # A parameter may be meant to be positive, as one under a logarithm is; the others stay as they are drawn.
        drawn[2::4] = np.abs(drawn[2::4]) + 0.1
        params[leaf] = drawn > 0 if leaf.type == "i1" else drawn
    values = rng.normal(size=(rows, KEYS, 2))
    more_scores = [rng.normal(size=(rows, KEYS)) + rng.choice([0.0, 2.0], size=(rows, 1)) for _ in row.scores[1:]]
    more_values = [rng.normal(size=(rows, KEYS, 2)) for _ in row.weights[1:]]
    return Samples(scores, values, present, params, tame, more_scores, more_values)


def dense(
    row: Row, data: Samples, scores: Array, dtype: type = np.float64, weights: type | None = None
) -> tuple[dict[int, Array], Array, list[Array]]:
    """The row program evaluated as it was written: reductions, two columns of every output, and row outputs.

    `weights` is the type that weights are rounded to.
    """
    env: dict[Expr, Array] = replace(data, scores=scores).leaves(row) | data.params
    rows = len(scores)
    reductions: dict[int, Array] = {}
    for i, reduction in enumerate(row.reductions):
        value = Evaluator(env, data.present, dtype)(row.graph.reduce(reduction.kind, reduction.value))
        env[row.red(i)] = reductions[i] = value
    evaluator = Evaluator(env, data.present, dtype)
    o = [np.zeros((rows, 2), dtype) for _ in range(row.o_count)]
    for weight in row.weights:
        w = rounded(np.where(data.present, np.broadcast_to(evaluator(weight.node), scores.shape), 0), weights)
        with np.errstate(all="ignore"):
            o[weight.output] = o[weight.output] + (w[..., None] * data.source(weight.source)).sum(axis=1)
    return reductions, np.concatenate(o, axis=1), [np.broadcast_to(Evaluator(env, None, dtype)(n), (rows, 1)) for n in row.outputs]


def rounded(weights: Array, to: type | None, room: float = 1.0) -> Array:
    """Weights as a product with v reads them; those `room` times as large must be in range, too."""
    if to is None:
        return weights
    with np.errstate(all="ignore"):
        return np.where(np.isfinite((weights * room).astype(to)), weights.astype(to), np.inf).astype(weights.dtype)


@dataclass(eq=False)
class Simulation:
    """Runs a program on samples, block by block."""

    program: OnlineRow
    data: Samples
    dtype: type = np.float64
    weights: type | None = None

    def run(self) -> tuple[list[Array], list[Array]]:
        """States and accumulators after all passes."""
        states = self._start()
        accumulators: list[Array] = []
        for step in range(len(self.program.steps)):
            states, accumulators = self.kv_pass(states, 0, KEYS, step)
        return states, accumulators

    def run_merged(self) -> tuple[list[Array], list[Array]]:
        """The same for one pass, from three disjoint sets of keys, the middle one (often) empty."""
        cuts = (0, *EMPTY, KEYS)
        parts = [self.kv_pass(self._start(), b, e, 0) for b, e in pairwise(cuts)]
        nothing = (self._start(), [np.zeros((len(self.data.scores), 2), self.dtype) for _ in parts[0][1]])
        return self._merge(self._merge(self._merge(parts[1], parts[0]), nothing), self._merge(nothing, parts[2]))

    def kv_pass(self, states: list[Array], begin: int, end: int, step: int) -> tuple[list[Array], list[Array]]:
        piece = self.program.steps[step]
        accumulators = [np.zeros((len(self.data.scores), 2), self.dtype) for _ in piece.weights]
        for block_end in BLOCKS:
            block_end = min(block_end, end)
            if block_end <= begin:
                continue
            states, accumulators = self._block(step, states, accumulators, slice(begin, block_end))
            begin = block_end
        return states, accumulators

    def final(self, states: list[Array], accumulators: list[Array]) -> tuple[dict[int, Array], Array, list[Array]]:
        env = self._env("old", states)
        leaf, rows = self.program.graph.leaf, len(self.data.scores)
        columns = []
        for o in self.program.o:
            for d in range(2):
                here = env | {leaf("acc", i): acc[:, d : d + 1] for i, acc in enumerate(accumulators)}
                columns.append(Evaluator(here, None, self.dtype)(o))
        evaluator = Evaluator(env, None, self.dtype)
        reductions = {i: np.broadcast_to(evaluator(n), (rows, 1)) for i, n in self.program.reductions.items()}
        outputs = [np.broadcast_to(evaluator(n), (rows, 1)) for n in self.program.outputs]
        return reductions, np.concatenate([np.broadcast_to(c, (rows, 1)) for c in columns], axis=1), outputs

    def _start(self) -> list[Array]:
        evaluator = Evaluator(self.data.params, None, self.dtype)
        return [np.broadcast_to(evaluator(n), (len(self.data.scores), 1)) for n in self.program.init]

    def _env(self, side: str, states: Sequence[Array]) -> dict[Expr, Array]:
        return {self.program.graph.leaf(side, i): x for i, x in enumerate(states)} | self.data.params

    def _block(self, step: int, states: list[Array], accumulators: list[Array], keys: slice) -> tuple[list[Array], list[Array]]:
        piece, present = self.program.steps[step], self.data.present[:, keys]
        scores = self.data.leaves(self.program.plan.row, keys)
        evaluator = Evaluator(self._env("old", states) | scores, present, self.dtype)
        new = [evaluator(n) for n in piece.states]
        updated = []
        for weight, scale, acc, of in zip(piece.weights, piece.scales, accumulators, self.program.plan.accumulators, strict=False):
            room = ROOM if of.shift[0] or of.shift[1] else 1.0
            w = rounded(np.where(present, np.broadcast_to(evaluator(weight), present.shape), 0), self.weights, room)
            with np.errstate(all="ignore"):
                updated.append(acc * evaluator(scale) + (w[..., None] * self.data.source(of.source, keys)).sum(axis=1))
        return new, updated

    def _merge(self, x: tuple[list[Array], list[Array]], y: tuple[list[Array], list[Array]]) -> tuple[list[Array], list[Array]]:
        merge = self.program.merge
        if merge is None:
            raise DerivationError("a program of several passes does not merge")
        evaluator = Evaluator(self._env("a", x[0]) | self._env("b", y[0]), None, self.dtype)
        with np.errstate(all="ignore"):
            sides = zip(x[1], y[1], merge.scales_a, merge.scales_b, strict=True)
            scaled = [p * evaluator(a) + q * evaluator(b) for p, q, a, b in sides]
        return [evaluator(n) for n in merge.states], scaled


@dataclass(eq=False)
class Checker:
    """Confirms programs for one row; the dense values are computed once."""

    row: Row

    def __post_init__(self) -> None:
        self.data = samples(self.row)
        self.wanted = dense(self.row, self.data, self.data.scores)
        other = self.data.shaken()
        self.stable = self._stable(dense(self.row, other, other.scores))
        if self.stable.sum() < MIN_ROWS:
            raise DerivationError("the row is not a finite, stable function of its scores: nearly all random rows give no usable number")

    def check(self, program: OnlineRow) -> CheckReport:
        simulation = Simulation(program, self.data)
        runs = [simulation.final(*simulation.run())]
        if program.merge is not None:
            runs.append(simulation.final(*simulation.run_merged()))
        failed: set[int] = set()
        error, points = 0.0, 0
        for reductions, o, outputs in runs:
            pairs = [(i, reductions[i], self.wanted[0][i]) for i in sorted(reductions)]
            pairs += [(OUTPUT, o[:, n : n + 2], self.wanted[1][:, n : n + 2]) for n in range(0, o.shape[1], 2)]
            pairs += [(OUTPUT, x, y) for x, y in zip(outputs, self.wanted[2], strict=True)]
            for index, got, wanted in pairs:
                worst = self._error(got, wanted)
                limit = np.where(self.data.tame, TOLERANCE, LOOSE)[self.stable]
                points += worst.size
                if (worst > limit).any():
                    failed.add(index)
                error = max(error, float(worst[self.data.tame[self.stable]].max(initial=0.0)))
        return CheckReport(points, error, frozenset(failed))

    def _error(self, got: Array, wanted: Array) -> Array:
        """Largest error of each usable row, relative to the values' size; infinite where a finite value is lost."""
        got, wanted = got[self.stable], wanted[self.stable]
        finite = np.isfinite(wanted)
        with np.errstate(all="ignore"):
            error = np.abs(got - wanted) / np.maximum(1.0, np.abs(wanted).max(axis=1, keepdims=True))
        error = np.where(np.isnan(error), np.inf, error)
        return np.where(finite, error, 0.0).max(axis=1)

    def _stable(self, shaken: tuple[dict[int, Array], Array, list[Array]]) -> Array:
        """Rows whose dense value is finite and does not hang on the last bits of the scores."""
        stable = np.ones(len(self.data.scores), bool)
        reductions, o, outputs = self.wanted
        for x, y in zip([o, *outputs, *reductions.values()], [shaken[1], *shaken[2], *shaken[0].values()], strict=True):
            with np.errstate(all="ignore"):
                near = np.abs(x - y) <= 1e-11 * (1 + np.abs(x))
            # A reduction that overflows is not compared; the output must be a number.
            stable &= (near if x is o else near | ~np.isfinite(x)).all(axis=1)
        return stable
