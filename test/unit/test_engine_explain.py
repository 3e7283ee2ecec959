"""AttentionEngine: what it says about its programs, and its check of a custom VJP."""

import warnings
from typing import Any

import pytest

import engine_helpers as eh
from attn_mlir import CustomIO, Identity, OnlineFunc, OnlineRetention, OnlineSoftmax

QKV = eh.inputs(b=1, h=2, sq=8, d=8)


class DerivedSoftmax(OnlineSoftmax):
    backward = OnlineFunc.backward


class Nonlinear(Identity):
    @staticmethod
    def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        return o.tanh(), {}


class Halved(OnlineSoftmax):
    @staticmethod
    def combine(final_rowscales: Any) -> Any:
        return OnlineSoftmax.combine(final_rowscales) * 0.5


def test_an_online_function_is_explained_as_written_and_as_a_row() -> None:
    text = eh.engine(QKV).explain()
    written, _, derived = text.partition("derived from it")
    assert "@attention: attn.online" in written and "r' = r * exp(m - m') + sum over block(exp(s - m'))" in written
    assert "merge" not in written
    for line in ("m = max s", "r = sum exp(s - m)", "p = exp(s - m) / r", "lse = log(r) + m", "m = max(m_a, m_b)"):
        assert f"    {line}\n" in derived
    assert "r = r_a * exp(m_a - m) + r_b * exp(m_b - m)" in derived
    assert text.endswith(
        "backward as OnlineSoftmax writes it, which is the one that is used\n  p = exp(s - lse)\n  ds = (dp - doosum) * p\n"
    )


def test_a_derived_backward_is_not_said_to_be_written() -> None:
    assert "writes it" not in eh.engine(QKV, online_func=DerivedSoftmax()).explain()


def test_what_follows_from_no_row_is_said() -> None:
    text = eh.engine(QKV, online_func=Nonlinear()).explain()
    assert "o = tanh(acc)" in text and "no merge rule and no derived backward: the output is not linear" in text
    assert text.endswith("backward as Nonlinear writes it, which is the one that is used\n  p = s\n  ds = dp\n")


def test_captured_values_are_named() -> None:
    custom = CustomIO({"gate": ("heads",)})

    class Gated(OnlineSoftmax):
        @staticmethod
        def backward(dp: Any, scores: Any, final_rowscales: Any, doosum_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return dp * custom.input_tensors["gate"]

    assert eh.engine(QKV, custom, Gated()).explain().endswith("ds = dp * gate\n")


@pytest.mark.parametrize("online", [OnlineSoftmax, DerivedSoftmax, Identity])
def test_a_check_that_passes_says_nothing(online: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eh.engine(QKV, online_func=online(), check=True)


def test_a_check_that_fails_warns() -> None:
    with pytest.warns(UserWarning, match=r"OnlineRetention.backward is not the derived one(.|\n)*the two agree when `r` is detached"):
        eh.engine(QKV, online_func=OnlineRetention(), check=True)
    with pytest.warns(UserWarning, match=r"Nonlinear.backward cannot be compared: (.|\n)*not linear in the sum of weighted values"):
        eh.engine(QKV, online_func=Nonlinear(), check=True)
    with pytest.warns(UserWarning, match=r"Halved.combine does not give what all keys give at once"):
        eh.engine(QKV, online_func=Halved(), check=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eh.engine(QKV, online_func=OnlineRetention())
