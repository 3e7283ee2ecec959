"""Gradients of captured tensors of all kinds, kinks and ties as in PyTorch, and detached values."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gradient_cases import CAPTURES, MASKS, softmax
from gradient_checks import SKV, SQ, Case, Point, check, errors, normal_like, random

MODS = ("query mod", "key mod", "value mod", "all mods, one tensor")
NUMBERS = [0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 6.0, 7.0, -3.0, 1e-7, -1e-7, 1e-3]
FAR = [-1000.0, 1000.0, -40.0, 19.0, 1.0, -5.0]
TIES = [1.0, 2.0, 2.0, -1.0, 2.0, -1.0]


@pytest.mark.parametrize("name", list(CAPTURES))
def test_captured_tensor(name: str) -> None:
    check(CAPTURES[name], second=name not in MODS)


def of_numbers(function: Callable[[Any], Any], numbers: list[float]) -> Case:
    """A row function on one row whose scores are these numbers."""
    n = len(numbers)
    scores = torch.tensor(numbers, dtype=torch.float64).view(1, 1, 1, n)
    inputs = {"q": scores, "k": torch.eye(n, dtype=torch.float64).view(1, 1, n, n), "v": random(1, 1, n, 3) + 2.0}
    return Case(lambda t: {"row": lambda s: function(s)}, {}, inputs, scale=1.0)


ELEMENTWISE: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "abs": abs,
    "clamp": lambda s: torch.clamp(s, 0.0, 1.0),
    "clamp from below": lambda s: torch.clamp(s, min=-0.5),
    "clamp from above": lambda s: s.clamp(max=2.0),
    "maximum": lambda s: torch.maximum(s, s * s),
    "minimum": lambda s: torch.minimum(s, s * s),
    "maximum of opposites": lambda s: torch.max(s, -s),
    "where": lambda s: torch.where(s >= 0.5, s * s, s),
    "a square root where there is one": lambda s: torch.where(s > 0.25, torch.sqrt(torch.clamp(s, min=0.25)), s),
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "leaky relu": F.leaky_relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu by tanh": lambda s: F.gelu(s, approximate="tanh"),
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "sign": lambda s: torch.sign(s) * s,
    "floor": lambda s: s * torch.floor(s),
    "round": lambda s: s * torch.round(s),
    "trunc": lambda s: s * torch.trunc(s),
    "masked_fill": lambda s: s.masked_fill(s > 1, 3.0),
    "log1p": lambda s: torch.log1p(s * s),
    "expm1": torch.expm1,
    "logaddexp": lambda s: torch.logaddexp(s, s * s),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "exp2": torch.exp2,
    "square": torch.square,
    "power 3": lambda s: s**3,
    "power 5": lambda s: s**5,
    "power -1.5": lambda s: (s * s + 1) ** -1.5,
    "power of the score": lambda s: (s * s + 1) ** s,
    "two to the score": lambda s: 2.0**s,
    "sqrt": lambda s: torch.sqrt(s * s + 1),
    "rsqrt": lambda s: torch.rsqrt(s * s + 1),
    "reciprocal": lambda s: torch.reciprocal(s * s + 1),
    "log2": lambda s: torch.log2(s * s + 1),
    "log10": lambda s: torch.log10(s * s + 1),
    "lerp": lambda s: torch.lerp(s, s * s, 0.3),
    "fmod": lambda s: torch.fmod(s, 1.5),
    "remainder": lambda s: s % 1.5,
    "detach": lambda s: s * s.detach(),
    "straight-through": lambda s: s + (torch.round(s) - s).detach(),
    "amax": lambda s: s * s.amax(),
    "amin": lambda s: s * s.amin(),
    "divided by the largest": lambda s: s / s.abs().amax(),
    "mean": lambda s: s - s.mean(),
    "softmax": lambda s: s.softmax(-1),
    "log-sum-exp": lambda s: s - s.logsumexp(-1),
    "sum of squares": lambda s: s / (s * s).sum(),
    "detached sum": lambda s: s / (s * s).sum().detach(),
    "detached maximum": lambda s: s * s.max().detach(),
}
# The second derivative of torch's elu at 0 is 0, from the other side than its first.
FIRST_ONLY: dict[str, Callable[[Any], Any]] = {"elu": F.elu}


@pytest.mark.parametrize("name", list(ELEMENTWISE))
def test_function_at_kinks(name: str) -> None:
    """Numbers at which something has a kink, a tie, or hardly any digits."""
    check(of_numbers(ELEMENTWISE[name], NUMBERS), second=True)


@pytest.mark.parametrize("name", list(FIRST_ONLY))
def test_first_derivative_at_kinks(name: str) -> None:
    check(of_numbers(FIRST_ONLY[name], NUMBERS))


@pytest.mark.parametrize("name", ["amax", "amin", "divided by the largest", "softmax", "log-sum-exp", "detached maximum"])
def test_ties_share_the_gradient(name: str) -> None:
    check(of_numbers(ELEMENTWISE[name], TIES))


@pytest.mark.parametrize("name", ["sigmoid", "silu", "softplus", "logsigmoid", "tanh", "gelu", "softmax", "log1p"])
def test_far_from_zero(name: str) -> None:
    """No gradient is NaN where something overflows on the way."""
    check(of_numbers(ELEMENTWISE[name], FAR), second=True)


@pytest.mark.parametrize("rest", [0.0, 1.0])
def test_detached_part_of_a_row(rest: float) -> None:
    """A normaliser that only partly counts as constant."""

    def row(s: Any) -> Any:
        e = torch.exp(s - s.max())
        l = e.sum()
        return e / (l.detach() * (1.0 - rest) + l * rest), {"lse": torch.log(l)}

    check(Case(lambda t: {"row": row, "mask_mod": MASKS["causal"]}), second=True)


def test_detached_score() -> None:
    """No gradient passes; those of v and of the tensor read elsewhere stay."""
    case = Case(
        lambda t: {"row": softmax, "score_mod": lambda s, b, h, q, k: s.detach() * t.x[h]},
        {"x": random(4)},
    )
    check(case, second=True)
    point = Point(case)
    point.derive("fwd+bwd")
    results = point.run("attention_fwd")
    dq, dk, dv, dx = point.run("attention_bwd", *results, *normal_like(results[:1], 3))
    assert not dq.any() and not dk.any() and dv.any() and dx.any()


def test_row_state_that_depends_on_the_score_alone() -> None:
    """Its gradient is the same for every key, and reaches a bias that differs from key to key."""
    case = Case(
        lambda t: {
            "row": lambda s: (s.detach(), {"total": s.sum()}),
            "score_mod": lambda s, b, h, q, k: s + t.x[q, k],
            "mask_mod": MASKS["window"],
        },
        {"x": random(SQ, SKV)},
    )
    check(case, second=True)


def test_masked_pairs_get_nothing() -> None:
    """A bias that is infinite or NaN where it is masked."""
    q_idx, kv_idx = torch.arange(SQ)[:, None], torch.arange(SKV)[None]
    bias = torch.where(kv_idx <= q_idx, random(SQ, SKV), torch.nan)
    case = Case(
        lambda t: {"row": softmax, "score_mod": lambda s, b, h, q, k: s + t.x[q, k], "mask_mod": lambda b, h, q, k: k <= q},
        {"x": bias},
    )
    point = Point(case)
    point.derive("fwd+bwd")
    results = point.run("attention_fwd")
    gradients = point.run("attention_bwd", *results, *normal_like(results[:1], 3))
    assert all(g.isfinite().all() for g in gradients)
    assert not gradients[-1][bias.isnan()].any() and gradients[-1][~bias.isnan()].any()


def test_a_number_is_no_tensor() -> None:
    """Python numbers have no gradient, and do not disturb those of tensors."""
    factor = 0.7
    found = errors(Case(lambda t: {"row": softmax, "score_mod": lambda s, b, h, q, k: s * factor + t.x[h]}, {"x": random(4)}))
    assert set(found) == {"o", "dq", "dk", "dv", "dx", "o_dot"}
    assert max(found.values()) < 1e-12
