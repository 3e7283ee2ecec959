"""Makes integer division total: the processor traps where a quotient does not exist."""

from dataclasses import dataclass

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, is_constant

_DIVISIONS = ("arith.divsi", "arith.floordivsi", "arith.ceildivsi", "arith.remsi")
_LEAST = -(2**63)


@dataclass(frozen=True)
class GuardDivision(Pass):
    """Divides by 1 instead of by 0, and where the least integer is divided by -1, as torch does: the quotient wraps around.

    Divisors that are constants are left alone.
    """

    name = "cpu-guard-division"

    def run(self, module: ir.Operation) -> bool:
        for op in [op for op in find_all(module, *_DIVISIONS) if not is_constant(op.operands[1])]:
            with op.location, ir.InsertionPoint(op):
                op.operands[1] = _safe(op.operands[0], op.operands[1])
        return True


def _safe(dividend: ir.Value, divisor: ir.Value) -> ir.Value:
    wraps = arith.andi(_equals(divisor, -1), _equals(dividend, _LEAST))
    return arith.select(arith.ori(_equals(divisor, 0), wraps), emit.number(divisor.type, 1), divisor)


def _equals(value: ir.Value, number: int) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.eq, value, emit.number(value.type, number))
