"""Modules of torch's own in functions: what they were made with shapes the trace."""

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import attn_mlir
from flex_dense import compare, dense, qkv
from trace_session import Session


class Own(nn.LeakyReLU):
    pass


class Scaled(nn.LeakyReLU):
    def forward(self, input: Any) -> Any:
        return 2.0 * super().forward(input)


def applied(module: nn.Module) -> Callable[..., Any]:
    return lambda s, b, h, m, n: module(s)


def check(score_mod: Callable[..., Any]) -> None:
    inputs = qkv(sq=9, d=8)
    compare(attn_mlir.attention(*inputs, score_mod=score_mod), dense(*inputs, score_mod)[0])


ALIKE: dict[str, list[nn.Module]] = {
    "LeakyReLU": [nn.LeakyReLU(0.2), nn.LeakyReLU(0.7), Own(0.2), Own(0.7), Scaled(0.2), Scaled(0.7)],
    "Hardtanh": [nn.Hardtanh(-0.5, 0.5), nn.Hardtanh(-0.1, 0.5), nn.Hardtanh(-0.5, 0.1)],
    "GELU": [nn.GELU(), nn.GELU("tanh")],
    "Sequential": [nn.Sequential(nn.Tanh(), nn.ELU(0.3)), nn.Sequential(nn.Tanh(), nn.ELU(0.9)), nn.Sequential(nn.ELU(0.3), nn.Tanh())],
}


@pytest.mark.parametrize("name", ALIKE)
def test_modules_of_one_class_are_told_apart(name: str) -> None:
    for module in ALIKE[name]:
        check(applied(module))


def test_changes_of_a_module_are_seen() -> None:
    module, inner = nn.Softplus(2.0), nn.LeakyReLU(0.2)
    several = nn.Sequential(nn.Tanh(), inner)
    functions = [applied(module), applied(several)]
    for change in (
        lambda: None, lambda: setattr(module, "beta", 0.5), lambda: setattr(inner, "negative_slope", 0.9),
        lambda: several.append(nn.Hardtanh(-0.1, 0.1)), lambda: several.insert(0, nn.ReLU()),
    ):  # fmt: skip
        change()
        for function in functions:
            check(function)


def test_what_methods_of_torch_read_is_read_again() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=2.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def score_mod(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
        return s * schedule.get_last_lr()[0]

    for _ in range(3):
        check(score_mod)
        optimizer.step()
        schedule.step()


def test_dropout_is_refused_once_it_trains() -> None:
    module = nn.Dropout(0.5).eval()
    check(applied(module))
    module.train()
    with pytest.raises(attn_mlir.TraceError, match="dropout"):
        check(applied(module))


def test_a_base_class_of_others_does_not_bring_all_that_a_model_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("models_of_others")
    library.__file__ = "/site-packages/models_of_others.py"
    monkeypatch.setitem(sys.modules, library.__name__, library)
    base = type("Base", (nn.Module,), {"__module__": library.__name__})

    class Model(base):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(300))
            self.cap = 3.0

        def score_mod(self, s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
            return s * self.cap

    session, model = Session(), Model()
    for _ in range(3):
        session.call(model.score_mod)
    assert session.traces == 1
    check(model.score_mod)
    model.cap = 5.0
    check(model.score_mod)
