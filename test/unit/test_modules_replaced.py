"""Modules whose parameters others replace: functional_call, ensembles, assigned states, parametrizations, replicas."""

import copy
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils import parametrize

from attn_mlir import Attention, LinearAttention, UnsupportedError, masks, mods, rows

Q, K, V = torch.randn(3, 2, 4, 9, 8, generator=torch.Generator().manual_seed(0))


class Slopes(torch.nn.Module):
    """A score function with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.randn(4))

    def forward(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + self.slopes[h] * (q_idx - kv_idx)


class Model(torch.nn.Module):
    """Two attentions: one of a module, one of ready-made functions with parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.own = Attention(score_mod=Slopes(), mask_mod=masks.causal())
        made = mods.bias(torch.nn.Parameter(torch.randn(4, 9, 9)))
        self.made = Attention(score_mod=made, row=rows.softmax_sink(torch.nn.Parameter(torch.randn(4))))

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return self.own(q, k, v) + self.made(q, k, v)


class Doubled(torch.nn.Module):
    """Twice the parameter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def doubled(model: Any) -> Any:
    """A copy whose parameters are twice as large."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(2)
    return copied


def test_functional_call_and_its_gradients() -> None:
    model = Model()
    named = dict(model.named_parameters())
    twice = {name: 2 * parameter for name, parameter in named.items()}
    o = model(Q, K, V)
    torch.testing.assert_close(functional_call(model, twice, (Q, K, V)), doubled(model)(Q, K, V))
    torch.testing.assert_close(model(Q, K, V), o, rtol=0, atol=0)
    found = grad(lambda given: functional_call(model, given, (Q, K, V)).square().sum())(named)
    o.square().sum().backward()
    for name, parameter in named.items():
        assert parameter.grad is not None and parameter.grad.abs().max() > 1e-3
        torch.testing.assert_close(found[name], parameter.grad)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_ensembles(device: str) -> None:
    models: list[Any] = [Model() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to(device)
    o = vmap(lambda given, held: functional_call(base, (given, held), (Q, K, V)))(parameters, buffers)
    torch.testing.assert_close(o, torch.stack([model(Q, K, V) for model in models]))


@pytest.mark.parametrize("made_on", ["cpu", "meta"])
def test_a_state_that_is_assigned(made_on: str) -> None:
    model = Model()
    with torch.device(made_on):
        other = Model()
    other.load_state_dict(model.state_dict(), assign=True)
    for _ in range(2):
        torch.testing.assert_close(other(Q, K, V), model(Q, K, V), rtol=0, atol=0)
    torch.testing.assert_close(copy.deepcopy(other)(Q, K, V), model(Q, K, V), rtol=0, atol=0)
    other(Q, K, V).sum().backward()
    assert all(parameter.grad is not None for parameter in other.parameters())


def test_parametrizations() -> None:
    model = Model()
    wanted = doubled(model)(Q, K, V)
    pieces: list[tuple[Any, str]] = [(model.own.score_mod, "slopes"), (model.made.score_mod, "bias"), (model.made.row, "sink")]
    for module, name in pieces:
        parametrize.register_parametrization(module, name, Doubled())
    torch.testing.assert_close(model(Q, K, V), wanted)


def test_replicas_as_data_parallel_makes_them() -> None:
    model = Model()
    replicas: dict[Any, Any] = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, replica in replicas.items():
        for name, child in module._modules.items():
            replica._modules[name] = replicas[child]
        for name, parameter in module._parameters.items():
            setattr(replica, name, 2 * parameter)
    torch.testing.assert_close(replicas[model](Q, K, V), doubled(model)(Q, K, V))


def test_options_that_are_set_after_a_parameter_was_replaced() -> None:
    attention: Any = Attention(score_mod=mods.bias(torch.nn.Parameter(torch.zeros(4, 9, 9))), dropout_p=0.5)
    attention.load_state_dict({"score_mod.bias": torch.randn(4, 9, 9)}, assign=True)
    dropped = attention(Q, K, V)
    attention.eval()
    assert not torch.equal(attention(Q, K, V), dropped) and torch.equal(attention(Q, K, V), attention(Q, K, V))
    attention.train().dropout_p = 0.0
    assert torch.equal(attention(Q, K, V), attention.eval()(Q, K, V))


def test_copies_after_a_move() -> None:
    attention: Any = Attention(score_mod=mods.bias(torch.nn.Parameter(torch.randn(4, 9, 9)))).to("meta").to_empty(device="cpu")
    attention.load_state_dict({"score_mod.bias": torch.randn(4, 9, 9)})
    copied = copy.deepcopy(attention)
    with torch.no_grad():
        attention.score_mod.bias.zero_()
    assert not torch.allclose(copied(Q, K, V), attention(Q, K, V))


def test_inside_torch_compile() -> None:
    model = Model()
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(Q, K, V), model(Q, K, V))
    made: Any = Attention(score_mod=mods.bias(torch.nn.Parameter(torch.zeros(4, 9, 9))))
    made.load_state_dict({"score_mod.bias": torch.randn(4, 9, 9)}, assign=True)
    with pytest.raises((UnsupportedError, torch._dynamo.exc.Unsupported), match=r"replaced by other tensors|Observed exception"):
        torch.compile(lambda q, k, v: made(q, k, v), fullgraph=True, backend="eager")(Q, K, V)


def test_linear_attention() -> None:
    class Gate(torch.nn.Module):
        """A decay with a parameter of its own."""

        def __init__(self) -> None:
            super().__init__()
            self.rate = torch.nn.Parameter(-torch.rand(4))

        def forward(self, g: Any, b: Any, h: Any, t: Any) -> Any:
            return g * self.rate[h]

    model: Any = LinearAttention(decay_mod=Gate())
    decay = torch.rand(2, 4, 9)
    twice = {name: 2 * parameter for name, parameter in model.named_parameters()}
    torch.testing.assert_close(functional_call(model, twice, (Q, K, V, decay)), doubled(model)(Q, K, V, decay))
