"""Confirms a dense row on numbers: the online program, block by block in float64 on hostile scores, must give the same."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.evaluate import Array, Evaluator
from attn_mlir.passes.derivation.expr import Expr, Graph
from attn_mlir.passes.derivation.row import RowReader
from attn_mlir.passes.regions import block_of, pieces, scores_in

_KEYS = 21
_CUTS = (0, 2, 4, 5, 6, 9, _KEYS)
_COLUMNS = 2
_MIN_ROWS = 6


@dataclass(eq=False)
class _Samples:
    """Rows of scores with values and presence; on `tame` rows the programs must agree to the tight tolerance.

    Parameters get numbers as they are met: equal ones for equal expressions of the position, in whichever piece they are.
    """

    scores: Array
    values: Array
    present: Array
    tame: Array
    rng: np.random.Generator
    _parameters: dict[Hashable, Array] = field(default_factory=dict)

    _further: dict[int, Array] = field(default_factory=dict)

    def score(self, number: int) -> Array:
        """Score `number` of every key."""
        if not number:
            return self.scores
        if number not in self._further:
            self._further[number] = self.rng.normal(size=self.scores.shape)
        return self._further[number]

    def parameter(self, key: Hashable, boolean: bool) -> Array:
        if key not in self._parameters:
            drawn = self.rng.normal(size=(len(self.scores), 1))
            self._parameters[key] = drawn > 0 if boolean else drawn
        return self._parameters[key]


def _samples() -> _Samples:
    rng = np.random.default_rng(0)
    kinds = [
        (rng.normal(size=(8, _KEYS)), True),
        (np.abs(rng.normal(size=(3, _KEYS))) + 0.1, True),
        (-np.abs(rng.normal(size=(3, _KEYS))), True),
        (np.round(rng.normal(size=(4, _KEYS))), True),
        (np.zeros((1, _KEYS)), True),
        (np.full((1, _KEYS), 1.5), True),
        (rng.normal(size=(4, _KEYS)) * 3 + 4, True),
        (rng.normal(size=(4, _KEYS)) * 40, False),
        (np.linspace(-30, 30, _KEYS)[None] * np.array([[1.0], [-1.0]]), False),
    ]
    scores = np.concatenate([rows for rows, _ in kinds])
    tame = np.concatenate([np.full(len(rows), tame) for rows, tame in kinds])
    present = np.ones(scores.shape, bool)
    present[1::2] = rng.random(present[1::2].shape) < 0.7
    present[3::4, _CUTS[1] : _CUTS[2]] = False  # a block without keys, in the middle and at the beginning
    present[5::6, : _CUTS[1]] = False
    present[:, -1] |= ~present.any(axis=1)
    return _Samples(scores, rng.normal(size=(*scores.shape, _COLUMNS)), present, tame, rng)


@dataclass(eq=False)
class _Piece:
    """One piece as a function of numbers."""

    leaves: list[Expr]
    results: list[Expr]
    parameters: dict[Expr, Array]
    scores: int = 0

    def __call__(self, values: Sequence[Array], present: Array | None = None) -> list[Array]:
        evaluator = Evaluator({**self.parameters, **dict(zip(self.leaves, values, strict=True))}, present)
        return [evaluator(result) for result in self.results]


def _read(owner: ir.Operation, position: int, data: _Samples) -> _Piece:
    """The piece `owner`, whose arguments b, h and q_idx start at `position`; scores come first."""
    block, graph = block_of(owner), Graph()
    arguments = list(block.arguments)
    inputs = [*arguments[:position], *arguments[position + 3 :]]
    leaves = [graph.leaf("old", i) for i in range(len(inputs))]
    scores = position if owner.name in ("attn.step", "attn.row") else 0
    leaves[:scores] = [graph.leaf("s", k) for k in range(scores)]
    reader = RowReader(graph, block, dict(zip(inputs, leaves, strict=True)))
    results = reader.results()
    drawn = {
        leaf: data.parameter(_key(value, block, position), leaf.type == "i1")
        for leaf, value in zip(reader.params.leaves, reader.params.values, strict=True)
    }
    return _Piece(leaves, results, drawn, scores)


def _key(value: ir.Value, block: ir.Block, position: int) -> Hashable:
    """Equal for equal expressions of b, h, q_idx and the function's arguments."""
    if isinstance(value, ir.BlockArgument):
        return ("index", value.arg_number - position) if value.owner == block else ("outer", value)
    op = value.owner.operation
    if op.name != "arith.constant" and op.block != block:
        return "outer", value
    attributes = tuple((name, str(op.attributes[name])) for name in sorted(op.attributes))
    return op.name, attributes, str(value.type), *(_key(operand, block, position) for operand in op.operands)


