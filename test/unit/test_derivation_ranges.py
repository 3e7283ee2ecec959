"""The range of f32 and f16 decides what is carried: the usual form where it is in range; each other form is found, and said."""

import numpy as np
import pytest

from attn_mlir.passes.derivation import derive
from attn_mlir.passes.derivation.absorb import BOUNDED, KEPT, OWN, PLAIN, SCALED, USUAL, WHOLE, CarriedForm
from attn_mlir.passes.derivation.plan import RowPlan
from attn_mlir.passes.derivation.program import OnlineRow
from attn_mlir.passes.derivation.ranges import RangeFinder
from row_cases import CASES, off_by_one, relu, relu_normalised, retention, retention_parallel, sigmoid, softmax
from rows import Rule, V
from test_derivation_soundness import row_of


def softpick(s: V) -> V:
    m = s.max("m")
    x = (s - m).exp() - (-m).exp()
    return x.most(0.0) / (x.abs().sum("l") + 1e-6)


def above_floor(s: V) -> V:
    m = s.max("m").most(0.0)
    x = (s - m).exp() - (-m).exp()
    return x.most(0.0) / (x.abs().sum("l") + 1e-6)


def sinh(s: V) -> V:
    m = s.abs().max("m")
    x = (s - m).exp() - (-s - m).exp()
    return x / (x.abs().sum("l") + 1e-6)


def sinh_squared(s: V) -> V:
    m = s.abs().max("m")
    x = (s - m).exp() - (-s - m).exp()
    return x * x / (x * x).sum("l")


def floor_of_scores(s: V) -> V:
    e = (s.most(0.0) - s.max("m")).exp()
    return e / e.sum("l")


def mean_centred(s: V) -> V:
    e = (s - s.mean()).exp()
    return e / e.sum("l")


def fourth_power(s: V) -> V:
    w = s * s * s * s
    return w / (1.0 + w.sum("l"))


def unshifted(s: V) -> V:
    e = s.exp()
    return e / e.sum("l")


def squares_over_a_number(s: V) -> V:
    return s.most(0.0) * s.most(0.0) * 0.03125


def power_of_quotient(s: V) -> V:
    x = s / s.abs().max("m")
    x = x * x * x * x * x * x
    return x * x * x / 32.0


FOUND: list[tuple[Rule, bool, CarriedForm, int]] = [
    (softpick, False, CarriedForm(BOUNDED), 1),
    (above_floor, False, CarriedForm(KEPT), 1),
    (sinh, False, CarriedForm(KEPT), 1),
    (sinh_squared, False, USUAL, 2),
    (floor_of_scores, False, CarriedForm(BOUNDED), 1),
    (mean_centred, False, CarriedForm(OWN), 1),
    (softpick, True, CarriedForm(BOUNDED), 1),
    (fourth_power, True, CarriedForm(PLAIN, SCALED), 1),
    (unshifted, True, CarriedForm(OWN), 1),
    (squares_over_a_number, True, CarriedForm(PLAIN, WHOLE), 1),
    (power_of_quotient, False, USUAL, 2),
]


@pytest.mark.parametrize(("rule", "narrow", "form", "kv_passes"), FOUND)
def test_form_that_stays_in_range(rule: Rule, narrow: bool, form: CarriedForm, kv_passes: int) -> None:
    row = row_of(rule)
    found = derive(row, narrow=narrow)
    plan = found.program.plan
    assert (plan.form, plan.kv_passes) == (form, kv_passes)
    assert "because the usual form" in found.choice
    assert "where the row as written does not" in found.choice
    ranges = RangeFinder(row, np.float16 if narrow else None)
    assert ranges.fails(OnlineRow(RowPlan(row, 2))) in ("overflows", "loses its digits")
    assert not ranges.fails(found.program)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("rule", [softmax, off_by_one, sigmoid, relu, retention, retention_parallel, relu_normalised])
def test_usual_form_where_it_is_in_range(rule: Rule, narrow: bool) -> None:
    found = derive(row_of(lambda s: _weight(rule(s))), narrow=narrow)
    assert (found.program.plan.form, found.choice) == (USUAL, "")


def test_overflow_as_written_is_left() -> None:
    """exp(s) / sum exp(s) overflows in f32 as its author wrote it, where the online form does."""
    assert not derive(row_of(unshifted)).choice


def test_every_form_is_the_row() -> None:
    """In float64, on the scores of the check, forms that are not needed compute the same, too; the check is not what makes them right."""
    row = row_of(lambda s: _weight(CASES["softmax"].rule(s)))
    for form in (CarriedForm(KEPT), CarriedForm(BOUNDED), CarriedForm(OWN), CarriedForm(PLAIN, SCALED), CarriedForm(KEPT, SCALED)):
        program = OnlineRow(RowPlan(row, 2, frozenset(), form))
        assert not RangeFinder(row).fails(program), form


def _weight(found: V | tuple[V, ...]) -> V:
    return found[0] if isinstance(found, tuple) else found
