"""Objects and modules that functions read are not scanned again while the attributes that the functions name hold the same."""

import gc
import types
import weakref
from typing import Any

import pytest
import torch

from attn_mlir import Attention, masks
from attn_mlir.frontend.captures import Scan
from watch_calls import Calls


class Base:
    """What instances read of a class."""

    scale = 2.0


class Bias(Base):
    """A score function that is a method, with an attribute of its own and one of its class."""

    def __init__(self) -> None:
        self.slopes = torch.ones(3)
        self.gain = 1.5

    def score(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * (self.gain * self.scale) + self.slopes[h]


class Learned(torch.nn.Module):
    """A score function that is a module."""

    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * self.slopes[h] + self.shift[h]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def test_methods_and_modules_are_scanned_once(calls: Calls) -> None:
    for number, function in enumerate((Bias().score, Learned(), masks.causal()), 1):
        for _ in range(3):
            calls(function) if number < 3 else Scan((function,))
        assert calls.scans == min(number, 2)
    assert Scan((masks.causal(),)).watch is not None and Scan((masks.sliding_window(3),)).watch is not None


def test_changed_attributes_are_seen(calls: Calls) -> None:
    bias = Bias()
    score = bias.score
    before = calls.text(score)
    bias.slopes = torch.zeros(3)
    assert calls(score)[0] is bias.slopes and calls.scans == 2
    bias.gain = 7.0
    assert calls.text(score) != before and calls.scans == 3
    bias.scale = 3.0  # hides that of the class  # type: ignore[misc]
    assert calls.text(score) != before and calls.scans == 4
    del bias.scale
    bias.gain = 1.5
    assert calls.text(score) == before


def test_changed_classes_are_seen(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    score = Bias().score
    before = calls.text(score)
    monkeypatch.setattr(Base, "scale", 9.0)
    after = calls.text(score)
    assert after != before
    monkeypatch.setattr(Bias, "gain", property(lambda self: 5.0), raising=False)
    assert calls.text(score) not in (before, after)


def test_another_class_is_seen(calls: Calls) -> None:
    class Other(Bias):
        scale = 11.0

    bias = Bias()
    score = bias.score
    before = calls.text(score)
    bias.__class__ = Other
    assert calls.text(score) != before


def test_changed_parameters_and_buffers_of_modules_are_seen(calls: Calls) -> None:
    learned = Learned()
    calls(learned)
    learned.slopes = torch.nn.Parameter(torch.zeros(3))
    assert any(value is learned.slopes for value in calls(learned)) and calls.scans == 2
    learned.shift = torch.ones(3)
    assert any(value is learned.shift for value in calls(learned)) and calls.scans == 3
    learned.double()
    assert all(value.dtype == torch.float64 for value in calls(learned)) and calls.scans == 4


def tripled(module: Any, given: Any, output: Any) -> Any:
    return output * 3.0


def enlarged(module: Any, given: Any) -> Any:
    return (given[0] * 5.0, *given[1:])


def test_what_torch_calls_with_a_module_is_seen(calls: Calls) -> None:
    learned = Learned()
    texts = [calls.text(learned)]
    hook = learned.register_forward_hook(tripled)
    texts.append(calls.text(learned))
    hook.remove()
    hook = torch.nn.modules.module.register_module_forward_pre_hook(enlarged)
    texts.append(calls.text(learned))
    hook.remove()
    assert calls.text(learned) == texts[0]
    learned.forward = lambda s, b, h, i, j: s * 9.0  # type: ignore[method-assign]
    texts.append(calls.text(learned))
    assert len(set(texts)) == 4


def test_changed_variables_of_modules_are_seen(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = types.ModuleType("attention_helper")
    helper.gain = 2.0  # type: ignore[attr-defined]
    score = lambda s, b, h, i, j: s * helper.gain  # noqa: E731
    before = calls.text(score)
    assert calls.text(score) == before and calls.scans == 1
    helper.gain = 3.0  # type: ignore[attr-defined]
    assert calls.text(score) != before and calls.scans == 2


def test_attributes_with_places_of_their_own_are_scanned_each_time(calls: Calls) -> None:
    class Slotted:
        __slots__ = ("__weakref__", "gain")

        def __init__(self) -> None:
            self.gain = 2.0

        def score(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s * self.gain

    slotted = Slotted()
    score = slotted.score
    for number in (1, 2):
        calls(score)
        assert calls.scans == number


def test_objects_are_not_kept() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slopes = torch.nn.Parameter(torch.ones(2))
            self.attention = Attention(score_mod=self.score)

        def score(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s + self.slopes[h]

    q = torch.randn(1, 2, 3, 8)
    block = Block()
    for _ in range(2):
        block.attention(q, q, q)
    gone = weakref.ref(block)
    del block
    gc.collect()
    assert gone() is None
