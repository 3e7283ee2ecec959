"""Errors of linear attention in float32 on the CPU: every result and gradient, for gates from near 0 to -10 a step and all lengths."""

from typing import Any

import pytest
import torch

import attn_mlir
from linear_reference import error, reference

linear_attention: Any = attn_mlir.linear_attention  # which takes spread arguments here

BOUND = 1e-6
K, V = 32, 32
GATES = {"near 0": (-1e-3, 0.0), "weak": (-0.3, -0.01), "all": (-10.0, 0.0), "strong": (-10.1, -9.9)}
"""The ranges of log decays."""
Tensors = dict[str, torch.Tensor]


def tensors(t: int, each: int = 4) -> Tensors:
    """q, k, v, a state; dt in (0.1, 1); log decays of positions, of channels, of heads ("A") and of their channels ("rates").

    `each` heads have each of the ranges of decays.
    """
    generator = torch.Generator().manual_seed(1000 + t)
    heads = each * len(GATES)
    ends = torch.tensor(list(GATES.values())).repeat_interleave(each, 0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(1, heads, *shape, generator=generator)

    def gates(*shape: int) -> torch.Tensor:
        low, high = (end.view(heads, *(1,) * len(shape)) for end in ends.unbind(1))
        return low + (high - low) * torch.rand(heads, *shape, generator=generator)

    found = {"q": randn(t, K), "k": randn(t, K) * K**-0.5, "v": randn(t, V), "state": randn(K, V)}
    found |= {"dt": 0.1 + 0.9 * torch.rand(1, heads, t, generator=generator)}
    return found | {"g": gates(t)[None], "gk": gates(t, K)[None], "A": gates(), "rates": gates(K)}


def mamba(function: Any, x: Tensors) -> Any:
    """dt as decay and factor of v."""
    dt, a = x["dt"], x["A"]
    mods = {"v_mod": lambda y, b, h, t: y * dt[b, h, t], "decay_mod": lambda g, b, h, t: g * a[h]}
    return function(x["q"], x["k"], x["v"], dt, initial_state=x["state"], **mods)


def of(name: str) -> Any:
    """Linear attention with the decay of that name."""
    return lambda function, x: function(x["q"], x["k"], x["v"], x[name], initial_state=x["state"])


FORMS = {
    "gates": (of("g"), "g"),
    "mamba": (mamba, "dt A"),
    "heads": (of("A"), "A"),
    "channels": (of("gk"), "gk"),
    "rates": (of("rates"), "rates"),
}
"""By name: the call, and the decays that have gradients."""


def errors(form: str, t: int, final: bool, each: int = 4) -> dict[str, float]:
    """rms(error) / rms(value) of each range of gates, for o, the final state and all gradients, which are of both or of o alone."""
    run, decays = FORMS[form]
    wanted, given = ["q", "k", "v", "state", *decays.split()], tensors(t, each)
    mine = {name: x.clone().requires_grad_(name in wanted) for name, x in given.items()}
    theirs = {name: x.double().requires_grad_(name in wanted) for name, x in given.items()}
    results, known = run(lambda *a, **o: linear_attention(*a, **o, output_final_state=True), mine), run(reference, theirs)
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(each.shape, generator=generator) for each in known][: 1 + final]
    torch.autograd.backward(results[: 1 + final], weights)
    torch.autograd.backward(known[: 1 + final], [weight.double() for weight in weights])
    pairs: dict[str, Any] = dict(zip(("o", "final"), zip(results, known, strict=True), strict=True))
    pairs |= {f"d {name}": (mine[name].grad, theirs[name].grad) for name in wanted}
    found: dict[str, float] = {}
    for name, (x, y) in pairs.items():
        heads = 0 if x.dim() == given["A"].dim() or name == "d rates" else 1
        for number, gate in enumerate(GATES):
            part, exact = (z.detach().double().narrow(heads, each * number, each) for z in (x, y))
            found[f"{name}, {gate}"] = ((part - exact).square().mean() / exact.square().mean()).sqrt().item()
    return found


def check(found: dict[str, float]) -> None:
    """All errors are within their bounds."""
    large = {name: value for name, value in found.items() if not value < BOUND}
    assert not large, large


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_short(form: str, final: bool) -> None:
    for t in (1, 63, 500):
        check(errors(form, t, final))


@pytest.mark.parametrize(("form", "t"), [("mamba", 2048), ("gates", 4096)])
def test_long(form: str, t: int) -> None:
    """One head of each range: the reference takes 1 GB for a state of each position of sixteen."""
    check(errors(form, t, True, each=1))


@pytest.mark.parametrize("name", ["A", "rates"])
def test_constant_decays_near_zero_do_not_add_up_errors(name: str) -> None:
    """All chunks multiply states by the same factor, which a float32 would round alike each time."""
    t, heads = 4096, slice(0, 4)
    x = tensors(t)
    x = {n: x[n][heads] if n == name else x[n][:, heads] for n in ("q", "k", "v", name)}
    _, state = linear_attention(x["q"], x["k"], x["v"], x[name], output_final_state=True)
    passed = x[name].double().view(1, 4, 1, -1) * torch.arange(t - 1, -1, -1.0).view(1, 1, t, 1).double()
    known = (x["k"].double() * passed.exp()).mT @ x["v"].double()
    assert error(state, known) < 5e-7


@pytest.mark.parametrize("gate", [-1e3, -torch.inf])
@pytest.mark.parametrize("name", ["g", "gk"])
def test_no_gradient_is_nan(name: str, gate: float) -> None:
    given = tensors(70)
    wanted = {n: given[n].clone().requires_grad_() for n in ("q", "k", "v", "state", name)}
    results = of(name)(lambda *a, **o: linear_attention(*a, **o, output_final_state=True), {**wanted, name: wanted[name] + gate})
    for n, gradient in zip(wanted, torch.autograd.grad(results, list(wanted.values()), [torch.ones_like(r) for r in results]), strict=True):
        assert gradient.isfinite().all(), n
