"""Residuals of factors of products that were rounded to f16 (hi/lo split), which kernels keep scaled by 2^11."""

from attn_mlir.backends.gpu.structure import body, maker, yielded
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

RESIDUAL_SCALE = 2048.0
"""2^11: numbers of f16 have as many digits."""


def residuals(kernel: ir.Operation) -> set[ir.Value]:
    """Tiles of the residuals of numbers that were rounded to f16, whose products are only added to others.

    They are 2^11 times as small as the numbers at least, so that few of their digits would be left, or none.
    """
    found = set[ir.Value]()
    for op in find_all(kernel, "tile.map"):
        for value, result in zip(yielded(body(op)), op.results, strict=True):
            uses = list(result.uses)
            added = all(use.owner.operation.name == "tile.dot_add" and use.operand_number > 0 for use in uses)
            if uses and added and _is_residual(value):
                found.add(result)
    return found


def _is_residual(value: ir.Value) -> bool:
    """Whether it is x - f32(f16(x)), rounded to f16."""
    rounded = maker(value)
    difference = maker(rounded.operands[0]) if rounded is not None and rounded.name == "arith.truncf" else None
    if difference is None or difference.name != "arith.subf" or not isinstance(value.type, ir.F16Type):
        return False
    x, wide = difference.operands
    widening = maker(wide)
    narrow = maker(widening.operands[0]) if widening is not None and widening.name == "arith.extf" else None
    return narrow is not None and narrow.name == "arith.truncf" and narrow.operands[0] == x and isinstance(narrow.result.type, ir.F16Type)
