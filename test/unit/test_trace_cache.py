"""A call finds its trace again exactly when the trace still fits."""

import dataclasses
import enum
import types
from typing import Any

import numpy as np
import pytest
import torch

from attn_mlir import Identity, OnlineFunc, OnlineRetention, OnlineSoftmax, masks, mods, rows
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.program import Traced
from trace_session import Function, Session

WIDTH = 4


@pytest.fixture
def session() -> Session:
    return Session()


def make_alibi(slopes: torch.Tensor, gain: float) -> Function:
    return lambda score, b, h, q_idx, kv_idx: score * gain + slopes[h]


def test_functions_made_anew_share_a_trace_with_their_own_values(session: Session) -> None:
    one, two = torch.ones(3), torch.zeros(3)
    first, values = session.call(make_alibi(one, 2.0))
    assert values[0] == 2.0
    assert values[1] is one
    second, values = session.call(make_alibi(two, 5.0))
    assert values[0] == 5.0
    assert values[1] is two
    assert second is first
    assert session.traces == 1


@pytest.mark.parametrize("other", [torch.ones(3, dtype=torch.float16), torch.ones(3, 1), torch.ones(3, dtype=torch.int32)])
def test_another_dtype_or_rank_is_another_trace(session: Session, other: torch.Tensor) -> None:
    def make(table: torch.Tensor) -> Function:
        return lambda score, b, h, q_idx, kv_idx: score + table[(h, 0)[: table.dim()]]

    session.call(make(torch.ones(3)))
    session.call(make(other))
    assert session.traces == 2


def test_an_integer_instead_of_a_float_is_another_trace(session: Session) -> None:
    session.call(make_alibi(torch.ones(3), 2.0))
    session.call(make_alibi(torch.ones(3), 2))
    assert session.traces == 2


def test_two_tensors_are_not_taken_for_one(session: Session) -> None:
    def make(first: torch.Tensor, second: torch.Tensor) -> Function:
        return lambda score, b, h, q_idx, kv_idx: score * first[h] + second[h]

    shared = torch.ones(3)
    assert len(session.call(make(shared, shared))[1]) == 1
    assert len(session.call(make(shared, torch.zeros(3)))[1]) == 2


def test_specialised_scalars_are_checked(session: Session) -> None:
    def make(n: int) -> Function:
        return lambda score, b, h, q_idx, kv_idx: score if n > 2 else -score

    for n in (3, 1, 3, 1):
        traced, _ = session.call(make(n))
        assert ("arith.negf" in traced.text) == (n == 1)
    assert session.traces == 2


