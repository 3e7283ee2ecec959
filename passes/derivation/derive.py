"""Row program in, confirmed online program out."""

from dataclasses import dataclass

from attn_mlir.mlir import ir
from attn_mlir.passes.derivation.check import Checker, Report
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.plan import OUTPUT, Plan
from attn_mlir.passes.derivation.program import Program
from attn_mlir.passes.derivation.row import Row


@dataclass(frozen=True)
class Derivation:
    """A program and the check that confirmed it."""

    program: Program
    report: Report


def accumulator_limit(attention: ir.Operation, wanted: int) -> int:
    """How many accumulators a weight may add: one for 16-bit inputs, else `wanted`.

    Weights are rounded to the input type. Where several accumulators cancel, as (sum s v - mean sum v) does, what is
    left would be the rounding; one more sweep has weights that are final before they are rounded. Tangents are worth the
    rounding: sum e s' v - mean(s') sum e v cancels only where s' is nearly the same for all keys.
    """
    element = ir.RankedTensorType(attention.operands[0].type).element_type
    return 1 if isinstance(element, (ir.F16Type, ir.BF16Type)) else wanted


def derive(row: Row, max_accumulators: int = 2) -> Derivation:
    """The online program with the fewest sweeps that the numeric check confirms.

    Whatever the check rejects is computed one sweep later, from values that are final by then.
    """
    checker = Checker(row)
    distrusted: frozenset[int] = frozenset()
    for _ in range(len(row.reductions) + 2):
        program = Program(Plan(row, max_accumulators, distrusted))
        report = checker.check(program)
        if not report.failed:
            return Derivation(program, report)
        first = min(report.failed - {OUTPUT}, default=OUTPUT)
        if first in distrusted:
            break
        distrusted |= {first}
    raise DerivationError("no online form of this row agrees with its dense evaluation on random scores")
