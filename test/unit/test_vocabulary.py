"""The vocabulary on a device: values in float32, gradients, reductions of a row, and the page that lists it."""

import math
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir.frontend import methods
from attn_mlir.frontend.program import Definition
from trace_helpers import eye, run, scores

F = torch.nn.functional
PAGE = Path(__file__).parents[2] / "docs" / "vocabulary.md"

REAL: list[Any] = [
    torch.atan, torch.asinh, torch.sinh, torch.erfc, lambda x: torch.erfinv(0.9 * torch.tanh(x)), torch.lgamma, torch.digamma, torch.i0,
    torch.special.i0e, lambda x: torch.logit(0.5 + 0.45 * torch.tanh(x)),
    torch.sinc, F.softsign, F.hardswish, F.selu, F.mish,
    lambda x: torch.copysign(x, x - 1),
    lambda x: torch.hypot(x, x + 1), lambda x: torch.atan2(x, x - 1), lambda x: torch.acosh(1.5 + x * x),
    lambda x: torch.asin(0.9 * torch.tanh(x)), lambda x: torch.acos(0.9 * torch.tanh(x)), lambda x: torch.atanh(0.9 * torch.tanh(x)),
]  # fmt: skip


def all_by_head(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    result = score * 0
    for number, function in enumerate(REAL):
        result = torch.where(h == number, function(score), result)
    return result


def points() -> torch.Tensor:
    """The same numbers for each function: small, large and ordinary, none at a pole or kink."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, generator=generator, dtype=torch.float64)
    x = torch.cat([x, x[:8] * 1e-4, x[:8] * 4, torch.tensor([0.5, 1.0, 1.5, 2.5, 8.0, 8.6, 10.0], dtype=torch.float64)])
    return x.float().double().expand(1, len(REAL), -1)[..., None]


def scores_through(function: Any, x: torch.Tensor) -> torch.Tensor:
    """`function` of x, elementwise, as an attention of a single key computes it."""
    one = torch.ones(*x.shape[:2], 1, 1, dtype=x.dtype)
    return attn_mlir.attention(x, one, one, row=lambda s: s, score_mod=function, scale=1.0)


def dense(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([function(x[:, n]) for n, function in enumerate(REAL)], 1)


def test_values_in_float32() -> None:
    made = scores_through(all_by_head, points().float())
    torch.testing.assert_close(made.double(), dense(points()), rtol=1e-6, atol=1e-6)


def test_gradients() -> None:
    x, reference = points().requires_grad_(), points().requires_grad_()
    made, expected = scores_through(all_by_head, x), dense(reference)
    (gradient,), (wanted,) = (torch.autograd.grad(y.sum(), at) for y, at in ((made, x), (expected, reference)))
    torch.testing.assert_close(gradient, wanted, rtol=2e-9, atol=2e-9)  # torch's own trigamma is that exact


def test_second_derivatives() -> None:
    def total(score: Any, *_: Any) -> Any:
        return torch.atan(score) + torch.erfc(score)

    seconds = []
    for function in (lambda x: scores_through(lambda s, b, h, i, j: total(s), x), total):
        x = points()[:, :1].requires_grad_()
        (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        seconds += torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(*seconds, rtol=1e-10, atol=1e-10)


EDGES: list[Any] = [
    torch.atan, torch.asin, torch.acos, torch.asinh, torch.acosh, torch.atanh, torch.erfc, torch.erfinv, torch.lgamma, torch.digamma,
    torch.special.i0e, torch.logit, torch.sinc, F.softsign, F.mish, F.silu, F.selu, F.celu, F.elu, F.hardsigmoid, F.softshrink,
    torch.nan_to_num, lambda x: torch.atan2(x, x * 0 - 1), lambda x: torch.hypot(x, 1 - x),
]  # fmt: skip


def test_edges() -> None:
    x = torch.tensor([0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 20.0, math.inf, -math.inf, math.nan])

    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        result = score
        for number, function in enumerate(EDGES):
            result = torch.where(h == number, function(score), result)
        return result

    made = scores_through(mod, x.expand(1, len(EDGES), -1)[..., None])[0, :, :, 0]
    for function, values in zip(EDGES, made, strict=True):
        torch.testing.assert_close(values, function(x), equal_nan=True, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_activations_of_very_small_numbers(dtype: torch.dtype) -> None:
    """The factor of x that tends to 0 is 0, however large x is."""
    x = torch.tensor([-1e38, -1e10, -1e3, -104.5, -103.0, math.nan], dtype=dtype)[None, None, :, None]
    for function in (F.silu, F.hardswish, F.mish):
        at = x.clone().requires_grad_()
        made = scores_through(lambda s, b, h, i, j, function=function: function(s), at)
        (gradient,) = torch.autograd.grad(made[:, :, :-1].sum(), at)
        assert made[..., :-1, 0].abs().max() < 1e-35 and made[..., -1, 0].isnan().all()
        assert gradient[..., :-1, 0].abs().max() < 1e-35


def keep(x: torch.Tensor) -> torch.Tensor:
    return x[..., None] if isinstance(x, torch.Tensor) else x


def holes(s: Any) -> Any:
    return torch.where(s > 0, s, math.nan)


ROWS: dict[str, Any] = {
    "var": lambda s: s / (s.var(-1, keepdim=True) + torch.var(s, dim=-1, correction=0, keepdim=True)),
    "var unbiased": lambda s: s / s.var(-1, False)[..., None] + keep(torch.var_mean(s, -1)[1]),
    "std": lambda s: (s - torch.std_mean(s, -1, keepdim=True)[1]) / s.std(dim=-1, unbiased=False, keepdim=True),
    "norms": lambda s: s / s.norm(dim=-1, keepdim=True) + s / s.norm(p=1, dim=-1, keepdim=True),
    "further norms": lambda s: s / torch.norm(s, 3, -1, keepdim=True) + s / torch.linalg.vector_norm(s, math.inf, -1, True),
    "odd norms": lambda s: s / torch.linalg.vector_norm(s, 0.5, -1, True) + s / torch.linalg.vector_norm(s, -math.inf, -1, True),
    "number": lambda s: s / keep(torch.linalg.vector_norm(torch.relu(s), 0, -1)) + keep(torch.count_nonzero(s > 0, -1)),
    "prod": lambda s: s * torch.prod(s * 2, -1, keepdim=True),
    "log_softmax": lambda s: F.log_softmax(s, -1) + torch.log_softmax(s, -1) + F.softmin(s, dim=-1) - torch.special.log_softmax(s, -1) / 2,
    "normalize": lambda s: F.normalize(s, dim=-1) + F.normalize(s, 1.0, -1),
    "conditions": lambda s: torch.where((s > 1).any(-1, keepdim=True), s, 0.5) + torch.where(torch.all(s > -2, -1, True), s, 0.1),
    "not a number": lambda s: (
        torch.nansum(torch.where(s > 0, s, math.nan), -1, keepdim=True) + torch.where(s > 0, s, math.nan).nanmean(-1, True)
    ),
    "least and largest": lambda s: s - s.aminmax(dim=-1, keepdim=True)[0] + torch.amax(s, -1, True),
    "sizes": lambda s: s / s.shape[-1] + s.size(-1) + s.sum(-1).unsqueeze(-1),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    made = run(Definition(ROWS[name], scale=1.0), scores(), eye(), eye())[1][0]
    torch.testing.assert_close(made, ROWS[name](scores()).expand_as(made), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["std", "further norms", "prod"])
def test_rows_on_the_device(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, h, n, 8, generator=generator, dtype=torch.float64) for h, n in ((4, 5), (2, 17), (2, 17)))
    wide = [x.requires_grad_() for x in (q, k, v)]
    narrow = [x.detach().float().requires_grad_() for x in (q, k, v)]
    weights = ROWS[name](q @ k.repeat_interleave(2, 1).mT / math.sqrt(8))
    expected = weights @ v.repeat_interleave(2, 1)
    made = attn_mlir.attention(*narrow, row=ROWS[name])
    gradient = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    pairs = [(made, expected)]
    pairs += zip(torch.autograd.grad(made, narrow, gradient.float()), torch.autograd.grad(expected, wide, gradient), strict=True)
    for ours, theirs in pairs:
        assert (ours - theirs).norm() < 3e-6 * theirs.norm()


@pytest.mark.parametrize("row", [[2.0, 3.0, -4.0, 0.5], [2.0, 0.0, -4.0, 0.5], [0.0, 3.0, 0.0, 0.5], [0.0, 0.0, 0.0, 1.0]])
def test_the_product_of_a_row_has_torchs_gradient_at_zeros(row: list[float]) -> None:
    def product(s: Any) -> Any:
        return (s + 1.0) * s.prod(-1, keepdim=True)

    def derivatives(function: Any) -> list[torch.Tensor]:
        k = torch.tensor(row, dtype=torch.float64).view(1, 1, 4, 1).requires_grad_()
        o = function(torch.ones(1, 1, 1, 1, dtype=torch.float64), k, torch.eye(4, dtype=torch.float64)[None, None])
        (first,) = torch.autograd.grad((o * torch.arange(1.0, 5.0)).sum(), k, create_graph=True)
        return [o, first, *torch.autograd.grad((first[..., 0] * torch.arange(4.0, 8.0)).sum(), k)]

    made = derivatives(lambda q, k, v: attn_mlir.attention(q, k, v, row=product, scale=1.0))
    for ours, theirs in zip(made, derivatives(lambda q, k, v: product(q @ k.mT) @ v), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_variance_of_a_far_mean_and_of_a_single_key() -> None:
    def row(s: Any) -> tuple[Any, dict[str, Any]]:
        return s * 0.0, {"var": s.var(), "std": s.std(correction=0)}

    q = torch.tensor([[1.0]]).view(1, 1, 1, 1)
    k = (1000.0 + torch.arange(300.0) / 300).view(1, 1, 300, 1)
    _, states = attn_mlir.attention(q, k, k, row=row, scale=1.0, return_states=True)
    torch.testing.assert_close(states["var"].double(), k.double().var().view(1, 1, 1), rtol=1e-4, atol=0.0)
    _, states = attn_mlir.attention(q, k[:, :, :1], k[:, :, :1], row=row, scale=1.0, return_states=True)
    assert states["var"].isnan().all() and (states["std"] == 0).all()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_inside_torch_compile_with_other_lengths() -> None:
    def row(s: Any) -> Any:
        return torch.relu(s) / s.shape[-1] + s / s.norm(dim=-1)[..., None]

    def function(q: Any, k: Any, v: Any) -> Any:
        n = k.shape[2]
        return attn_mlir.attention(q, k, v, row=row, score_mod=lambda s, b, h, i, j: s * n / 20)

    compiled = torch.compile(function, backend="eager")
    q = torch.randn(1, 2, 5, 8)
    for length in (17, 33, 20, 40):
        k, v = torch.randn(2, 1, 2, length, 8)
        expected = row(q @ k.mT / math.sqrt(8) * length / 20) @ v
        torch.testing.assert_close(compiled(q, k, v), expected, rtol=1e-4, atol=1e-5)


def test_the_page_lists_all() -> None:
    text = PAGE.read_text()
    named = set(re.findall(r"`([a-z_0-9]+)`", text))
    there = set(methods.METHODS) | set(methods._PROPERTIES) - {"get_reduce"}
    assert there - named <= {"get_reduce"}
    tables = [name for line in text.splitlines() if line.startswith("|") for name in re.findall(r"`([a-z_0-9]+)`", line)]
    assert set(tables) <= there


def test_the_page_tells_how_to_take_the_largest() -> None:
    names: dict[str, Any] = {"torch": torch, "math": math}
    example = PAGE.read_text().split("largest weights come of repeated maxima:")[1].split("\n(-1e30")[0]
    exec(textwrap.dedent(example), names)
    q, k, v = torch.randn(3, 1, 2, 7, 8)
    s = q @ k.mT / math.sqrt(8)
    chosen = s.masked_fill(s < s.topk(2, -1).values[..., 1:], -math.inf)
    torch.testing.assert_close(attn_mlir.attention(q, k, v, row=names["top_two"]), chosen.softmax(-1) @ v, rtol=1e-5, atol=1e-5)
