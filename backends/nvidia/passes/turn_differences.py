"""Differences of two values that a row puts in one order or the other."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.scaling import constant
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.patterns import apply_rules
from attn_mlir.passes.regions import maker


@dataclass(frozen=True)
class TurnDifferences(Pass):
    """Replaces ((c ? a : b) - (c ? b : a)) K, K a constant, by (a - b) (c ? K : -K), which is the same number.

    Where channels have decays, rows of the later of two blocks and those of the earlier one are scaled towards the boundary between them
    by one map: which of the two sums is taken away from the other depends on the row, so that an element needs no choice of its own.
    """

    name = "nvidia-turn-differences"

    def run(self, module: ir.Operation) -> bool:
        apply_rules(module, {"arith.mulf": _turned})
        return True


def _turned(op: ir.Operation) -> ir.Value | None:
    difference, factor = maker(op.operands[0], "arith.subf"), maker(op.operands[1], "arith.constant")
    if difference is None or factor is None:
        return None
    chosen = [maker(value, "arith.select") for value in difference.operands]
    first, second = chosen
    if first is None or second is None:
        return None
    condition, a, b = first.operands
    if list(second.operands) != [condition, b, a]:
        return None
    number, type_ = ir.FloatAttr(factor.attributes["value"]).value, op.results[0].type
    sign = arith.SelectOp(condition, constant(number, type_), constant(-number, type_)).result
    return arith.MulFOp(arith.SubFOp(a, b).result, sign).result
