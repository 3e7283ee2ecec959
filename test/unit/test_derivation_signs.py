"""What the derivation takes to be positive is so: every rule of signs by itself, and every op on numbers."""

import itertools

import numpy as np
import pytest

from attn_mlir.passes.derivation.evaluate import _FUNCTIONS, Evaluator
from attn_mlir.passes.derivation.expr import Expr, Graph
from attn_mlir.passes.derivation.row import Row
from attn_mlir.passes.derivation.signs import NONNEGATIVE, POSITIVE, UNKNOWN, Signs
from rows import V
from test_derivation_soundness import row_of

GRID = np.array([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])
ARITY = {"arith.negf": 1, "arith.select": 3, "math.fma": 3, "arith.andi": 0, "arith.ori": 0, "arith.xori": 0}
BINARY = ("arith.", "math.powf", "math.atan2", "math.copysign")


@pytest.fixture(scope="module")
def known() -> Row:
    """A row with a sum, a maximum and a minimum of exponentials, and sums of anything, as reductions 0 to 3."""

    def rule(s: V) -> V:
        return s.exp().sum("a") + s.exp().max("b") + s.exp().min("c") + s.sum("d")

    return row_of(rule)


def operand(g: Graph, sign: int, number: int) -> Expr:
    """Something of a sign that takes all values of that sign: of the score, or of a parameter of its own."""
    leaf = g.score if number == 0 else g.leaf("param", 10 + number)
    return {POSITIVE: g.unary("math.exp", leaf), NONNEGATIVE: g.unary("math.absf", leaf), UNKNOWN: leaf}[sign]


def arity(op: str) -> int:
    return ARITY.get(op, 2 if op.startswith(BINARY) else 1)


def values(node: Expr, g: Graph) -> np.ndarray:
    """`node` for all choices of the leaves of `operand` on the grid."""
    grids = np.meshgrid(GRID, GRID, GRID, indexing="ij")
    leaves = [g.score, g.leaf("param", 11), g.leaf("param", 12)]
    return np.asarray(Evaluator(dict(zip(leaves, grids, strict=True)))(node))


@pytest.mark.parametrize("op", [op for op in _FUNCTIONS if arity(op)])
def test_claims_hold_on_numbers(op: str, known: Row) -> None:
    """Whatever is said of an op, for operands of all signs, is so wherever it has a value."""
    g, signs = known.graph, Signs(known)
    for of_operands in itertools.product((UNKNOWN, NONNEGATIVE, POSITIVE), repeat=min(arity(op), 2)):
        operands = [operand(g, sign, number) for number, sign in enumerate(of_operands)]
        if op == "arith.select":
            condition = g.node("arith.cmpf", g.leaf("param", 12), g.const(0.0), attr=2, type="i1")
            node = g.node(op, condition, *operands)
        else:
            node = g.node(op, *operands, *[operand(g, UNKNOWN, 2)] * (arity(op) - len(operands)))
        found = values(node, g)
        found = found[~np.isnan(found)]
        assert signs.of(node) != POSITIVE or (found > 0).all(), of_operands
        assert signs.of(node) == UNKNOWN or (found >= 0).all(), of_operands


def test_constants_and_reductions(known: Row) -> None:
    g, signs = known.graph, Signs(known)
    assert [signs.of(g.const(value)) for value in (2.0, 0.0, -0.5)] == [POSITIVE, NONNEGATIVE, UNKNOWN]
    assert [signs.of(known.red(i)) for i in range(4)] == [POSITIVE, POSITIVE, POSITIVE, UNKNOWN]
    assert signs.of(g.score) == signs.of(g.leaf("param", 11)) == UNKNOWN


CLAIMS = {
    "math.exp": (POSITIVE, POSITIVE, POSITIVE),
    "math.exp2": (POSITIVE, POSITIVE, POSITIVE),
    "math.cosh": (POSITIVE, POSITIVE, POSITIVE),
    "math.absf": (NONNEGATIVE, NONNEGATIVE, POSITIVE),
    "math.sqrt": (UNKNOWN, NONNEGATIVE, POSITIVE),
    "math.rsqrt": (UNKNOWN, NONNEGATIVE, POSITIVE),
    "math.tanh": (UNKNOWN, NONNEGATIVE, POSITIVE),
    "math.sinh": (UNKNOWN, UNKNOWN, UNKNOWN),
    "math.log": (UNKNOWN, UNKNOWN, UNKNOWN),
    "arith.negf": (UNKNOWN, UNKNOWN, UNKNOWN),
}


@pytest.mark.parametrize("op", CLAIMS)
def test_rule_of_one_operand(op: str, known: Row) -> None:
    signs = Signs(known)
    assert tuple(signs.of(known.graph.unary(op, operand(known.graph, sign, 0))) for sign in (UNKNOWN, NONNEGATIVE, POSITIVE)) == CLAIMS[op]


PAIRS = {  # of (nonnegative, nonnegative), (nonnegative, positive), (positive, positive), (positive, unknown)
    "arith.addf": (NONNEGATIVE, POSITIVE, POSITIVE, UNKNOWN),
    "arith.subf": (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    "arith.mulf": (NONNEGATIVE, NONNEGATIVE, POSITIVE, UNKNOWN),
    "arith.divf": (NONNEGATIVE, NONNEGATIVE, POSITIVE, UNKNOWN),
    "arith.minimumf": (NONNEGATIVE, NONNEGATIVE, POSITIVE, UNKNOWN),
    "arith.maximumf": (NONNEGATIVE, POSITIVE, POSITIVE, POSITIVE),
}


@pytest.mark.parametrize("op", PAIRS)
def test_rule_of_two_operands(op: str, known: Row) -> None:
    g, signs = known.graph, Signs(known)
    pairs = ((NONNEGATIVE, NONNEGATIVE), (NONNEGATIVE, POSITIVE), (POSITIVE, POSITIVE), (POSITIVE, UNKNOWN))
    assert tuple(signs.of(g.node(op, operand(g, x, 0), operand(g, y, 1))) for x, y in pairs) == PAIRS[op]


def test_squares_powers_and_choices(known: Row) -> None:
    g, signs = known.graph, Signs(known)
    s, e, a = g.score, g.unary("math.exp", g.score), g.unary("math.absf", g.leaf("param", 11))
    assert signs.of(g.mul(s, s)) == NONNEGATIVE
    assert signs.of(g.mul(e, e)) == POSITIVE

    def to(base: Expr, exponent: float) -> int:
        return signs.of(g.node("math.powf", base, g.const(exponent)))

    assert [to(s, 2.0), to(s, 3.0), to(a, 0.5), to(e, -1.5), to(s, 1.5)] == [NONNEGATIVE, UNKNOWN, NONNEGATIVE, POSITIVE, UNKNOWN]
    condition = g.node("arith.cmpf", s, g.const(0.0), attr=2, type="i1")
    chosen = [signs.of(g.node("arith.select", condition, x, y)) for x, y in ((e, a), (a, e), (e, s), (s, e))]
    assert chosen == [NONNEGATIVE, NONNEGATIVE, UNKNOWN, UNKNOWN]
