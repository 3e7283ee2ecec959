"""Decides by evaluation whether updating a state that has seen no key gives something finite."""

from collections.abc import Mapping

import numpy as np

from attn_mlir.passes.derivation.evaluate import Array, Evaluator
from attn_mlir.passes.derivation.expr import Expr, Graph, leaves


def breaks_identity(g: Graph, value: Expr, identities: Mapping[Expr, Expr], double: bool) -> bool:
    """True when `value` is not finite for untouched states, before a first block of keys or a block without any."""
    rng = np.random.default_rng(7)
    rows, keys = 24, 5
    dtype = np.float64 if double else np.float32
    scores = rng.normal(size=(rows, keys)) * rng.choice([0.5, 3.0, 40.0], size=(rows, 1))
    env: dict[Expr, Array] = {g.score: scores.astype(dtype)}
    for leaf in sorted(n for n in leaves(value) if n.op == "s" and n is not g.score):
        env[leaf] = np.random.default_rng(leaf.attr).normal(size=(rows, keys)).astype(dtype)  # type: ignore[arg-type]
    env |= {leaf: np.asarray(identity.attr, dtype) for leaf, identity in identities.items()}
    for leaf in leaves(value):
        if leaf.op == "param":
            drawn = rng.normal(size=(rows, 1))
            env[leaf] = drawn > 0 if leaf.type == "i1" else drawn.astype(dtype)
    present = np.repeat(np.arange(rows)[:, None] % 3 > 0, keys, axis=1)
    return not np.isfinite(Evaluator(env, present, dtype)(value)).all()
