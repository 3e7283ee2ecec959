"""Linear attention on an NVIDIA GPU where 16 bits have few digits: sums over positions, and states of which little is left."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from attn_mlir import linear_attention
from attn_mlir.api.recurrences import gla, mamba2, simple_gla
from test_nvidia_linear_gpu import BRAIN, GPU, HALF, Shape, bound, error, formula, leaves_of, poison


@GPU
@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("scale", [0.05, 3.0])
def test_the_gradient_of_a_state_that_decays_with_another_scale(scale: float, channels: bool) -> None:
    """In f16 little is left of exp(-10) times a scale, so that k has it instead where it is small."""
    leaves = leaves_of(Shape(1, 200, key_dim=128, value_dim=128), HALF, 0.2, channels, state=True)
    leaves["g"] -= 10.0
    here = {name: x.clone().requires_grad_() for name, x in leaves.items()}
    exact = {name: x.double().requires_grad_() for name, x in leaves.items()}
    poison()
    call = gla if channels else simple_gla
    o, _ = call(here["q"], here["k"], here["v"], here["g"], scale=scale, initial_state=here["state"])
    wanted, _ = formula(exact["q"], exact["k"], exact["v"], exact["g"], scale, exact["state"])
    weights = torch.randn(o.shape, device="cuda").half()
    found = torch.autograd.grad(o, list(here.values()), weights)
    known = torch.autograd.grad(wanted, list(exact.values()), weights.double())
    errors = {name: error(x, y) for name, x, y in zip(here, found, known, strict=True)}
    assert errors.pop("state") < 1e-3 and max(errors.values()) < bound(HALF), errors


@GPU
@pytest.mark.parametrize(("length", "channels"), [(500, False), (2048, False), (300, True)])
def test_gradients_that_are_sums_over_positions(length: int, channels: bool) -> None:
    """Of A, as Mamba-2 starts with it, one number a head or a channel: terms of either sign, which nearly cancel in some draws."""
    found: dict[int, float] = {}
    for seed in range(4 if channels else 16):
        torch.manual_seed(seed)
        q, k, v = (torch.randn(1, heads, length, 64, device="cuda").to(BRAIN) for heads in (1, 1, 4))
        dt = torch.nn.functional.softplus(torch.randn(1, 4, length, device="cuda") - 1)
        a = (-1 - 15 * torch.rand(4, *([64] if channels else []), device="cuda")).requires_grad_()
        mods: dict[str, Any] = {"v_mod": lambda x, b, h, t, dt=dt: x * dt[b, h, t], "decay_mod": lambda g, b, h, t, a=a: g * a[h]}
        if channels:
            mods = {"decay_mod": lambda g, b, h, t, d, a=a: g * a[h, d]}
        o = linear_attention(q, k, v, dt, **mods)
        do, exact = torch.randn_like(o), a.detach().double().requires_grad_()
        steps = dt.double().transpose(1, 2).unsqueeze(3)
        values = v.double().transpose(1, 2) * (1 if channels else steps)
        g = steps * exact if channels else steps.squeeze(3) * exact
        wanted, _ = formula(q.double().transpose(1, 2), k.double().transpose(1, 2), values, g, 1.0)
        known = torch.autograd.grad(wanted, exact, do.double().transpose(1, 2))[0]
        found[seed] = error(torch.autograd.grad(o, a, do)[0], known)
    assert max(found.values()) < bound(BRAIN), found


@GPU
@pytest.mark.parametrize("length", [500, 2048])
def test_gradients_of_mamba2_that_are_sums_over_positions(length: int) -> None:
    """Also of dt_bias, which factors of v's rows and decays read.

    The worst draw; of A, whose terms cancel to a fortieth in one draw, all draws at once.
    """
    found: dict[str, float] = {}
    of_rates: list[tuple[torch.Tensor, torch.Tensor]] = []
    for seed in range(16):
        torch.manual_seed(seed)
        x, b, c = (torch.randn(1, length, *shape, device="cuda") for shape in ((4, 64), (1, 128), (1, 128)))
        made = {"x": x.to(BRAIN), "B": (b * 128**-0.5).to(BRAIN), "C": c.to(BRAIN), "dt": torch.randn(1, length, 4, device="cuda")}
        made |= {"A": -1 - 15 * torch.rand(4, device="cuda"), "dt_bias": torch.randn(4, device="cuda") - 1}
        here = {name: value.clone().requires_grad_() for name, value in made.items()}
        exact = {name: value.double().requires_grad_() for name, value in made.items()}
        y = mamba2(here["x"], here["dt"], here["A"], here["B"], here["C"], dt_bias=here["dt_bias"], dt_softplus=True)
        step = torch.nn.functional.softplus(exact["dt"] + exact["dt_bias"])
        wanted, _ = formula(exact["C"], exact["B"], exact["x"] * step.unsqueeze(3), step * exact["A"], 1.0)
        dy = torch.randn_like(y)
        got, known = torch.autograd.grad(y, list(here.values()), dy), torch.autograd.grad(wanted, list(exact.values()), dy.double())
        gradients = {name: (value, want) for name, value, want in zip(here, got, known, strict=True)}
        of_rates.append(gradients.pop("A"))
        found |= {name: max(found.get(name, 0.0), error(*pair)) for name, pair in gradients.items()}
    rates, wanted_rates = (torch.cat(each) for each in zip(*of_rates, strict=True))
    assert error(rates, wanted_rates) < 0.001 and max(found.values()) < bound(BRAIN), (error(rates, wanted_rates), found)
    assert max(found["dt"], found["dt_bias"]) < 0.002, found


@GPU
@pytest.mark.parametrize(
    ("length", "key_dim", "value_dim", "ends"),
    [
        (1, 64, 64, ()),
        (63, 128, 64, ()),
        (500, 64, 128, ()),
        (1100, 128, 128, (64, 101, 1100)),
        (300, 256, 128, ()),
        (300, 96, 48, ()),
    ],
)
def test_gradients_of_what_factors_of_rows_read(length: int, key_dim: int, value_dim: int, ends: tuple[int, ...]) -> None:
    """A number for each position for v, one for each head for k; with states, heads that share q and k, sequences side by side."""
    leaves = leaves_of(Shape(1, length, 4, 2, key_dim, value_dim), BRAIN, 0.1, state=True)
    count = max(1, len(ends))
    leaves["state"] = torch.randn(count, 4, key_dim, value_dim, device="cuda")
    leaves["dt"], leaves["few"] = torch.rand(1, 4, length, device="cuda") + 0.1, torch.rand(4, device="cuda") + 0.5
    here = {name: x.clone().requires_grad_() for name, x in leaves.items()}
    exact = {name: x.double().requires_grad_() for name, x in leaves.items()}
    poison()
    dt, few = here["dt"], here["few"]
    options: dict[str, Any] = {"cu_seqlens": torch.tensor([0, *ends], device="cuda", dtype=torch.int32)} if ends else {}
    o, final = linear_attention(
        *(here[name].transpose(1, 2) for name in "qkvg"), initial_state=here["state"], output_final_state=True, scale=key_dim**-0.5,
        v_mod=lambda x, b, h, t: x * dt[b, h, t], k_mod=lambda x, b, h, t: x * few[h], **options,
    )  # fmt: skip
    q, k, v, g = (exact[name] for name in "qkvg")
    k, v = k.repeat_interleave(2, 2) * exact["few"].unsqueeze(1), v * exact["dt"].transpose(1, 2).unsqueeze(3)
    parts = []
    for n, (begin, end) in enumerate(pairwise((0, *(ends or (length,))))):
        one, two, three, four = (x[:, begin:end] for x in (q, k, v, g))
        parts.append(formula(one, two, three, four, key_dim**-0.5, exact["state"][n : n + 1]))
    wanted = [torch.cat([part[0] for part in parts], 1).transpose(1, 2), torch.cat([part[1] for part in parts])]
    weights = [torch.randn_like(x) for x in (o, final)]
    found = dict(zip(here, torch.autograd.grad([o, final], list(here.values()), weights), strict=True))
    known = dict(zip(exact, torch.autograd.grad(wanted, list(exact.values()), [x.double() for x in weights]), strict=True))
    found, known = found | {"o": o, "final": final}, known | {"o": wanted[0], "final": wanted[1]}
    errors = {name: error(found[name], known[name]) for name in found}
    assert max(errors.values()) < bound(BRAIN), errors