def test_globals_are_read_anew(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = lambda b, h, q_idx, kv_idx: q_idx - kv_idx < WIDTH  # noqa: E731
    assert session.call(mask_mod=mask)[1] == [4]
    monkeypatch.setitem(globals(), "WIDTH", 9)
    assert session.call(mask_mod=mask)[1] == [9]
    assert session.traces == 1


def test_flags_and_texts_are_part_of_the_key(session: Session) -> None:
    def make(flag: bool, mode: str) -> Function:
        return lambda score, b, h, q_idx, kv_idx: score + 1 if flag and mode == "a" else score

    texts = {session.call(make(flag, mode))[0].text for flag in (True, False) for mode in ("a", "b")}
    assert session.traces == 4
    assert len(texts) == 2


class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2


@dataclasses.dataclass
class Config:
    window: int
    nested: Any = None
    side: Side = Side.LEFT


class Layer:
    scale = 2.0

    def __init__(self, window: int) -> None:
        self.config = Config(window, Config(window))
        self.bias = torch.ones(3)

    @property
    def half(self) -> float:
        return self.config.window / 2

    def mask(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx - kv_idx < self.config.nested.window

    def score(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return self.shifted(score) * self.half + self.bias[h]

    def shifted(self, score: Any) -> Any:
        return score - self.config.window * self.scale


def test_attributes_of_objects_are_part_of_the_key(session: Session) -> None:
    layer = Layer(4)
    first, values = session.call(layer.score)
    assert values[0] is layer.bias
    assert session.call(layer.score)[0] is first
    layer.bias = torch.zeros(3)
    assert session.call(layer.score)[1][0] is layer.bias
    assert session.call(Layer(4).score)[0] is first
    assert session.traces == 1
    layer.config.window = 6
    assert session.call(layer.score)[0] is not first
    assert session.traces == 2
    Layer.scale = 3.0
    try:
        session.call(layer.score)
        assert session.traces == 3
    finally:
        Layer.scale = 2.0


def test_nested_attributes_are_part_of_the_key(session: Session) -> None:
    layer = Layer(4)
    session.call(mask_mod=layer.mask)
    layer.config.nested.window = 7
    assert "7 : index" in session.call(mask_mod=layer.mask)[0].text


def test_helpers_are_part_of_the_key(session: Session) -> None:
    def make(helper: Function) -> Function:
        return lambda score, b, h, q_idx, kv_idx: helper(score)

    texts = {session.call(make(helper))[0].text for helper in (torch.exp, torch.tanh, lambda x: x * 2, lambda x: x * 3)}
    assert len(texts) == 4


def test_numpy_functions_are_told_apart(session: Session) -> None:
    def make(helper: Any) -> Function:
        return lambda score, b, h, q_idx, kv_idx: helper(score)

    assert session.call(make(np.exp))[0].text != session.call(make(np.tanh))[0].text


def test_modules_of_constants(session: Session) -> None:
    settings = types.ModuleType("settings")
    settings.window = 3  # type: ignore[attr-defined]
    mask = lambda b, h, q_idx, kv_idx: q_idx - kv_idx < settings.window  # noqa: E731
    assert "3 : index" in session.call(mask_mod=mask)[0].text
    settings.window = 8  # type: ignore[attr-defined]
    assert "8 : index" in session.call(mask_mod=mask)[0].text


def test_containers_are_part_of_the_key(session: Session) -> None:
    options = {"window": 3}
    masks: list[Function] = [lambda b, h, q_idx, kv_idx: q_idx - kv_idx < options["window"]]
    mask = lambda b, h, q_idx, kv_idx: masks[0](b, h, q_idx, kv_idx)  # noqa: E731
    assert "3 : index" in session.call(mask_mod=mask)[0].text
    options["window"] = 8
    assert "8 : index" in session.call(mask_mod=mask)[0].text
    masks[0] = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx
    assert "sge" in session.call(mask_mod=mask)[0].text


def test_what_cannot_be_followed_is_traced_anew(session: Session) -> None:
    tables = [torch.ones(3), torch.zeros(3)]
    mod = lambda score, b, h, q_idx, kv_idx: score + iter(tables).__next__()[h]  # noqa: E731
    assert session.call(mod)[1][0] is tables[0]
    big = list(range(100))
    large = lambda score, b, h, q_idx, kv_idx: score * big[3]  # noqa: E731
    assert "3.0" in session.call(large)[0].text
    big[3] = 17
    assert "1.7" in session.call(large)[0].text


def test_recursive_helpers(session: Session) -> None:
    def power(x: Any, n: int) -> Any:
        return x if n == 1 else x * power(x, n - 1)

    mod = lambda score, b, h, q_idx, kv_idx: power(score, 3)  # noqa: E731
    assert session.call(mod)[0].text.count("arith.mulf") == 2
    session.call(mod)
    assert session.traces == 1


_EMPTY = Traced("", "", (), ())


def test_the_cache_is_bounded(session: Session) -> None:
    for i in range(600):
        code = compile(f"f = lambda score, b, h, q_idx, kv_idx: score if {i} else score", "made", "exec")
        scope: dict[str, Any] = {}
        exec(code, scope)
        session.cache.find((scope["f"],), i, lambda: _EMPTY)
    assert len(session.cache._entries) == 512


@pytest.mark.parametrize("online_func", [OnlineSoftmax(), OnlineRetention(), Identity()])
def test_predefined_online_functions_are_found_again(online_func: OnlineFunc) -> None:
    assert Scan([online_func.online_fwd, online_func.online_fwd_epilogue]).reusable


PREDEFINED = (
    rows.softmax, rows.softmax_sink(torch.ones(4)), rows.retention, masks.causal(), masks.document(torch.zeros(9)),
    masks.and_(masks.sliding_window(3), masks.not_(masks.dilated(2))), mods.alibi(torch.ones(4)), mods.softcap(3.0),
    mods.additive_bias(torch.ones(3)), Layer(4).mask, Layer(4).score,
    lambda s: torch.nn.functional.softplus(s) + torch.special.erf(s) + torch.where(s > 0, abs(s), np.exp(s)) + max(1, 2),
)  # fmt: skip


@pytest.mark.parametrize("function", PREDEFINED)
def test_common_functions_are_found_again(function: Function) -> None:
    assert Scan([function]).reusable
