"""Which keys attain an extremum of a row: exactly those that tie, never none, in gradients and tangents, on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir.passes.differentiation import Primal
from attn_mlir.passes.differentiation.functions import Derivatives
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry
from programs import parsed
from random_calls import attention_errors

Function = Callable[[torch.Tensor], torch.Tensor]
DTYPES = (torch.float32, torch.float64)
OF_SCORES: dict[str, Function] = {
    "sqrt": lambda s: torch.sqrt(1.0 + s**2),
    "tanh": torch.tanh,
    "polynomial": lambda s: 0.3 * s * s + 1.7 * s - 0.1,
}
OF_REDUCTIONS: dict[str, Function] = {
    "softmax": lambda s: torch.softmax(s, -1),
    "norm": lambda s: s / torch.sqrt((s * s).sum() + 1.0),
    "standard": lambda s: (s - s.mean()) / torch.sqrt(((s - s.mean()) ** 2).mean() + 1e-3),
    "of another maximum": lambda s: s / (1.0 + (s / (1.0 + abs(s).max())).max()),
}
FUNCTIONS = OF_SCORES | OF_REDUCTIONS


def extrema(scores: torch.Tensor, function: Function) -> tuple[torch.Tensor, torch.Tensor]:
    """The maximum and the minimum of a function of each row of scores."""
    rows, keys = scores.shape
    zeros = [torch.zeros(1, 1, n, 4, dtype=scores.dtype) for n in (rows, keys, keys)]

    def row(s):
        x = function(s)
        return torch.sigmoid(s), {"most": x.max(), "least": x.min()}

    _, states = attn_mlir.attention(*zeros, row=row, score_mod=lambda s, b, h, i, j: s + scores[i, j], return_states=True)
    return states["most"][0, 0], states["least"][0, 0]


def dense(scores: torch.Tensor, function: Function) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.stack([function(s) for s in scores])
    return values.amax(-1), values.amin(-1)


def check(scores: torch.Tensor, function: Function, tolerance: float = 1e-3) -> None:
    """Gradients and tangents of both extrema are those of the formula in float64."""
    x, exact = scores.clone().requires_grad_(), scores.double().requires_grad_()
    change = torch.randn(scores.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    moved = torch.func.jvp(lambda x: extrema(x, function), (scores,), (change.to(scores.dtype),))[1]
    wanted_moves = torch.func.jvp(lambda x: dense(x, function), (exact.detach(),), (change,))[1]
    for got, want, move, wanted in zip(extrema(x, function), dense(exact, function), moved, wanted_moves, strict=True):
        (found,), (gradient,) = (torch.autograd.grad(y.sum(), of, retain_graph=True) for y, of in ((got, x), (want, exact)))
        size = gradient.abs().amax(-1, keepdim=True)
        assert ((found.double() - gradient).abs() <= tolerance * size).all()
        assert ((move.double() - wanted).abs() <= 3 * tolerance * (size[:, 0] + wanted.abs())).all()


@pytest.mark.parametrize("name", [*FUNCTIONS, "softmax in f64"])
def test_ties_are_exact(name: str) -> None:
    """Values that differ in their last two digits do not tie, equal ones share the gradient."""
    name, double, _ = name.partition(" in f64")
    generator = torch.Generator().manual_seed(1)
    places = torch.stack([torch.randperm(70, generator=generator) for _ in range(4)]).double() * (1e-13 if double else 4e-6)
    near = torch.tensor([0.5, -1.5, 0.75, -0.6], dtype=torch.float64)[:, None] * (1.0 + places)
    equal = near[:, torch.arange(70) // 2 * 2]
    check(torch.cat([near, equal]).to(torch.float64 if double else torch.float32), FUNCTIONS[name])


@pytest.mark.parametrize("name", OF_REDUCTIONS)
def test_no_row_loses_its_extremum_in_rounding(name: str) -> None:
    """Sums and maxima of the forward pass are rescaled again and again where scores rise along the row."""
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(5, 600, generator=generator).sort(-1).values * torch.tensor([0.01, 0.3, 1.0, 3.0, 8.0])[:, None]
    check(scores, OF_REDUCTIONS[name], 2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_positions_may_be_rounded_as_numbers_or_as_vectors(dtype: torch.dtype) -> None:
    """Some key attains every extremum: the row's gradients by its scores add up to the tangent by all of them."""
    of_row, of_key = (torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=dtype) for n in (45, 130))
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(1, 1, n, 8, generator=generator, dtype=dtype) for n in (45, 130, 130))

    def run(bias):
        def row(s, b, h, i):
            scaled = s * torch.exp(of_row[i]) ** 0.3 + torch.log(1.0 + of_row[i] ** 2)
            return torch.sigmoid(s), {"of_score": s.max(), "of_row": scaled.max()}

        def score_mod(s, b, h, i, j):
            return s * torch.exp(of_key[j]) + torch.tanh(of_row[i]) + bias[i, j]

        return tuple(attn_mlir.attention(q, k, v, row=row, score_mod=score_mod, return_states=True)[1].values())

    bias = torch.zeros(45, 130, dtype=dtype, requires_grad=True)
    moved = torch.func.jvp(run, (bias.detach(),), (torch.ones_like(bias),))[1]
    for extremum, move in zip(run(bias), moved, strict=True):
        (gradient,) = torch.autograd.grad(extremum.sum(), bias, retain_graph=True)
        assert (gradient != 0).any(-1).all()
        torch.testing.assert_close(gradient.sum(-1), move[0, 0])


