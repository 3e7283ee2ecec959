"""Hyperbolic tangents by an exponential and a reciprocal."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.scaling import constant, erase_unused, float_maps, unnamed
from attn_mlir.dialects.fastmath import is_approximate
from attn_mlir.mlir import arith, ir
from attn_mlir.mlir import math as math_ops
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.simplification.folding import number


@dataclass(frozen=True)
class Tanh(Pass):
    """In maps over pairs: t = tanh x = 1 - 2 w with w = 1 / (1 + exp(2 x)), and 1 - t t = 4 (w - w w), in f32.

    That is as good as tanh in absolute terms (1e-6), which is what scores and weights need: two special functions and two additions instead
    of a quotient of polynomials. Later passes put factors into the exponential and take several reciprocals at once. With
    `keep-approximate`, those that may be approximated stay, for hardware that has an instruction for them.
    """

    name = "gpu-tanh"
    keep_approximate: bool = False

    def run(self, module: ir.Operation) -> bool:
        for map_ in list(float_maps(module, rank=2)):
            for op in find_all(map_, "math.tanh"):
                if isinstance(op.results[0].type, ir.F32Type) and not (self.keep_approximate and is_approximate(op)):
                    with unnamed(op.location), ir.InsertionPoint(op):
                        _rewrite(op)
            erase_unused(map_.regions[0].blocks[0])
        return True


def _rewrite(op: ir.Operation) -> None:
    x = op.operands[0]
    one, two = constant(1.0, x.type), constant(2.0, x.type)
    w = arith.divf(one, arith.addf(math_ops.exp(arith.mulf(x, two)), one))
    for square in [use.owner.operation for use in op.results[0].uses]:
        if square.name != "arith.mulf" or set(square.operands) != {op.results[0]}:
            continue
        for rest in [use.owner.operation for use in square.results[0].uses]:
            if rest.name == "arith.subf" and number(rest.operands[0]) == 1.0:
                with unnamed(rest.location), ir.InsertionPoint(rest):
                    made = arith.mulf(arith.subf(w, arith.mulf(w, w)), constant(4.0, x.type))
                rest.results[0].replace_all_uses_with(made)
    op.results[0].replace_all_uses_with(arith.subf(one, arith.mulf(w, two), loc=op.location))
