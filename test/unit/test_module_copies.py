"""Copies of models whose attention has a method of the model as its function: that of the copy, which is not whole at first."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch

import engine_programs as ep
from method_modules import Engine, Linear, LinearEngine, OwnRow, Scaled

KINDS = [Scaled, OwnRow, Engine, Linear, LinearEngine]


def saved(module: Any) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@pytest.mark.parametrize("again", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy, saved], ids=["pickle", "deepcopy", "torch.save"])
@pytest.mark.parametrize("kind", KINDS)
def test_methods_are_those_of_the_copy(kind: type[Scaled], again: Any) -> None:
    q, k, v = (torch.randn(1, 9, 2, 8) for _ in range(3))
    model = kind()
    before = model(q, k, v)
    made = again(again(model))
    assert torch.equal(made(q, k, v), before)
    with torch.no_grad():
        made.factor.mul_(0.5)
    other = kind()
    other.load_state_dict(made.state_dict())
    found = made(q, k, v)
    assert torch.equal(found, other(q, k, v)) and not torch.allclose(found, before) and torch.equal(model(q, k, v), before)
    (gradient,) = torch.autograd.grad(found.square().sum(), made.factor)
    (wanted,) = torch.autograd.grad(other(q, k, v).square().sum(), other.factor)
    assert torch.equal(gradient, wanted) and gradient.abs().min() > 0
    assert again(model).attention.explain() == kind().attention.explain()  # before any call


def test_copies_in_graphs() -> None:
    """An engine's own variables are found there when a graph first asks for them."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, slopes = (torch.randn(*s, generator=generator) for s in ((1, 19, 4, 16), (1, 19, 2, 16), (1, 19, 2, 16), (4,)))
    engine, model = copy.deepcopy(ep.softmax_engine()), copy.deepcopy(Scaled())
    compiled, of_model = (torch.compile(each, fullgraph=True, backend="eager") for each in (engine, model))
    torch.testing.assert_close(compiled(q, k, v, slopes), engine(q, k, v, slopes), rtol=1e-6, atol=1e-6)
    q, k, v = (x[:, :, :2] for x in (q, k, v))
    for _ in range(2):
        torch.testing.assert_close(of_model(q, k, v), model(q, k, v), rtol=1e-6, atol=1e-6)
        with torch.no_grad():
            model.factor.mul_(2.0)


def test_copies_know_the_types_of_custom_inputs() -> None:
    engine = ep.softmax_engine()
    assert copy.deepcopy(engine)._dtypes == engine._dtypes == (torch.float32,)
