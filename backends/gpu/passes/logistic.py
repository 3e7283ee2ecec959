"""The derivative of a logistic function by its value."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.scaling import erase_unused, float_maps, is_real, maker, unnamed
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.simplification.folding import number

_GREATER = (2, 9)
"""Predicates of cmpf: ordered and unordered >."""
_FAR = 40.0


@dataclass(frozen=True)
class Logistic(Pass):
    """x / (1 + e) * e becomes x - x / (1 + e), for an exponential e: where e is infinite, that is x, and never NaN.

    Quotients x / (1 + e) use 1 / (1 + e) if there is one. Where nothing else reads e, it needs no guard against infinity any more:
    exp(min(t, 88)) becomes exp(t) in 1 / (1 + e), and a derivative that is 0 where t > 88 is left to vanish by itself.
    """

    name = "gpu-logistic"

    def run(self, module: ir.Operation) -> bool:
        for map_ in list(float_maps(module, rank=2)):
            for op in find_all(map_, "math.exp"):
                if is_real(op.results[0]):
                    _rewrite(op)
            erase_unused(map_.regions[0].blocks[0])
        return True


def _rewrite(e: ir.Operation) -> None:
    sums = [use.owner.operation for use in e.results[0].uses if _is_one_plus(use.owner.operation)]
    if len(sums) != 1:
        return
    sum_, rests = sums[0], []
    for use in list(e.results[0].uses):
        product = use.owner.operation
        rest = _rest(product, e.results[0], sum_.results[0])
        if rest is not None:
            rests.append(rest)
    if sum(1 for _ in e.results[0].uses) != 1:
        return
    _use_reciprocal(sum_)
    guard = maker(e.operands[0], "arith.minimumf")
    limit = number(guard.operands[1]) if guard is not None else None
    if guard is None or limit is None or limit < _FAR:
        return
    inside = guard.operands[0]
    e.operands[0] = inside
    for rest in rests:
        _drop_gates(rest, inside, limit)


def _use_reciprocal(sum_: ir.Operation) -> None:
    """Divisions by the sum become products with its reciprocal, where that is needed anyway."""
    divisions = [use.owner.operation for use in sum_.results[0].uses]
    divisions = [op for op in divisions if op.name == "arith.divf" and op.operands[1] == sum_.results[0]]
    known = [op for op in divisions if number(op.operands[0]) == 1.0]
    for op in divisions if known else []:
        if number(op.operands[0]) is None:
            with op.location, ir.InsertionPoint(op):
                op.results[0].replace_all_uses_with(arith.mulf(op.operands[0], known[0].results[0]))
            op.erase()


def _is_one_plus(op: ir.Operation) -> bool:
    return op.name == "arith.addf" and any(number(operand) == 1.0 for operand in op.operands)


def _rest(product: ir.Operation, e: ir.Value, sum_: ir.Value) -> ir.Value | None:
    """x - x / (1 + e) in place of the product x / (1 + e) * e; None for other ops."""
    if product.name != "arith.mulf":
        return None
    for quotient in product.operands:
        division = maker(quotient, "arith.divf")
        if division is None or quotient == e or e not in product.operands or division.operands[1] != sum_:
            continue
        with unnamed(product.location), ir.InsertionPoint(product):
            rest = arith.subf(division.operands[0], quotient)
        product.results[0].replace_all_uses_with(rest)
        product.erase()
        return rest
    return None


def _drop_gates(rest: ir.Value, inside: ir.Value, limit: float) -> None:
    """Replaces "0 where `inside` > `limit`, else `rest`" by `rest`."""
    for use in list(rest.uses):
        choice = use.owner.operation
        if choice.name != "arith.select" or number(choice.operands[1]) != 0.0:
            continue
        test = maker(choice.operands[0], "arith.cmpf")
        if test is None or ir.IntegerAttr(test.attributes["predicate"]).value not in _GREATER:
            continue
        if test.operands[0] == inside and number(test.operands[1]) == limit:
            choice.results[0].replace_all_uses_with(rest)
            choice.erase()
