"""Decides how a step leaves out masked positions: by one select of the score, or by one of every term.

Giving masked positions the score -inf suffices where then no reduction, state or weight notices them, which is found by
evaluating the step, not by name: exp(-inf) = 0 adds nothing to a sum, and -inf loses every max. It is evaluated twice.
Once at the score -inf, for all finite states and captured values together, so that no condition on them can hide another
outcome; and once in float32 on random rows, with the states of empty rows among them. Otherwise each reduction's input
and each weight is selected. Where a row has several scores, the others become 0, so that what stands in a masked key
(NaN, say) does not matter either.
"""

import math

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.evaluate import Evaluator
from attn_mlir.passes.derivation.expr import BOOL, FLOAT, Expr, Graph, leaves, nodes
from attn_mlir.passes.derivation.row import RowReader
from attn_mlir.passes.order import deepest_first
from attn_mlir.passes.regions import scores_in

_ROWS, _KEYS = 24, 9
_LOWEST = float(np.finfo(np.float32).min)
_NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf}
_SIGNED_ZERO = ("arith.divf", "math.rsqrt", "math.powf", "math.copysign", "math.atan2")
_FINITE = "finite"


def masks_by_score(step: ir.Block) -> bool:
    """True when masked positions of `step` may simply get the scores of `masked_score`."""
    graph, count = Graph(), scores_in(step)
    scores = [graph.leaf("s", k) for k in range(count)]
    reader = RowReader(graph, step, dict(zip(step.arguments, scores, strict=False)))
    try:
        results, states = reader.results(), len(step.arguments) - count - 3
        # Then come as many weights as scales. A weight that is the same for every key must still not be given to absent ones.
        weights = range(states, (states + len(results)) // 2)
        saved = frozenset(leaf for leaf in reader.params.leaves if reader.params.is_saved(leaf))
        vanishes = _vanishes(scores, saved, results, weights)
        return vanishes and all(_unnoticed(scores, reader, results, weights, seed) for seed in range(3))
    except DerivationError:
        return False


def masked_score(number: int) -> float:
    """What a masked position has for score `number`."""
    return 0.0 if number else -math.inf


def _vanishes(scores: list[Expr], saved: frozenset[Expr], results: list[Expr], weights: range) -> bool:
    """Whether a masked key adds nothing to a reduction and has weight 0, whatever finite values everything else has.

    Values saved from an earlier attention may be anything: those of fully masked rows are.
    """
    limits = _Limits({score: masked_score(k) for k, score in enumerate(scores)}, saved)
    reductions = [node for node in nodes(*results) if node.op == "reduce"]
    neutral = all(limits.value(node.args[0]) == _NEUTRAL[str(node.attr)] for node in reductions)
    return neutral and all(limits.value(results[position]) == 0 for position in weights)


class _Limits:
    """Values where those of some nodes are known: a number, "finite" where it is an unknown finite one, None where nothing is known."""

    def __init__(self, known: dict[Expr, float | str | None], unknown: frozenset[Expr]) -> None:
        self._known = known
        self._unknown = unknown

    def value(self, node: Expr) -> float | str | None:
        for n in deepest_first(node, self._known, lambda n: n.args if n.varies else ()):
            self._known[n] = self._find(n)
        return self._known[node]

    def _find(self, node: Expr) -> float | str | None:
        if not node.varies:
            if node.type == BOOL or self._unknown & leaves(node):
                return None
            return float(node.attr) if node.is_const else _FINITE  # type: ignore[arg-type]
        values = [self.value(argument) for argument in node.args]
        if node.op == "arith.select" and values[0] is None:
            return values[1] if values[1] == values[2] else None
        if node.op == "arith.select":
            return values[1] if values[0] else values[2]
        if None in values:
            return None
        if _FINITE in values:
            return _beside_finite(node, values)
        return None if node.op in _SIGNED_ZERO and 0 in values else _exact(node, values)


def _beside_finite(node: Expr, values: list[float | str | None]) -> float | str | None:
    """The value of an op of which one operand is finite."""
    known = [value for value in values if isinstance(value, float)]
    if len(values) != 2 or len(known) != 1:
        return None
    if node.op == "arith.mulf" and known[0] == 0:
        return 0.0
    if not math.isinf(known[0]):
        return None
    match node.op:
        case "arith.addf" | "arith.subf" | "arith.cmpf":  # beside an infinite one, all finite numbers are alike
            return _exact(node, [0.0 if value == _FINITE else value for value in values])
        case "arith.maximumf" | "arith.minimumf":
            return known[0] if (known[0] > 0) == (node.op == "arith.maximumf") else _FINITE
        case "arith.divf":
            return 0.0 if values[0] == _FINITE else None
    return None


def _exact(node: Expr, values: list[float | str | None]) -> float | None:
    env = {a: np.asarray(value, bool if a.type == BOOL else np.float32) for a, value in zip(node.args, values, strict=True)}
    result = float(Evaluator(env, None, np.float32)(node))
    return None if math.isnan(result) else result


def _unnoticed(score_leaves: list[Expr], reader: RowReader, results: list[Expr], weights: range, seed: int) -> bool:
    """Compares masked scores with "masked positions are absent" on random rows, some of them empty."""
    random = np.random.default_rng(seed)
    present = random.random((_ROWS, _KEYS)) < 0.6
    present[:4] = False
    first = (random.standard_normal((_ROWS, _KEYS)) * 10.0**seed).astype(np.float32)
    env = {leaf: _parameter(leaf, random) for leaf in reader.params.leaves}
    scores = [first, *[random.standard_normal((_ROWS, _KEYS)).astype(np.float32) for _ in score_leaves[1:]]]
    masked = [np.where(present, s, np.float32(masked_score(k))) for k, s in enumerate(scores)]
    absent = Evaluator(env | dict(zip(score_leaves, scores, strict=True)), present, np.float32)
    infinite = Evaluator(env | dict(zip(score_leaves, masked, strict=True)), np.ones_like(present), np.float32)
    for position, node in enumerate(results):
        wanted, got = (np.broadcast_to(evaluate(node), present.shape) for evaluate in (absent, infinite))
        if position in weights:
            wanted = np.where(present, wanted, 0)
        if not np.array_equal(wanted, got, equal_nan=True):
            return False
    return True


def _parameter(leaf: Expr, random: np.random.Generator) -> np.ndarray:
    """A state, captured value or index: random, and for some rows what an untouched maximum or sum holds."""
    if leaf.type != FLOAT:
        return random.integers(0, 2, (_ROWS, 1))
    value = random.standard_normal((_ROWS, 1)).astype(np.float32)
    value[::6], value[3::6] = _LOWEST, 0
    return value
