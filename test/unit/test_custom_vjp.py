"""A backward pass that an OnlineFunc's author wrote, compared with the derived one."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import attn_mlir
import engine_helpers as eh
from attn_mlir import Identity, OnlineFunc, OnlineRetention, OnlineSoftmax
from attn_mlir.errors import ArgumentError, CompileError, TraceError
from attn_mlir.testing import compare_backward, compare_combine


@pytest.mark.parametrize("online_func", [OnlineSoftmax(), Identity()])
def test_predefined_functions_have_the_derived_backward(online_func: OnlineFunc) -> None:
    found = compare_backward(online_func)
    assert found.agrees and found.points == 6 * 2 * 5 * 9
    assert [difference.output for difference in found.differences] == ["p", "dscores"]
    assert all(difference.largest < 1e-12 for difference in found.differences)
    assert str(found).startswith(f"{type(online_func).__name__}.backward is the derived one")


def test_retention_takes_its_divisor_as_a_constant() -> None:
    found = compare_backward(OnlineRetention())
    p, dscores = found.differences
    assert p.agrees and not dscores.agrees and not found.agrees
    # Where the sum is below 1, the divisor is the constant 1 anyway.
    assert "small scores" not in dscores.kinds and "ordinary scores" in dscores.kinds
    assert found.detached == ("r",)
    assert "the two agree when `r` is detached" in str(found)


def test_the_documentation_shows_what_is_printed() -> None:
    page = Path(attn_mlir.__file__).parents[2] / "docs" / "engine-api.md"
    for online_func in (OnlineSoftmax(), OnlineRetention()):
        shown = textwrap.indent(str(compare_backward(online_func)), "    ")
        # Rounding differs from machine to machine.
        assert _digits(shown) in _digits(page.read_text()), shown


def _digits(text: str) -> str:
    return re.sub(r"\d\.\de[-+]\d+", "<small>", text)


class DetachedRetention(OnlineRetention):
    """The same convention, said in the forward pass."""

    @staticmethod
    def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        r = attn_mlir.detach(online_rowscales["abssum"].max(1.0))
        return o / r, {"r": r}


def test_a_detached_divisor_gives_the_written_backward() -> None:
    assert compare_backward(DetachedRetention()).agrees


class WrongSign(OnlineSoftmax):
    @staticmethod
    def backward(dp: Any, scores: Any, final_rowscales: Any, doosum_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (dp + doosum_rowscales) * scores


class WrongWeights(OnlineSoftmax):
    @staticmethod
    def forward(scores: Any, final_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (scores - final_rowscales["lse"]).exp() * (1 + 0.001 * q_idx)


def test_mistakes_are_found_with_their_values() -> None:
    _, dscores = compare_backward(WrongSign()).differences
    assert not dscores.agrees and dscores.largest == pytest.approx(abs(dscores.written - dscores.derived))
    p, _ = compare_backward(WrongWeights()).differences
    assert not p.agrees and p.written / p.derived == pytest.approx(1.004)


def test_custom_inputs_are_random() -> None:
    assert compare_backward(eh.WrittenSink()).agrees


class Blocky(OnlineSoftmax):
    """Forgets to rescale."""

    @staticmethod
    def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        weights, states, _ = OnlineSoftmax.online_fwd(scores, online_rowscales, b, h, q_idx)
        return weights, states, 1


class Derived(OnlineSoftmax):
    backward = OnlineFunc.backward


class NoForward(OnlineSoftmax):
    forward = OnlineFunc.forward


class Reducing(OnlineSoftmax):
    @staticmethod
    def backward(dp: Any, scores: Any, final_rowscales: Any, doosum_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return dp - dp.get_reduce("sum")


@pytest.mark.parametrize(
    ("online_func", "error", "text"),
    [
        (Derived(), ArgumentError, "Derived defines no backward: there is nothing to compare"),
        (NoForward(), ArgumentError, r"NoForward defines backward but not forward\(scores, final_rowscales, b, h, q_idx, kv_idx\)"),
        (Reducing(), TraceError, "a reduction over the row, where only one position is seen"),
        (Blocky(), CompileError, "the online function is not independent of how keys are cut into blocks: o is"),
    ],
)
def test_what_cannot_be_compared(online_func: OnlineFunc, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        compare_backward(online_func)


def test_functions_without_positions_or_doosum_are_taken() -> None:
    class Short(Identity):
        @staticmethod
        def backward(dp: Any, scores: Any, final_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:  # type: ignore[override]
            return dp

    assert compare_backward(Short()).agrees


def test_comparisons_are_repeatable() -> None:
    first, second = (compare_backward(OnlineRetention(), seed=4) for _ in range(2))
    assert first == second and first != compare_backward(OnlineRetention(), seed=5)


class Average(OnlineSoftmax):
    """Takes every part for equally heavy."""

    @staticmethod
    def combine(final_rowscales: Any) -> Any:
        weights = final_rowscales["lse"] * 0 + 1
        return weights / weights.get_reduce("sum")


class Total(OnlineSoftmax):
    @staticmethod
    def combine(final_rowscales: Any) -> Any:
        return final_rowscales["lse"].get_reduce("max")


class LogSpace(OnlineSoftmax):
    @staticmethod
    def combine(final_rowscales: Any) -> Any:
        lse = final_rowscales["lse"]
        return (lse - lse.get_reduce("max").max(-1e30)).exp() / (lse - lse.get_reduce("max")).exp().get_reduce("sum")


def test_combine_is_compared_with_the_whole_row() -> None:
    for online_func in (OnlineSoftmax(), LogSpace()):
        found = compare_combine(online_func)
        assert found.agrees and found.largest < 1e-12
    assert "OnlineSoftmax.combine gives what all keys give at once: float64, parts of 2, 5 and 4 keys" in str(
        compare_combine(OnlineSoftmax())
    )
    wrong = compare_combine(Average())
    assert not wrong.agrees and wrong.largest == pytest.approx(abs(wrong.combined - wrong.whole)) and wrong.largest > 0.1
    assert "Average.combine does not give what all keys give at once" in str(wrong)


def test_what_combine_must_return() -> None:
    with pytest.raises(ArgumentError, match=r"Total\.combine must return one number for each part of the keys"):
        compare_combine(Total())
    with pytest.raises(ArgumentError, match="OnlineRetention defines no combine: there is nothing to compare"):
        compare_combine(OnlineRetention())
