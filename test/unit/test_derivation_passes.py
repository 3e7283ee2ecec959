"""The passes around the derivation: simplification keeps values, guards keep NaN, explanations name what the user named."""

from pathlib import Path

import numpy as np
import pytest

from attn_mlir.passes.explain import explain
from attn_mlir.passes.guard_empty_rows import GuardEmptyRows
from attn_mlir.passes.online_rewrite import OnlineRewrite
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.simplify import Simplify
from attn_mlir.reference import evaluate
from row_cases import CASES, softmax
from rows import V, module_text, parse

INPUTS = sorted((Path(__file__).parent.parent / "Inputs").glob("*.mlir"))


@pytest.mark.parametrize("name", CASES)
def test_simplified_row_has_the_same_value(name: str) -> None:
    case = CASES[name]
    rng = np.random.default_rng(1)
    inputs = [*[rng.standard_normal((1, 2, 11, 4)) for _ in range(3)], np.array([0.7, 1.3])]
    text = module_text(case.rule, case.outputs)
    module = parse(text)
    assert Simplify().run(module.operation)
    once = str(module)
    for got, wanted in zip(evaluate(module, inputs), evaluate(parse(text), inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-7)
    assert Simplify().run(module.operation)
    assert str(module) == once


@pytest.mark.parametrize("path", INPUTS, ids=lambda p: p.stem)
def test_every_input_goes_through(path: Path) -> None:
    module = parse(path.read_text())
    for pass_ in (Simplify(), OnlineRewrite(), GuardEmptyRows()):
        assert pass_.run(module.operation)
        assert module.operation.verify()
        assert explain(module.operation).startswith("@attention: attn.")
    assert not find_all(module.operation, "attn.attention")


@pytest.mark.parametrize("name", ["softmax", "l2", "layer norm", "mean-centred softmax"])
def test_nan_reaches_the_output(name: str) -> None:
    """A guard for fully masked rows must not take NaN for emptiness."""
    case = CASES[name]
    module = parse(module_text(case.rule, case.outputs))
    assert OnlineRewrite().run(module.operation)
    assert GuardEmptyRows().run(module.operation)
    rng = np.random.default_rng(1)
    inputs = [*[rng.standard_normal((1, 2, 9, 4)) for _ in range(3)], np.ones(2)]
    inputs[0][0, 0, 5, 0] = np.nan
    for block in (2, 9):
        o = evaluate(module, inputs, block=block)[0]
        assert np.isnan(o[0, 0, 5]).all()
        assert np.isfinite(o[0, 0, 6:]).all()


def test_explanation_uses_the_users_names() -> None:
    def named(s: V) -> V:
        t = s.text.param("%t")
        e = ((s - s.max("peak")) * t).exp()
        return e / e.sum("mass")

    said = explain(parse(module_text(named)).operation)
    for line in ("peak = max s", "mass = sum exp((s - peak) * t)", "o = acc / mass", "mass: rescaled", "t = t"):
        assert line in said


def test_explanation_of_what_has_no_online_form() -> None:
    module = parse(module_text(lambda s: (-(s * s) - 1.0).sqrt()))
    assert "no online form: the row is not a finite, stable function" in explain(module.operation)


def test_guard_of_a_hand_written_program_counts_by_its_maximum() -> None:
    module = parse(module_text(softmax, ("lse",)))
    assert OnlineRewrite().run(module.operation)
    text = str(module).replace("-3.40282347E+38", "0xFF800000")
    hand_written = parse(text)
    assert GuardEmptyRows().run(hand_written.operation)
    assert str(hand_written).count("arith.cmpf oeq") == 1
    assert "count" not in hand_written.operation.get_asm(use_name_loc_as_prefix=True)
