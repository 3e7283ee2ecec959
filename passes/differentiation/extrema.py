"""Which keys attain a maximum or minimum of a row, when their values are computed once more.

Over f32 and f64, which the CPU alone has kernels for, the same arithmetic on the same numbers has the same bits in every kernel, so
that ties are exact: a value that reads no reductions is compared with the extremum that the forward pass found, any other one with
that of values computed again, since the derivation may have rearranged what the forward pass computed. Where rounding may differ
all the same (`rounding.py`), and for scores that are near each other, nearly attaining is enough.
"""

from attn_mlir.passes.derivation.expr import Expr
from attn_mlir.passes.differentiation.model import ModelReduction, RowModel
from attn_mlir.passes.differentiation.partials import compare, indicator
from attn_mlir.passes.differentiation.rounding import is_zero, margin_of_bits, margin_of_products, near_part

_EQUAL, _AT_LEAST, _AT_MOST = 1, 3, 5


def margin(program: RowModel, value: Expr, r: Expr) -> Expr:
    """How far `value` may be from `r`, the maximum or minimum that it attains, by rounding."""
    if not program.near:
        return margin_of_bits(program, value)
    # That of a score itself is one number for the row.
    return near_part(program, r) if value.op in ("s", "x") else margin_of_products(program, value)


def attains(program: RowModel, kind: str, value: Expr, r: Expr, margin: Expr) -> Expr:
    """1 for the keys that attain `r`, the maximum or minimum of `value` over the row, up to a margin, else 0."""
    g = program.graph
    if is_zero(margin):
        return indicator(g, compare(g, _EQUAL, value, r))
    if kind == "max":
        return indicator(g, compare(g, _AT_LEAST, value, g.sub(r, margin)))
    return indicator(g, compare(g, _AT_MOST, value, g.add(r, margin)))


def shared(program: RowModel, x: Expr, count: Expr, margin: Expr) -> Expr:
    """`x` for each of `count` keys; 0 keys, where rounding hid them all, do not make it infinite."""
    g = program.graph
    return g.div(x, count if is_zero(margin) else g.node("arith.maximumf", count, g.const(1.0)))


def is_rearranged(program: RowModel, reduction: ModelReduction) -> bool:
    """Whether an extremum is only found again by computing it of reductions that are known: where it reads some."""
    return reduction.kind != "sum" and not program.near and bool(reduction.value.reds)


def again(program: RowModel, reduction: ModelReduction) -> Expr:
    """The extremum of `reduction` once more, as another reduction of the program: of what reductions are given."""
    wanted = (reduction.kind, reduction.value, None)
    for i, known in enumerate(program.reductions):
        if (known.kind, known.value, known.given) == wanted:
            return program.red(i)
    program.reductions.append(ModelReduction(reduction.kind, reduction.value, f"{reduction.name}_again", location=reduction.location))
    return program.red(len(program.reductions) - 1)


def stages(program: RowModel, extrema: list[int]) -> list[list[int]]:
    """The reductions that come before those of the last of these extrema, each stage by itself: later ones read them as given.

    The keys that attain an extremum are counted in the stage that finds it.
    """
    stage: dict[int, int] = {}
    for i, reduction in enumerate(program.reductions):
        below = max((stage[j] for j in reduction.value.reds), default=0)
        stage[i] = below + 1 if i in extrema else below
    last = max((stage[i] for i in extrema), default=0)
    return [[i for i in program.computed() if stage[i] == k] for k in range(last)]
