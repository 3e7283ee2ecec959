"""The same functions are not scanned again while every variable that they read is still the same; they are not kept alive."""

import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from watch_calls import Calls

Function = Callable[..., Any]
GAIN = 2.0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def test_the_same_function_again(calls: Calls) -> None:
    slopes = torch.ones(3)
    score = lambda s, b, h, i, j: s + slopes[h] * GAIN  # noqa: E731
    for _ in range(3):
        (found, gain) = calls(score)
        assert found is slopes and gain == 2.0
    assert calls.scans == 1
    slopes.mul_(2)  # its elements are read when the kernel runs
    assert calls(score)[0] is slopes and calls.scans == 1


def test_changed_variables_are_seen(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    slopes, number = torch.ones(3), 1.5
    score = lambda s, b, h, i, j: s * number + slopes[h] * GAIN  # noqa: E731
    calls(score)
    slopes = torch.zeros(3)
    assert calls(score)[0] is slopes and calls.scans == 2
    number = 2.5
    assert 2.5 in calls(score)[1:] and calls.scans == 3
    monkeypatch.setitem(globals(), "GAIN", 7.0)
    assert 7.0 in calls(score)[1:] and calls.scans == 4
    calls(score)
    assert calls.scans == 4


def test_changed_tensors_are_seen(calls: Calls) -> None:
    table = torch.ones(3)
    score = lambda s, b, h, i, j: s + table[h]  # noqa: E731
    calls(score)
    table.data = torch.ones(3, dtype=torch.float64)
    assert calls(score)[0].dtype == torch.float64 and calls.scans == 2


def test_changed_helpers_and_defaults_are_seen(calls: Calls) -> None:
    def helper(x: Any, by: float = 1.0) -> Any:
        return x * by

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return helper(s)

    assert calls(score) == [1.0]
    helper.__defaults__ = (3.0,)
    assert calls(score) == [3.0] and calls.scans == 2
    assert calls(score) == [3.0] and calls.scans == 2


@pytest.mark.parametrize("holder", [{"gain": 2.0}, [2.0], types.SimpleNamespace(gain=[2.0])], ids=["dict", "list", "object"])
def test_what_can_change_inside_is_always_scanned(calls: Calls, holder: Any) -> None:
    read = {dict: lambda: holder["gain"], list: lambda: holder[0]}.get(type(holder), lambda: holder.gain[0])
    score = lambda s, b, h, i, j: s * read()  # noqa: E731
    for _ in range(2):
        calls(score)
    assert calls.scans == 2


def test_functions_and_what_they_capture_are_not_kept(calls: Calls) -> None:
    def make() -> tuple[Function, weakref.ref[torch.Tensor]]:
        large = torch.ones(3)
        return (lambda s, b, h, i, j: s + large[h]), weakref.ref(large)

    score, large = make()
    for _ in range(2):
        calls(score)
    assert calls.scans == 1 and len(calls.cache._latest) == 1
    del score
    gc.collect()
    assert large() is None and not calls.cache._latest
