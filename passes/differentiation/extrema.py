"""Which keys attain a maximum or minimum of a row, when their values are computed once more."""

from attn_mlir.passes.derivation.expr import Node
from attn_mlir.passes.differentiation.model import Program
from attn_mlir.passes.differentiation.partials import compare, indicator

_EQUAL, _AT_LEAST, _AT_MOST = 1, 3, 5
_ROUNDINGS = 50


def attains(program: Program, kind: str, value: Node, r: Node) -> Node:
    """1 for the keys that attain `r`, the maximum or minimum of `value` over the row, else 0.

    What is computed of a score may be rounded differently where it is computed again: then nearly attaining is enough.
    """
    g = program.graph
    near = _near(program, value)
    if not near:
        return indicator(g, compare(g, _EQUAL, value, r))
    margin = g.mul(g.unary("math.absf", r), g.const(near))
    if kind == "max":
        return indicator(g, compare(g, _AT_LEAST, value, g.sub(r, margin)))
    return indicator(g, compare(g, _AT_MOST, value, g.add(r, margin)))


def shared(program: Program, value: Node, x: Node, count: Node) -> Node:
    """`x` for each of `count` keys; 0 keys, where rounding hid them all, do not make it infinite."""
    g = program.graph
    return g.div(x, g.node("arith.maximumf", count, g.const(1.0)) if _near(program, value) else count)


def _near(program: Program, value: Node) -> float:
    """How far below a maximum, relative to it, a value still attains it."""
    return program.near if value.op in ("s", "x") else max(program.near, _ROUNDINGS * program.tolerance)
