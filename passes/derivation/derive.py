"""Row program in, confirmed online program out."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from attn_mlir.dialects.elements import bits_of
from attn_mlir.mlir import ir
from attn_mlir.passes.derivation.absorb import BOUNDED, KEPT, OWN, PLAIN, SCALED, USUAL, WHOLE, CarriedForm
from attn_mlir.passes.derivation.accuracy import Accuracy
from attn_mlir.passes.derivation.check import Checker, CheckReport
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.plan import OUTPUT, RowPlan
from attn_mlir.passes.derivation.program import OnlineRow
from attn_mlir.passes.derivation.ranges import MaskFinder, RangeFinder
from attn_mlir.passes.derivation.row import Row

_DETAIL = {
    KEPT: "factors exp(r) stay with their terms, and sums are rescaled",
    BOUNDED: "factors exp(r) stay with their terms as far as they are below 1, and sums are rescaled",
    OWN: "sums of exp are relative to their own largest term",
    WHOLE: "factors that are known before the sum stay with their terms",
    SCALED: "weights are divided by a power of two near the largest of the row",
}


@dataclass(frozen=True)
class Derivation:
    """A program and the check that confirmed it; `choice` says what the range of its types asked for, and why."""

    program: OnlineRow
    report: CheckReport
    choice: str = ""


def accumulator_limit(attention: ir.Operation, wanted: int) -> int:
    """How many accumulators a weight may add: one for inputs of 16 or 8 bits, else `wanted`.

    Weights are rounded to the input type. Where several accumulators cancel, as (sum s v - mean sum v) does, what is
    left would be the rounding; one more pass has weights that are final before they are rounded. Tangents are worth the
    rounding: sum e s' v - mean(s') sum e v cancels only where s' is nearly the same for all keys.
    """
    return 1 if bits_of(_element(attention)) < 32 else wanted


def is_narrow(attention: ir.Operation) -> bool:
    """Whether weights are rounded to a type of less range than f32."""
    return isinstance(_element(attention), ir.F16Type)


def _element(attention: ir.Operation) -> ir.Type:
    return ir.RankedTensorType(attention.operands[0].type).element_type


def derive(row: Row, max_accumulators: int = 2, narrow: bool = False, masked: bool = False) -> Derivation:
    """The online program with the fewest passes that the numeric check confirms, and that stays in range where the row as written does.

    With `narrow`, weights are rounded to f16; with `masked`, numbers that are finite and large may be added to scores, as masks are.
    """
    return _Search(row, max_accumulators, narrow, masked).found()


@dataclass(eq=False)
class _Search:
    row: Row
    max_accumulators: int
    narrow: bool
    masked: bool = False
    _seen: set[tuple[object, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._checker = Checker(self.row)

    def found(self) -> Derivation:
        usual = self._confirmed(USUAL, frozenset())
        self._ranges = [("f32", RangeFinder(self.row)), *([("f16", RangeFinder(self.row, np.float16))] if self.narrow else [])]
        self._ranges += [("f32 beside masks of numbers", MaskFinder(self.row))] if self.masked else []
        return self._accurate(self._in_range(usual))

    def _in_range(self, usual: Derivation) -> Derivation:
        why = self._fails(usual)
        if not why:
            return usual
        for form, distrusted, detail in self._others(usual):
            try:
                other = self._confirmed(form, distrusted)
            except DerivationError:
                continue
            if self._new(other) and not self._fails(other):
                return Derivation(other.program, other.report, f"{detail}, because the usual form {why} where the row as written does not")
        return Derivation(usual.program, usual.report, f"the usual form {why} for large or small scores, and no other one was found")

    def _accurate(self, found: Derivation) -> Derivation:
        """The same, or one that computes sums of differences as they are written where they lose digits multiplied out."""
        plan = found.program.plan
        strict = Accuracy(self.row, all_large=True) if plan.multiplied else None
        if strict is None or not strict.fails(found.program):
            return found
        # Where scores and tangents must both be large, that is not worth one more pass.
        needed = not self.row.scores[1:] or bool(Accuracy(self.row).fails(found.program))
        for distrusted in (plan.multiplied, plan.multiplied | plan.distrusted):
            try:
                other = self._confirmed(plan.form, frozenset(distrusted))
            except DerivationError:
                continue
            if other.program.plan.kv_passes > plan.kv_passes and not needed:
                continue
            if not strict.fails(other.program) and (not self._fails(other) or self._fails(found)):
                names = ", ".join(self.row.reductions[i].name for i in sorted(plan.multiplied))
                return Derivation(other.program, other.report, f"{names} in a later pass, because differences lose digits multiplied out")
        also = f"; {found.choice}" if found.choice else ""
        return Derivation(found.program, found.report, f"differences lose digits at large scores, multiplied out in one pass{also}")

    def _confirmed(self, form: CarriedForm, distrusted: frozenset[int]) -> Derivation:
        """Whatever the check rejects is computed one pass later, from values that are final by then.

        Where that does not help, extrema are, so that some key attains them exactly.
        """
        for _ in range(len(self.row.reductions) + 3):
            program = OnlineRow(RowPlan(self.row, self.max_accumulators, distrusted, form))
            report = self._checker.check(program)
            if not report.failed:
                return Derivation(program, report)
            first = min(report.failed - {OUTPUT}, default=OUTPUT)
            more = {first} if first not in distrusted else self._rearranged(program) - distrusted
            if not more:
                break
            distrusted |= more
        raise DerivationError("no online form of this row agrees with its dense evaluation on random scores")

    def _rearranged(self, program: OnlineRow) -> frozenset[int]:
        """The extrema that may differ in the last bits from every value that is compared with them: those that read reductions."""
        reductions = self.row.reductions
        return frozenset(i for i in program.plan.decisions if i > OUTPUT and reductions[i].kind != "sum" and reductions[i].value.reds)

    def _fails(self, derivation: Derivation) -> str:
        for name, ranges in self._ranges:
            problem = ranges.fails(derivation.program)
            if problem:
                return f"{problem} in {name}"
        return ""

    def _new(self, derivation: Derivation) -> bool:
        plan = derivation.program.plan
        key = (plan.kv_passes, *[(m.kind, m.weight, m.kv_pass) for m in plan.moments], *[(a.weight, a.norm) for a in plan.accumulators])
        new = key not in self._seen
        self._seen.add(key)
        return new

    def _others(self, usual: Derivation) -> Iterator[tuple[CarriedForm, frozenset[int], str]]:
        """Other forms, the cheapest first: without a further pass, then with one for the outputs, for what reads reductions, for both."""
        self._new(usual)
        forms = [CarriedForm(exponents) for exponents in (KEPT, BOUNDED, OWN)]
        if self.narrow:
            forms += [CarriedForm(PLAIN, WHOLE), *[CarriedForm(exponents, SCALED) for exponents in (PLAIN, KEPT, BOUNDED, OWN)]]
        later = frozenset(i for i in usual.program.plan.decisions if i > OUTPUT and self.row.reductions[i].value.reds)
        for distrusted in (frozenset(), frozenset({OUTPUT}), later, later | {OUTPUT}):
            for form in forms if not distrusted else [USUAL, *forms]:
                said = [_DETAIL[choice] for choice in (form.exponents, form.weights) if choice in _DETAIL]
                yield form, distrusted, ", and ".join(["one more pass", *said] if distrusted else said)
