"""Sums relative to the largest term of the row so far: of exponents before the exponential, of weights before they are rounded."""

from collections.abc import Callable
from dataclasses import replace

from attn_mlir.passes.derivation.absorb import OWN, absorbed, own_exponent
from attn_mlir.passes.derivation.expr import Expr, Graph
from attn_mlir.passes.derivation.factor import FactorGroup
from attn_mlir.passes.derivation.normal import Normal
from attn_mlir.passes.derivation.sums import Mono, Sum
from attn_mlir.passes.derivation.weights import Accumulator

SMALLEST = 2.0**-120
"""The least number that weights are divided by: its inverse is finite in f32."""


Largest = Callable[[Expr, tuple[Sum, Sum]], Expr]
"""The state that holds the largest value of a term of the row so far, rescaled by a shift."""


def shifted(group: FactorGroup, nf: Normal, exponents: str, largest_of: Largest) -> FactorGroup:
    """A sum of exp(A(s)) relative to the largest A(s) so far, where the row's own factor moves with the keys (OWN)."""
    found = own_exponent(group.weight) if exponents == OWN and group.coefficient.reds & nf.running else None
    if found is None or group.weight.reds & nf.running:
        return group
    g, (op, exponent) = nf.graph, found
    largest = largest_of(exponent, ({}, {}))
    back: Sum = {Mono(((largest, 1.0),)): -1.0}
    weight, coefficient = absorbed(g, group.weight, op, g.neg(largest)), absorbed(g, group.coefficient, op, largest)
    return FactorGroup(weight, coefficient, (back, {}) if op == "math.exp" else ({}, back))


def scaled(accumulator: Accumulator, g: Graph, largest_of: Largest) -> Accumulator:
    """Weights divided by a power of two near the largest of the row so far, so that they are at most 1."""
    if not accumulator.weight.varies:
        return accumulator
    largest = largest_of(g.unary("math.absf", accumulator.weight), accumulator.shift)
    power = g.unary("math.ceil", g.unary("math.log2", g.maximum(largest, g.const(SMALLEST))))
    return replace(accumulator, norm=g.unary("math.exp2", power))
