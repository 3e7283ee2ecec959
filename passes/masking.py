"""Decides how a step leaves out masked positions: by one select of the score, or by one of every term.

Giving masked positions the score -inf suffices where then no reduction, state or weight notices them, which is found by
evaluating the step in float32 (DESIGN: "decided by evaluation, not by name"): exp(-inf) = 0 adds nothing to a sum, and
-inf loses every max. Otherwise each reduction's input and each weight is selected.
"""

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.evaluate import Evaluator
from attn_mlir.passes.derivation.expr import FLOAT, Graph, Node
from attn_mlir.passes.derivation.row import Reader

_ROWS, _KEYS = 24, 9
_LOWEST = float(np.finfo(np.float32).min)


def masks_by_score(step: ir.Block) -> bool:
    """True when masked positions of `step` may simply get the score -inf."""
    graph = Graph()
    reader = Reader(graph, step, {step.arguments[0]: graph.score})
    try:
        results, states = reader.results(), len(step.arguments) - 4
        # Then come as many weights as scales. A weight that is the same for every key must still not be given to absent ones.
        weights = range(states, (states + len(results)) // 2)
        return all(_unnoticed(graph.score, reader, results, weights, seed) for seed in range(3))
    except DerivationError:
        return False


def _unnoticed(score: Node, reader: Reader, results: list[Node], weights: range, seed: int) -> bool:
    """Compares "masked scores are -inf" with "masked positions are absent" on random rows, some of them empty."""
    random = np.random.default_rng(seed)
    present = random.random((_ROWS, _KEYS)) < 0.6
    present[:4] = False
    scores = (random.standard_normal((_ROWS, _KEYS)) * 10.0**seed).astype(np.float32)
    masked = np.where(present, scores, np.float32("-inf"))
    env = {leaf: _parameter(leaf, random) for leaf in reader.params.leaves}
    absent = Evaluator({**env, score: scores}, present, np.float32)
    infinite = Evaluator({**env, score: masked}, np.ones_like(present), np.float32)
    for position, node in enumerate(results):
        wanted, got = (np.broadcast_to(evaluate(node), present.shape) for evaluate in (absent, infinite))
        if position in weights:
            wanted = np.where(present, wanted, 0)
        if not np.array_equal(wanted, got, equal_nan=True):
            return False
    return True


def _parameter(leaf: Node, random: np.random.Generator) -> np.ndarray:
    """A state, captured value or index: random, and for some rows what an untouched maximum or sum holds."""
    if leaf.type != FLOAT:
        return random.integers(0, 2, (_ROWS, 1))
    value = random.standard_normal((_ROWS, 1)).astype(np.float32)
    value[::6], value[3::6] = _LOWEST, 0
    return value
