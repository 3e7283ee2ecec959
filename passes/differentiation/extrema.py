"""Which keys attain a maximum or minimum of a row, when their values are computed once more."""

from collections.abc import Callable

from attn_mlir.passes.derivation.expr import Graph, Node
from attn_mlir.passes.differentiation.model import Program
from attn_mlir.passes.differentiation.partials import compare, indicator
from attn_mlir.passes.order import deepest_first

_EQUAL, _AT_LEAST, _AT_MOST = 1, 3, 5
_ROUNDINGS = 50
_LARGEST_EXPONENT = 100.0


def attains(program: Program, kind: str, value: Node, r: Node) -> Node:
    """1 for the keys that attain `r`, the maximum or minimum of `value` over the row, else 0.

    What is computed of a score may be rounded differently where it is computed again: then nearly attaining is enough.
    """
    g = program.graph
    # That of a score itself is one number for the row.
    margin = _part(g, r, program.near) if value.op in ("s", "x") else _margin(program, value)
    if _is_zero(margin):
        return indicator(g, compare(g, _EQUAL, value, r))
    if kind == "max":
        return indicator(g, compare(g, _AT_LEAST, value, g.sub(r, margin)))
    return indicator(g, compare(g, _AT_MOST, value, g.add(r, margin)))


def shared(program: Program, value: Node, x: Node, count: Node) -> Node:
    """`x` for each of `count` keys; 0 keys, where rounding hid them all, do not make it infinite."""
    g = program.graph
    exact = _is_zero(_margin(program, value))
    return g.div(x, count if exact else g.node("arith.maximumf", count, g.const(1.0)))


def _margin(program: Program, value: Node) -> Node:
    """How far apart two roundings of `value` may be, from those of its parts: of a difference, much more than it is itself."""
    errors: dict[Node, Node] = {}
    for n in deepest_first(value, errors, lambda n: n.args):
        errors[n] = _error(program, n, errors)
    return errors[value]


def _error(program: Program, n: Node, errors: dict[Node, Node]) -> Node:
    g = program.graph
    if n.op in ("s", "x"):
        return _part(g, n, program.near)
    if n.is_leaf:
        return _part(g, n, program.tolerance if n.op == "red" else 0.0)
    rule = _RULES.get(n.op)
    parts = [errors[a] for a in n.args]
    if rule is not None:
        return rule(program, n, parts)
    return _total(g, [_part(g, n, _ROUNDINGS * program.tolerance), *parts])


def _is_zero(n: Node) -> bool:
    return n.is_const and n.attr == 0.0


def _part(g: Graph, n: Node, of: float) -> Node:
    return g.mul(_size(g, n), g.const(of)) if of else g.const(0.0)


def _size(g: Graph, n: Node) -> Node:
    """|n|."""
    return n if n.op in ("math.absf", "math.exp", "math.exp2") else g.unary("math.absf", n)


def _times(g: Graph, x: Node, y: Node) -> Node:
    return g.const(0.0) if _is_zero(x) or _is_zero(y) else g.mul(x, y)


def _total(g: Graph, parts: list[Node]) -> Node:
    total = g.const(0.0)
    for part in parts:
        total = part if _is_zero(total) else total if _is_zero(part) else g.add(total, part)
    return total


def _rounded(program: Program, n: Node, errors: list[Node]) -> Node:
    """Of a sum: what its addends are off by, and its own rounding."""
    return _total(program.graph, [*errors, _part(program.graph, n, program.tolerance)])


def _exact(program: Program, n: Node, errors: list[Node]) -> Node:
    return errors[0]


def _larger(program: Program, n: Node, errors: list[Node]) -> Node:
    return errors[0] if errors[0] is errors[1] else program.graph.maximum(*errors)


def _chosen(program: Program, n: Node, errors: list[Node]) -> Node:
    return errors[1] if errors[1] is errors[2] else program.graph.select(n.args[0], errors[1], errors[2])


def _product(program: Program, n: Node, errors: list[Node]) -> Node:
    g, (x, y) = program.graph, n.args
    return _rounded(program, n, [_times(g, _size(g, x), errors[1]), _times(g, _size(g, y), errors[0])])


def _quotient(program: Program, n: Node, errors: list[Node]) -> Node:
    g, (_, y) = program.graph, n.args
    above = _total(g, [errors[0], _times(g, _size(g, n), errors[1])])
    return _rounded(program, n, [above if _is_zero(above) else g.div(above, _size(g, y))])


def _exponential(program: Program, n: Node, errors: list[Node]) -> Node:
    """The exponent may be taken apart: exp(s - m) as exp(s - t) exp(t - m); beyond some size nothing is left of it."""
    g = program.graph
    exponent = g.minimum(_size(g, n.args[0]), g.const(_LARGEST_EXPONENT))
    off = g.minimum(_total(g, [errors[0], _part(g, exponent, program.tolerance), g.const(program.tolerance)]), g.const(1.0))
    return g.mul(n, off)


_RULES: dict[str, Callable[[Program, Node, list[Node]], Node]] = {
    "arith.addf": _rounded,
    "arith.subf": _rounded,
    "arith.mulf": _product,
    "arith.divf": _quotient,
    "arith.negf": _exact,
    "math.absf": _exact,
    "arith.maximumf": _larger,
    "arith.minimumf": _larger,
    "arith.select": _chosen,
    "math.exp": _exponential,
    "math.exp2": _exponential,
}
