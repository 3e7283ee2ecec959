"""Comparisons of positions with numbers of any size, in 32 bits."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.scaling import float_maps, unnamed
from attn_mlir.backends.gpu.scalar_bounds import IntegerRanges, fits_int
from attn_mlir.backends.gpu.scalars import dependence
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all

_LIMIT = 1 << 30
_PAIR = frozenset({0, 1})


@dataclass(frozen=True)
class NarrowComparisons(Pass):
    """In maps over pairs: q - kv <= w becomes q - kv <= max(min(w, 2^30), -2^30), for sums of positions, which are smaller than that.

    A captured number, such as the width of a window, may have any size; its comparison then needs no more than 32 bits for each element.
    """

    name = "gpu-narrow-comparisons"

    def run(self, module: ir.Operation) -> bool:
        ranges = IntegerRanges()
        for map_ in list(float_maps(module, rank=2)):
            depends = dependence(map_.regions[0].blocks[0])
            for op in find_all(map_, "arith.cmpi"):
                if isinstance(op.operands[0].type, ir.IndexType) and ir.IntegerAttr(op.attributes["predicate"]).value < 6:
                    for number in range(2):
                        _clamp(op, number, depends, ranges)
        return True


def _clamp(op: ir.Operation, number: int, depends: dict[ir.Value, frozenset[int]], ranges: IntegerRanges) -> None:
    """Clamps an operand that does not differ from pair to pair, if the other one is known to be smaller than the limit."""
    value, (low, high) = op.operands[number], ranges.of(op.operands[1 - number])
    if depends.get(value, frozenset()) == _PAIR or fits_int(ranges.of(value)) or not -_LIMIT < low <= high < _LIMIT:
        return
    with unnamed(op.location), ir.InsertionPoint(op):
        most, least = (arith.ConstantOp(value.type, ir.IntegerAttr.get(value.type, limit)).result for limit in (_LIMIT, -_LIMIT))
        op.operands[number] = arith.maxsi(arith.minsi(value, most), least)
