"""Poles of the weights: where a weight may be steep without bound, <do, o> is too rough a stand-in for the sum over keys of dp p.

The gradient of a score is p (dp - sum dp p) times the slope of what the user wrote. Where one weight of a row is 1, the bracket is
0: exactly if the sum is made of the same dp, but only up to the rounding of o if it is <do, o>. At a pole, as of 1 / s near 0, the
slope (1e6, say) makes that rounding the largest term of the gradient. Such programs sum dp p in a pass of its own.
"""

from attn_mlir.passes.derivation.expr import FLOAT, Expr
from attn_mlir.passes.derivation.signs import Signs
from attn_mlir.passes.differentiation.model import RowModel

_POLE_AT_ZERO = ("math.log", "math.log2", "math.sqrt", "math.rsqrt")


def has_pole(program: RowModel) -> bool:
    """Whether a weight may be infinitely steep in the scores: by a division, a logarithm, a root, a power or a tangent."""
    below = program.below([w for s in program.sums for w, _ in s.terms])
    # Scores come from products, so what differs from key to key by its indices alone has no slope, and is no danger.
    moving = _moving(program, below)
    apart = _Apart(Signs(program))  # type: ignore[arg-type]
    return any(n in moving and _is_pole(n, moving, apart) for n in below)


def _moving(program: RowModel, below: set[Expr]) -> set[Expr]:
    """What depends on a product of a query and a key, without reductions."""
    moving: set[Expr] = set()
    for n in sorted(below):
        if n.op in ("x", "s") or any(a in moving for a in n.args):
            moving.add(n)
    return moving


def _is_pole(n: Expr, moving: set[Expr], apart: "_Apart") -> bool:
    if n.type != FLOAT:
        return False
    if n.op == "arith.divf":
        return n.args[1] in moving and n.args[1] not in apart
    if n.op in _POLE_AT_ZERO:
        return n.args[0] not in apart
    if n.op == "math.powf":
        base, exponent = n.args
        grows = exponent.is_const and float(exponent.attr) >= 1  # type: ignore[arg-type]
        return base in moving and not grows and base not in apart
    return n.op in ("math.tan", "math.atan2")


class _Apart:
    """Expressions known to stay away from 0, above it: the 1 + exp(-x) of a sigmoid, the 1 + |x| of a softsign."""

    def __init__(self, signs: Signs) -> None:
        self._signs = signs

    def __contains__(self, n: Expr) -> bool:
        while n.op in ("math.sqrt", "math.absf"):
            n = n.args[0]
        if n.is_const:
            return float(n.attr) > 0  # type: ignore[arg-type]
        if n.op in ("arith.addf", "arith.maximumf"):
            x, y = sorted(n.args, key=lambda a: a.is_const)
            other = n.op == "arith.maximumf" or self._signs.nonnegative(x)
            return other and y.is_const and y in self
        return n.op == "math.cosh"
