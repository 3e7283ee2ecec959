"""How differently a value may be rounded where it is computed again: margins, as expressions of the program.

They are made of `rounding` leaves, numbers relative to what is rounded: the check computes in float64 and has smaller ones.
"""

from collections.abc import Callable

from attn_mlir.passes.derivation.expr import Expr, Graph
from attn_mlir.passes.differentiation.model import RowModel
from attn_mlir.passes.order import deepest_first

_FUNCTION, _ANY_FUNCTION = 2, 50
"""Of functions, in units of the tolerance: of one that is computed for vectors and by libm for numbers, and in kernels of other devices."""
_LARGEST_EXPONENT = 100.0
_TINY = 1e-30
_BESIDE = 256.0
"""Of what size products are taken to be where scores are larger."""
_ULP = 2.0**-23
_STEEP = ("math.sqrt", "math.rsqrt", "math.log", "math.log2", "math.powf")


def margin_of_products(program: RowModel, value: Expr) -> Expr:
    """How far apart two roundings of `value` may be where kernels have products of their own, and functions too."""
    return _margin(program, value, _of_products)


def margin_of_bits(program: RowModel, value: Expr) -> Expr:
    """The same where kernels have the same arithmetic, and all that differs is whether a function is one of a vector.

    For what does not depend on a product, one kernel computes a number, and another one a vector of them.
    """
    moving: dict[Expr, bool] = {}

    def error(program: RowModel, n: Expr, errors: dict[Expr, Expr]) -> Expr:
        if n.op == "s":
            return _margin(program, program.scores[int(n.attr)], error)  # type: ignore[call-overload]
        return _of_bits(program, n, errors, moving)

    return _margin(program, value, error)


_Error = Callable[[RowModel, Expr, dict[Expr, Expr]], Expr]


def _margin(program: RowModel, value: Expr, error: _Error) -> Expr:
    """The error of `value`, from those of its parts: of a difference, much more than it is itself."""
    errors: dict[Expr, Expr] = {}
    for n in deepest_first(value, errors, lambda n: n.args):
        errors[n] = error(program, n, errors)
    return errors[value]


def _of_products(program: RowModel, n: Expr, errors: dict[Expr, Expr]) -> Expr:
    g = program.graph
    if n.op in ("s", "x"):
        return near_part(program, n)
    if n.is_leaf:
        return part(g, n, program.tolerance if n.op == "red" else 0.0)
    rule = _RULES.get(n.op)
    parts = [errors[a] for a in n.args]
    if rule is not None:
        return rule(program, n, parts)
    return _total(g, [part(g, n, _ANY_FUNCTION * program.tolerance), *parts])


def _of_bits(program: RowModel, n: Expr, errors: dict[Expr, Expr], moving: dict[Expr, bool]) -> Expr:
    g, parts = program.graph, [errors[a] for a in n.args]
    differs = n.op.startswith("math.") and not _moves(program, n, moving)
    if not differs and all(is_zero(p) for p in parts):
        return g.const(0.0)
    rule = _RULES.get(n.op)
    if rule is not None:
        return rule(program, n, parts)
    if n.op in _STEEP:
        relative = [g.div(p, g.maximum(_size(g, a), g.const(_TINY))) for p, a in zip(parts, n.args, strict=True) if not is_zero(p)]
        size = g.add(_size(g, n), g.const(1.0))
        parts = [_times(g, size, p) for p in relative]
    return _total(g, [part(g, n, _FUNCTION * program.tolerance), *parts])


def _moves(program: RowModel, n: Expr, memo: dict[Expr, bool]) -> bool:
    """Whether a value depends on a product of a query and a key, other than by reductions."""
    for a in deepest_first(n, memo, lambda n: n.args):
        below = program.below([a]) if a.op == "s" else ()
        memo[a] = a.op == "x" or any(b.op == "x" for b in below) or any(memo[b] for b in a.args)
    return memo[n]


def is_zero(n: Expr) -> bool:
    return n.is_const and n.attr == 0.0


def part(g: Graph, n: Expr, of: float) -> Expr:
    return g.mul(_size(g, n), _rounding(g, of)) if of else g.const(0.0)


def near_part(program: RowModel, n: Expr) -> Expr:
    """How far apart two roundings of a score or product may be; of a large score the product in it is a small part, and rounded with it."""
    g = program.graph
    if not program.large or n.op == "x":
        return part(g, n, program.near)
    return g.add(part(g, g.node("arith.minimumf", _size(g, n), g.const(_BESIDE)), program.near), part(g, n, _ULP))


def _rounding(g: Graph, of: float) -> Expr:
    """The number `of`; less where everything is computed in float64."""
    return g.node("rounding", attr=of)


def _size(g: Graph, n: Expr) -> Expr:
    """|n|."""
    return n if n.op in ("math.absf", "math.exp", "math.exp2") else g.unary("math.absf", n)


def _times(g: Graph, x: Expr, y: Expr) -> Expr:
    return g.const(0.0) if is_zero(x) or is_zero(y) else g.mul(x, y)


def _total(g: Graph, parts: list[Expr]) -> Expr:
    total = g.const(0.0)
    for x in parts:
        total = x if is_zero(total) else total if is_zero(x) else g.add(total, x)
    return total


def _rounded(program: RowModel, n: Expr, errors: list[Expr]) -> Expr:
    """Of a sum: what its addends are off by, and its own rounding."""
    return _total(program.graph, [*errors, part(program.graph, n, program.tolerance)])


def _exact(program: RowModel, n: Expr, errors: list[Expr]) -> Expr:
    return errors[0]


def _larger(program: RowModel, n: Expr, errors: list[Expr]) -> Expr:
    return errors[0] if errors[0] is errors[1] else program.graph.maximum(*errors)


def _chosen(program: RowModel, n: Expr, errors: list[Expr]) -> Expr:
    return errors[1] if errors[1] is errors[2] else program.graph.select(n.args[0], errors[1], errors[2])


def _product(program: RowModel, n: Expr, errors: list[Expr]) -> Expr:
    g, (x, y) = program.graph, n.args
    return _rounded(program, n, [_times(g, _size(g, x), errors[1]), _times(g, _size(g, y), errors[0])])


def _quotient(program: RowModel, n: Expr, errors: list[Expr]) -> Expr:
    g, (_, y) = program.graph, n.args
    above = _total(g, [errors[0], _times(g, _size(g, n), errors[1])])
    return _rounded(program, n, [above if is_zero(above) else g.div(above, _size(g, y))])


def _exponential(program: RowModel, n: Expr, errors: list[Expr]) -> Expr:
    """The exponent may be taken apart: exp(s - m) as exp(s - t) exp(t - m); beyond some size nothing is left of it."""
    g = program.graph
    exponent = g.minimum(_size(g, n.args[0]), g.const(_LARGEST_EXPONENT))
    off = g.minimum(_total(g, [errors[0], part(g, exponent, program.tolerance), _rounding(g, program.tolerance)]), g.const(1.0))
    return g.mul(n, off)


_RULES: dict[str, Callable[[RowModel, Expr, list[Expr]], Expr]] = {
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
