"""Rows with differences of scores, at scores of several hundred: f32 as near to float64 as the formula in f32 is."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attn_mlir import attention, rows
from attn_mlir.api.describe import explain_traced
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, trace
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry
from contexts import loaded_context
from stable_rows import Row, of_row, sinh_squared, softpick, with_gradients


def centred_near_maximum(s: Tensor) -> Tensor:
    w = (s - s.mean()) * torch.exp(-((s - s.max()) ** 2))
    return w / torch.clamp(torch.abs(w.sum()), min=1.0)


def third_moment(s: Tensor) -> Tensor:
    c = s - s.mean()
    return c**3 / (1 + (c * c).mean())


def between_extremes(s: Tensor) -> Tensor:
    w = (s - s.min()) * (s.max() - s)
    return w / (1 + w.sum())


def over_own_deviation(s: Tensor) -> Tensor:
    e = torch.exp(s - s.max())
    p = e / e.sum()
    c = s - (p * s).sum()
    return p * c / torch.sqrt(1 + (p * c * c).sum())


def swept_sums(row: Any, function: str) -> int:
    """How many sums over the keys a derivative takes before its gradients."""
    traced = trace(Definition(row=row, scale=0.25), Inputs("f32", 16, 16))
    with loaded_context():
        module = ir.Module.parse(traced.text)
        Pipeline.parse(f"attn-simplify,attn-differentiate{{functions={function} only=true}}", registry()).run(module)
        return str(module).count('"attn.reduce"')


def test_sums_stay_whole_where_that_is_cheaper_or_more_accurate() -> None:
    assert [swept_sums(row, "bwd") for row in (centred_near_maximum, third_moment, softpick)] == [5, 1, 3]
    assert swept_sums(sinh_squared, "bwd2") == 9


def test_equal_sums_are_still_found() -> None:
    """Multiplied out, the second derivative of softmax takes five sums; whole, it would take eight."""
    assert [swept_sums(rows.softmax, function) for function in ("bwd", "bwd2")] == [0, 5]


def off_by(row: Row, seed: int, size: float, near: bool = False) -> list[tuple[float, float]]:
    """Errors of output and gradients in f32, and what they may be."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v, do = (torch.randn(1, h, n, 16, generator=generator) for h, n in ((2, 5), (1, 17), (1, 17), (2, 5)))
    if near:
        q[..., 0], k[..., 0] = size * 4, 1.0
    else:
        q = q * size
    run = of_row(row, torch.ones(5, 17, dtype=torch.bool))

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return run(q, k.expand(-1, 2, -1, -1), v.expand(-1, 2, -1, -1))

    got = with_gradients(lambda q, k, v: attention(q, k, v, row=row), [q, k, v], do)
    single, exact = (with_gradients(formula, [x.to(dtype) for x in (q, k, v)], do) for dtype in (torch.float32, torch.float64))
    errors = [[float((x - y).abs().max()) for x, y in zip(results, exact, strict=True)] for results in (got, single)]
    sizes = [float(x.abs().max()) for x in exact]
    return [(mine, 8 * theirs + 2e-6 * (1 + size)) for mine, theirs, size in zip(*errors, sizes, strict=True)]


@pytest.mark.parametrize("row", [centred_near_maximum, third_moment])
@pytest.mark.parametrize("near", [False, True])
def test_gradients(row: Row, near: bool) -> None:
    """With differences multiplied out, gradients of the first row that are 0 come out as large as 1."""
    check(row, 300.0, near)


def test_sums_of_the_forward_pass() -> None:
    """With (s - min) (max - s) summed by way of s and s^2, outputs are off by a fiftieth."""
    check(between_extremes, 300.0, near=True)


def test_explanation() -> None:
    for row, name in ((between_extremes, "sum"), (over_own_deviation, "sum2")):
        lines = explain_traced(trace(Definition(row=row, scale=0.25), Inputs("f32", 16, 16)).text)
        assert f"range: {name} in a later pass, because differences lose digits multiplied out" in lines
        assert "passes over keys: 2" in lines
    lines = explain_traced(trace(Definition(row=rows.softmax, scale=0.25), Inputs("f32", 16, 16)).text)
    assert "range:" not in lines


def check(row: Row, size: float, near: bool) -> None:
    for seed in range(2):
        for number, (error, allowed) in enumerate(off_by(row, seed, size, near)):
            assert error <= allowed, f"seed {seed}, result {number}: {error} > {allowed}"


def test_differences_from_a_maximum_come_first() -> None:
    """exp(x - max x) exp(y) is exp((x - max x) + y): (y + x) - max x rounds y to the digits of x."""

    def two_ends(s: Tensor) -> Tensor:
        steep = 4096 * torch.abs(s)
        e = torch.exp(steep - steep.amax(-1, keepdim=True)) * torch.exp(0.3 * s)
        return e / e.sum(-1, keepdim=True)

    ends = torch.tensor([2.0, -2.0, 1.0, 2.0, 0.5, -2.0, -1.0])
    q, k, v = torch.ones(1, 1, 1, 1), ends.reshape(1, 1, -1, 1), torch.randn(1, 1, 7, 3)
    wanted = two_ends(ends.double())[None] @ v.double()
    torch.testing.assert_close(attention(q, k, v, row=two_ends).double(), wanted, rtol=0, atol=1e-6)


def test_tangent_of_nested_softmax() -> None:
    """The check draws the first pass's maximum and sum at random: exponents of 1e5 must not lose what is added to them."""

    def nested(s: Tensor) -> Tensor:
        return torch.relu(torch.softmax(torch.softmax(s, -1), -1))

    point, tangents = ([torch.randn(1, 2, 7, 4, dtype=torch.float64) for _ in range(3)] for _ in range(2))
    got = torch.func.jvp(lambda q, k, v: attention(q, k, v, row=nested), tuple(point), tuple(tangents))
    wanted = torch.func.jvp(lambda q, k, v: nested(q @ k.mT / 2) @ v, tuple(point), tuple(tangents))
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