class _Online:
    """An `attn.online` that can be run on samples."""

    def __init__(self, online: ir.Operation, data: _Samples) -> None:
        self._data, self._rows = data, len(data.scores)
        self._count = ir.IntegerAttr(online.attributes["accumulators"]).value
        self._init = _read(pieces(online, "attn.init")[0], 0, data)
        self._steps = [_read(step, scores_in(block_of(step)), data) for step in pieces(online, "attn.step")]
        self._finalize = _read(pieces(online, "attn.finalize")[0], self._count, data)

    def run(self) -> list[Array]:
        """o and the row outputs."""
        states = [self._wide(state) for state in self._init([])]
        accumulators = [np.zeros((self._rows, _COLUMNS)) for _ in range(self._count)]
        for step in self._steps:
            for begin, end in pairwise(_CUTS):
                keys = slice(begin, end)
                results = step([*(self._data.score(k)[:, keys] for k in range(step.scores)), *states], self._data.present[:, keys])
                states, rest = [self._wide(state) for state in results[: len(states)]], results[len(states) :]
                if rest:
                    accumulators = self._accumulated(accumulators, rest, keys)
        columns = [self._finalize([*(acc[:, d : d + 1] for acc in accumulators), *states]) for d in range(_COLUMNS)]
        o = np.concatenate([self._wide(column[0]) for column in columns], axis=1)
        return [o, *map(self._wide, columns[0][1:])]

    def _wide(self, value: Array) -> Array:
        return np.broadcast_to(value, (self._rows, 1))

    def _accumulated(self, accumulators: list[Array], rest: list[Array], keys: slice) -> list[Array]:
        sums = [_weighted(weight, self._data, keys) for weight in rest[: self._count]]
        with np.errstate(all="ignore"):
            return [acc * scale + new for acc, scale, new in zip(accumulators, rest[self._count :], sums, strict=True)]


def _weighted(weight: Array, data: _Samples, keys: slice) -> Array:
    """The sum of weighted values over the present ones of some keys."""
    present = data.present[:, keys]
    with np.errstate(all="ignore"):
        return (np.where(present, np.broadcast_to(weight, present.shape), 0)[..., None] * data.values[:, keys]).sum(axis=1)


def _dense(row: _Piece, data: _Samples, scores: Array) -> list[Array]:
    weight, *outputs = row([scores, *(data.score(k) for k in range(1, row.scores))], data.present)
    return [_weighted(weight, data, slice(None)), *(np.broadcast_to(output, (len(scores), 1)) for output in outputs)]


def confirm(online: ir.Operation, row_piece: ir.Operation, outputs: Sequence[str]) -> str:
    """Where the online program differs from the row, in words; empty if it does not. Raises DerivationError."""
    data = _samples()
    row = _read(row_piece, scores_in(block_of(row_piece)), data)
    wanted = _dense(row, data, data.scores)
    shaken = _dense(row, data, data.scores * (1 + 1e-13 * data.rng.normal(size=data.scores.shape)))
    with np.errstate(all="ignore"):
        stable = (np.abs(wanted[0] - shaken[0]) <= 1e-11 * (1 + np.abs(wanted[0]))).all(axis=1)
    if stable.sum() < _MIN_ROWS:
        raise DerivationError("it is not a finite, stable function of its scores: nearly all random rows give no usable number")
    limit = np.where(data.tame, 1e-10, 1e-6).reshape(-1, 1)
    for name, got, value in zip(("o", *outputs), _Online(online, data).run(), wanted, strict=True):
        with np.errstate(all="ignore"):
            error = np.abs(got - value) / np.maximum(1.0, np.abs(value).max(axis=1, keepdims=True))
        error = np.where(np.isnan(error), np.inf, error)
        error = np.where(np.isfinite(value) & stable.reshape(-1, 1), error, 0.0)
        if (error > limit).any():
            worst = np.unravel_index(int(np.argmax(error / limit)), error.shape)
            return f"{name} is {got[worst]:.6g} over blocks of {_sizes()} keys, and {value[worst]:.6g} over all of them at once"
    return ""


def _sizes() -> str:
    *sizes, last = (end - begin for begin, end in pairwise(_CUTS))
    return f"{', '.join(map(str, sizes))} and {last}"