@pytest.mark.parametrize("name", OF_REDUCTIONS)
def test_rows_that_choose_the_largest(name: str) -> None:
    """Some key is as large as the maximum, in the row and in its gradient."""
    generator = torch.Generator().manual_seed(5)
    inputs = [torch.randn(1, 2, n, 4, generator=generator).requires_grad_() for n in (9, 70, 70)]

    def row(s):
        x = OF_REDUCTIONS[name](s)
        return torch.where(x >= x.max(), s, 0.0)

    o = attn_mlir.attention(*inputs, row=row)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    s = exact[0] @ exact[1].transpose(-1, -2) / 2
    want = torch.where(s >= s.amax(-1, keepdim=True), s, 0.0) @ exact[2]
    torch.testing.assert_close(o.double(), want, rtol=1e-5, atol=1e-5)
    for got, gradient in zip(torch.autograd.grad(o.sum(), inputs), torch.autograd.grad(want.sum(), exact), strict=True):
        torch.testing.assert_close(got.double(), gradient, rtol=1e-4, atol=1e-4)


NEAR_TIES: dict[str, Callable[[torch.Tensor], Any]] = {
    "minimum of a root": lambda s: (torch.clamp(s, -0.7, 0.9), {"x": torch.sqrt(1.0 + (s * torch.tanh(s)) ** 2).min()}),
    "saturated": lambda s: (torch.tanh(s) ** 3, {"x": (torch.tanh(abs(s) + s) ** 3).max()}),
    "flat": lambda s: (torch.maximum(torch.sigmoid(s), s), {"x": torch.sigmoid(torch.tanh(s) ** 6).min()}),
}


@pytest.mark.parametrize("element", ["f32", "f16"])
@pytest.mark.parametrize("name", NEAR_TIES)
def test_values_that_rounding_could_not_tell_apart_are_no_ties_in_the_check(name: str, element: str) -> None:
    """The check computes in float64, where they are none."""
    text = attn_mlir.Attention(row=NEAR_TIES[name], return_states=True).ir("traced")
    with parsed(text.replace("x64xf32>", f"x64x{element}>")) as module:
        Pipeline.parse("attn-simplify", registry()).run(module)
        attention = find_all(module.operation, "attn.attention")[0]
        assert attention.parent is not None
        found = Derivatives(Primal(attention.parent, attention), [0, 1, 2])
        with attention.location:
            _ = found.reverse, found.tangent
        assert all(certificate.error < 1e-7 for certificate in found.certificates.values())


def test_a_tangent_of_a_minimum_whose_keys_nearly_tie() -> None:
    told, wrong = attention_errors(1419)
    assert not wrong, told
