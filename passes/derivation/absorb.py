"""Other representatives of a split: where exp of the reductions goes, into each term or after the sum.

exp(s - m) - exp(-m) is exp(-m) (exp(s) - 1), and so is its absolute value. Summing |exp(s) - 1| and multiplying at the end is the
shortest form, but exp(s) overflows where exp(s - m) does not. Kept with its term the factor makes the term what its author wrote, and the
sum is rescaled.
"""

from dataclasses import dataclass

import numpy as np

from attn_mlir.passes.derivation.evaluate import Evaluator
from attn_mlir.passes.derivation.expr import FLOAT, Expr, Graph, leaves, nodes

PLAIN, KEPT, BOUNDED, OWN = "plain", "kept", "bounded", "own"
FACTORED, WHOLE, SCALED = "factored", "whole", "scaled"
_FAR, _NOTHING = 700.0, 1e-100


@dataclass(frozen=True)
class CarriedForm:
    """What is carried, where several forms are equal over the reals but not in range.

    `exponents`: factors exp(r) of sums are applied at the end (PLAIN), stay with each term, so that the sum is rescaled (KEPT), or do so
    only as far as they make it smaller, where terms do not vanish with the score (BOUNDED); with OWN, terms exp(A(s)) are shifted by the
    largest A(s) so far, whatever the row shifts them by. `weights`: factors that are the same along the row are applied at the end
    (FACTORED), stay where the author wrote them if they are known by then (WHOLE), or weights are divided by the row's largest (SCALED).
    """

    exponents: str = PLAIN
    weights: str = FACTORED


USUAL = CarriedForm()


def absorbed(g: Graph, node: Expr, op: str, exponent: Expr) -> Expr:
    """`node` times exp (or exp2, by `op`) of `exponent`, which meets the exponents that are in `node` before the exponential."""

    def into(*args: Expr) -> Expr:
        return g.node(node.op, *args, attr=node.attr, type=node.type)

    def inside(n: Expr) -> Expr:
        return absorbed(g, n, op, exponent)

    if node.is_const and node.attr == 0.0:
        return node
    match node.op:
        case "math.exp" | "math.exp2" if node.op == op:
            return g.unary(op, g.add(node.args[0], exponent))
        case "arith.addf" | "arith.subf" | "arith.maximumf" | "arith.minimumf" | "math.absf" | "arith.negf":
            return into(*map(inside, node.args))
        case "arith.select":
            return into(node.args[0], inside(node.args[1]), inside(node.args[2]))
        case "arith.divf":
            return into(inside(node.args[0]), node.args[1])
        case "arith.mulf":
            first, second = node.args
            other = _holds(second, op, True) or (_holds(second, op) and not _holds(first, op))
            return into(first, inside(second)) if other and not _holds(first, op, True) else into(inside(first), second)
        case "math.sqrt":
            return into(absorbed(g, node.args[0], op, g.mul(g.const(2.0), exponent)))
    return g.mul(node, g.unary(op, exponent))


def _holds(node: Expr, op: str, varies: bool = False) -> bool:
    """Whether an exponential, with `varies` one along the row, is a factor or a term somewhere in `node`."""
    return any(n.op == op and (n.varies or not varies) for n in nodes(node))


def own_exponent(node: Expr) -> tuple[str, Expr] | None:
    """The exponential of scores that `node` is a product with, if there is just one: its op and its exponent."""
    found = [n for n in nodes(node) if n.op in ("math.exp", "math.exp2") and n.varies]
    return (found[0].op, found[0].args[0]) if len(found) == 1 else None


def vanishes(g: Graph, node: Expr) -> bool:
    """Whether a term is nothing for scores far to one side: whatever brings it into range there does so everywhere."""
    rng = np.random.default_rng(3)
    env = {
        leaf: rng.normal(size=(8, 1)) if leaf.type == FLOAT else np.ones((8, 1), bool) for leaf in sorted(leaves(node)) if not leaf.is_const
    }
    far = [np.abs(Evaluator(env | {g.score: np.full((8, 1), s)})(node)) for s in (-_FAR, _FAR)]
    return any((np.broadcast_to(x, (8, 1)) < _NOTHING).all() for x in far)
