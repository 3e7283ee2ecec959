"""Proving that every row of a mask keeps at least one key, by naming the key."""

from attn_mlir.passes.intervals.nodes import Bound
from attn_mlir.passes.intervals.substitute import substitute


def rows_nonempty(mask: Bound, q: Bound, kv: Bound, skv: Bound) -> bool:
    """Whether key 0, the last key or key min(q, last) is provably present in every row, for skv >= 1."""
    pool = mask.pool
    last = skv - 1
    return any(_holds(substitute(mask, {kv: witness})) for witness in (pool.lift(0), last, pool.least(q, last)))


def _holds(node: Bound) -> bool:
    match node.op:
        case "and":
            return all(map(_holds, node.args))
        case "or":
            return any(map(_holds, node.args))
    return node.constant == 1
