"""Arithmetic of positions that must be as exact as it was written, since a comparison or a rounding reads it."""

from collections.abc import Iterator
from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.scaling import float_maps, is_real
from attn_mlir.backends.gpu.scalar_ops import EXACT
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all

_ROUNDINGS = ("math.floor", "math.ceil", "math.trunc", "math.round", "math.roundeven")
_JUMPS = (*_ROUNDINGS, "arith.fptosi", "arith.fptoui", "arith.cmpf", "arith.remf")
_ARITHMETIC = ("arith.addf", "arith.subf", "arith.mulf", "arith.divf")
_FOLLOWED = (
    *_ARITHMETIC, "arith.negf", "arith.maximumf", "arith.minimumf", "arith.select", "arith.extf", "arith.truncf", "math.absf", "math.fma",
    *_ROUNDINGS,
)  # fmt: skip


@dataclass(frozen=True)
class ExactJumps(Pass):
    """Marks sums, products and quotients of positions and captured numbers that a comparison, or a rounding to an integer, reads.

    (kv - q) / 3 is 1 exactly where the distance is 3, so that a mask says `<= 1`; kv / 3 - q / 3, or a product with a third, is not.
    What scores are made of is not marked: they hit a bound by chance alone.
    """

    name = "gpu-exact-jumps"

    def run(self, module: ir.Operation) -> bool:
        for map_ in list(float_maps(module)):
            scores = _Scores()
            for jump in find_all(map_, *_JUMPS):
                if not any(scores.reach(operand) for operand in jump.operands):
                    for op in _followed(jump):
                        op.attributes[EXACT] = ir.UnitAttr.get()
        return True


class _Scores:
    """Which values of a region are made of elements of tiles, as scores are."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, bool] = {}

    def reach(self, value: ir.Value) -> bool:
        """Whether an element of a tile is part of the value."""
        stack = [value]
        while stack:
            top = stack[-1]
            operands = [] if isinstance(top.owner, ir.Block) else list(top.owner.operation.operands)
            missing = [operand for operand in operands if operand not in self._known]
            if missing and top not in self._known and not _is_element(top):
                stack += missing
                continue
            stack.pop()
            self._known[top] = _is_element(top) or any(self._known.get(operand, False) for operand in operands)
        return self._known[value]


def _is_element(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name == "tensor.extract"


def _followed(jump: ir.Operation) -> Iterator[ir.Operation]:
    """The arithmetic in f32 or f64 that makes the operands of an op."""
    stack, seen = list(jump.operands), set[ir.Value]()
    while stack:
        value = stack.pop()
        if value in seen or isinstance(value.owner, ir.Block) or value.owner.operation.name not in _FOLLOWED:
            continue
        seen.add(value)
        op = value.owner.operation
        if op.name in _ARITHMETIC and is_real(value):
            yield op
        stack += list(op.operands)
