"""Accumulators: what the weights of a row sum over the keys, each sum once, and how outputs are made of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from attn_mlir.passes.derivation.absorb import USUAL, WHOLE, CarriedForm
from attn_mlir.passes.derivation.expr import Expr, leaves
from attn_mlir.passes.derivation.factor import FactorGroup, factorise
from attn_mlir.passes.derivation.normal import Normal
from attn_mlir.passes.derivation.row import Row
from attn_mlir.passes.derivation.sums import Sum


@dataclass(frozen=True, eq=False)
class Accumulator:
    """sum_j weight(s_j, r) times row j of `source`; rescaled by exp(shift) (and exp2). `norm`, of states, divides weights."""

    weight: Expr
    shift: tuple[Sum, Sum]
    source: int
    norm: Expr | None = None

    def sums(self, group: FactorGroup, source: int) -> bool:
        """Whether this is the sum that a group of a weight of `source` needs."""
        return self.source == source and self.weight is group.weight and self.shift == group.shift


Terms = list[list[tuple[int, Expr]]]


def factorise_weights(row: Row, nf: Normal, limit: int, form: CarriedForm = USUAL) -> list[list[FactorGroup]] | str:
    """The groups of every weight, or why they cannot be accumulated while the reductions of `nf` still move.

    The limit holds for what each weight needs of its own: an accumulator that an earlier weight has already costs nothing. Where the limit
    is 1, as several accumulators of rounded weights may cancel, that is so for weights only that read a score which no earlier one does, as
    tangents do: of p (lse - s), after a softmax p of s, little is left of two large sums.
    """
    known: list[Accumulator] = []
    scores: set[Expr] = set()
    groups: list[list[FactorGroup]] = []
    for weight in row.weights:
        found = [] if _is_zero(weight.node) else _factored(row, nf, weight.node, form)
        if isinstance(found, str):
            return found
        own = [group for group in found if not any(a.sums(group, weight.source) for a in known)]
        read = {leaf for leaf in leaves(weight.node) if leaf.op == "s"}
        needed = own if limit > 1 or read - scores else found
        if len(needed) > limit:
            return f"it would need {len(needed)} accumulators, and more than {limit} are dearer than one more pass"
        scores |= read
        known += [Accumulator(group.weight, group.shift, weight.source) for group in own]
        groups.append(found)
    return groups


def _factored(row: Row, nf: Normal, node: Expr, form: CarriedForm) -> list[FactorGroup] | str:
    if form.weights == WHOLE and not node.reds & nf.running:
        return [as_written(row, node)]
    return factorise(nf, node, row.names, form.exponents)


def as_written(row: Row, node: Expr) -> FactorGroup:
    """The sum of `node` itself."""
    return FactorGroup(node, row.graph.const(1.0), ({}, {}))


def verbatim(row: Row) -> list[list[FactorGroup]]:
    """Every weight as its author wrote it."""
    return [[] if _is_zero(weight.node) else [as_written(row, weight.node)] for weight in row.weights]


def accumulators_of(row: Row, groups: Sequence[Sequence[FactorGroup]]) -> tuple[list[Accumulator], Terms]:
    """The accumulators, at least one, and for each output which of them it sums, with which factor at the end."""
    accumulators: list[Accumulator] = []
    terms: Terms = [[] for _ in range(row.o_count)]
    for weight, of_weight in zip(row.weights, groups, strict=True):
        for group in of_weight:
            number = next((i for i, a in enumerate(accumulators) if a.sums(group, weight.source)), len(accumulators))
            if number == len(accumulators):
                accumulators.append(Accumulator(group.weight, group.shift, weight.source))
            terms[weight.output].append((number, group.coefficient))
    if not accumulators:
        # Weights that cancel, as in s - s, still make an output: zero.
        accumulators.append(Accumulator(row.graph.const(0.0), ({}, {}), 0))
        terms[0].append((0, row.graph.const(1.0)))
    return accumulators, terms


def _is_zero(node: Expr) -> bool:
    return node.is_const and node.attr == 0.0
