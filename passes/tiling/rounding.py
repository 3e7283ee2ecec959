"""Scalar code on sums that are wider than scores: differences are taken first and rounded then."""

from attn_mlir.mlir import ir
from attn_mlir.passes.tiling.scalars import ScalarEmitter, cast_float, clone_scalar

EXACT = ("arith.subf", "arith.addf", "arith.negf")
"""Ops on sums of log decays whose results keep digits that scores do not have."""


class RoundingEmitter(ScalarEmitter):
    """Emits a piece whose arguments may be wider than scores.

    Ops of `kept`, sums and differences, of wide values stay wide; all others are computed in the type of scores. What the piece yields is
    cast to `made`, by default the type of scores.
    """

    def __init__(self, score: ir.Type, outside: ScalarEmitter, kept: tuple[str, ...] = EXACT, made: ir.Type | None = None) -> None:
        super().__init__({}, outside._find)
        self._score, self._kept, self._made = score, kept, made or score

    def inline(self, block: ir.Block, arguments: list[ir.Value]) -> list[ir.Value]:
        """See ScalarEmitter."""
        return [cast_float(value, self._made) for value in super().inline(block, arguments)]

    def _clone(self, value: ir.Value) -> ir.Value:
        op = value.owner.operation if isinstance(value, ir.OpResult) else None
        operands = [self.emit(operand) for operand in op.operands] if op is not None else []
        wide = next((operand.type for operand in operands if _is_wider(operand.type, self._score)), None)
        if op is None or wide is None:
            return super()._clone(value)
        if op.name in self._kept:
            widened = [cast_float(operand, wide) for operand in operands]
            return ir.Operation.create(op.name, results=[wide], operands=widened, loc=op.location).result
        rounded = [cast_float(operand, self._score) if _is_wider(operand.type, self._score) else operand for operand in operands]
        clone = clone_scalar(op, rounded)
        for old, new in zip(op.results, clone.results, strict=True):
            self.set(old, new)
        return clone.results[ir.OpResult(value).result_number]


def _is_wider(type_: ir.Type, score: ir.Type) -> bool:
    return isinstance(type_, ir.F64Type) and not isinstance(score, ir.F64Type)
