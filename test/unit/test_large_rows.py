"""Rows of one's own beside masks of numbers: they multiply, divide or square the difference from their maximum, on every device."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir import Attention, attention, attention_varlen, merge
from attn_mlir.backends.nvidia import driver, pipeline
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.frontend.emit import Inputs

LOWEST = torch.finfo(torch.float32).min
HIP = pytest.param("hip-emulated", marks=needs_host_clang)
DEVICES = ["cpu", "cuda-emulated", "cuda-emulated-sm80", HIP]
SQ, SKV, D, HQ, HKV = 133, 147, 64, 4, 2
I, J = torch.arange(SQ)[:, None], torch.arange(SKV)
HIDDEN = (J < 100) | (I < 20) | (I > 120)
"""The first blocks of all rows, and all of some rows."""
KEYS = torch.where(J < 30, -1e9, torch.where(J < 60, -4e5, 0.0)).float()
FACTORS = torch.tensor([1.3, 0.7, 2.1, 0.9])
Row = Callable[..., Any]


def exponential(s: Any, h: Any, most: Any, total: Any) -> Any:
    e = torch.exp(1.7 * (s - most(s)))
    return e / total(e)


def of_heads(s: Any, h: Any, most: Any, total: Any) -> Any:
    e = torch.exp((s - most(s)) / h(FACTORS))
    return e / total(e)


def of_relu(s: Any, h: Any, most: Any, total: Any) -> Any:
    x = torch.relu(1.7 * (s - most(s)) + 3.0)
    return x / total(x)


def of_sigmoid(s: Any, h: Any, most: Any, total: Any) -> Any:
    x = torch.sigmoid(1.7 * (s - most(s)) + 1.0)
    return x / total(x)


def of_quotient(s: Any, h: Any, most: Any, total: Any) -> Any:
    x = 0.7 * (s - most(s))
    w = 1 / (1 + x * x)
    return w / total(w)


def of_product(s: Any, h: Any, most: Any, total: Any) -> Any:
    x = s - most(s)
    w = (1 - 0.5 * x) * torch.exp(x)
    return w / total(w)


ROWS = [exponential, of_heads, of_relu, of_sigmoid, of_quotient, of_product]


def traced(row: Row) -> Row:
    return lambda s, b, h, i: row(s, lambda t: t[h], lambda x: x.max(), lambda x: x.sum())


def inputs() -> list[torch.Tensor]:
    """Scores of which no row has two near its largest: in 16 bits these share the derivative of the maximum (docs/derivatives.md)."""
    sizes = ((HQ, SQ), (HKV, SKV), (HKV, SKV), (HQ, SQ))
    while True:
        q, *others = (torch.randn(1, heads, length, D).half() for heads, length in sizes)
        scores = q.double() @ others[0].double().repeat_interleave(HQ // HKV, 1).mT / 8
        first, second = scores[..., 100:].topk(2).values.unbind(-1)
        if (first - second).min() > 2.0**-13 * first.max():
            return [q, *others]


class Rounded(torch.autograd.Function):
    """Scores are float32, in which a mask may swallow them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x.float().double()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


def dense(row: Row, added: list[torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Any = None) -> torch.Tensor:
    """The formula in float64, of scores that are rounded after each number that is added."""
    k, v = (x.repeat_interleave(HQ // HKV, 1) for x in (k, v))
    s = Rounded.apply(q @ k.mT / 8)
    for bias in added:
        s = Rounded.apply(s + bias.double())
    s = s if seen is None else s.masked_fill(~seen, -torch.inf)
    by_head = lambda t: t.double()[None, :, None, None]  # noqa: E731
    w = row(s, by_head, lambda x: x.amax(-1, keepdim=True), lambda x: x.sum(-1, keepdim=True))
    return (w if seen is None else w.nan_to_num(0.0)) @ v


def gradients(function: Callable[..., torch.Tensor], x: list[torch.Tensor], do: torch.Tensor) -> list[torch.Tensor]:
    wanted = [y.detach().clone().requires_grad_() for y in x]
    o = function(*wanted)
    return [o.detach(), *torch.autograd.grad(o, wanted, do.to(o.dtype))]


def check(found: Any, right: Any) -> None:
    for got, want in zip(found, right, strict=True):
        assert (got.double() - want).abs().max() < 4e-3 * (1 + want.abs().max())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("row", ROWS)
def test_gradients(row: Row, device: str) -> None:
    """Grouped heads, odd lengths, a mask of numbers for pairs and another one for keys."""
    *x, do = inputs()
    bias = torch.zeros(SQ, SKV).masked_fill(HIDDEN, -1e9)
    right = gradients(lambda *y: dense(row, [bias, KEYS], *y), [y.double() for y in x], do)
    call = lambda *y: attention(*y, row=traced(row), score_mod=lambda s, b, h, i, j: s + bias[i, j] + KEYS[j], device=device)  # noqa: E731
    check(gradients(call, x, do), right)


@pytest.mark.parametrize("device", ["cpu", "cuda-emulated", HIP])
@pytest.mark.parametrize("row", [exponential, of_heads, of_relu])
def test_the_lowest_number(row: Row, device: str) -> None:
    """A multiple of it would be -inf. Some rows are fully masked, others are of the lowest number alone."""
    *x, do = inputs()
    bias, seen = torch.zeros(SQ, SKV).masked_fill(HIDDEN, LOWEST), (I - J >= 3) & (I - J < 40)
    formula = lambda *y: dense(row, [bias], *y)  # noqa: E731
    mine = {"row": traced(row), "score_mod": lambda s, b, h, i, j: s + bias[i, j], "device": device}
    check(gradients(lambda *y: attention(*y, **mine), x, do), gradients(formula, [y.double() for y in x], do))
    windowed = attention(x[0], x[1], x[2], **mine, mask_mod=lambda b, h, i, j: (i - j >= 3) & (i - j < 40))
    some = seen.any(-1)
    want = dense(row, [bias], *(y.double() for y in x), seen=seen | ~some[:, None])
    assert (windowed[:, :, ~some] == 0).all()
    check([windowed[:, :, some]], [want[:, :, some]])


@pytest.mark.parametrize("device", ["cpu", "cuda-emulated", HIP])
def test_tangents_and_parts(device: str) -> None:
    *x, _ = inputs()
    tangents = [torch.randn_like(y) for y in x]
    bias = torch.zeros(SQ, SKV).masked_fill(HIDDEN, -1e9)
    options = {"row": traced(exponential), "score_mod": lambda s, b, h, i, j: s + bias[i, j], "device": device}
    wide = [y.double() for y in x]
    wanted = [y.requires_grad_() for y in wide]
    o = dense(exponential, [bias], *wanted)
    weights = torch.zeros_like(o).requires_grad_()
    adjoints = torch.autograd.grad(o, wanted, weights, create_graph=True)
    (right,) = torch.autograd.grad(adjoints, weights, [t.double() for t in tangents])
    with torch.autograd.forward_ad.dual_level():
        duals = [torch.autograd.forward_ad.make_dual(y, t) for y, t in zip(x, tangents, strict=True)]
        found = torch.autograd.forward_ad.unpack_dual(attention(duals[0], duals[1], duals[2], **options)).tangent
    check([found], [right])
    q, k, v = x
    parts = [(0, 70), (70, 110), (110, SKV)]
    made = [attention(q, k[:, :, a:b], v[:, :, a:b], **options, return_partial=True, kv_offset=a, kv_len=SKV) for a, b in parts]
    check([merge(*made).finalize()], [o.detach()])


@pytest.mark.parametrize("device", ["cuda-emulated", HIP])
def test_second_derivatives(device: str) -> None:
    *x, do = inputs()
    bias = torch.zeros(SQ, SKV).masked_fill(HIDDEN, -1e9)
    directions = [torch.randn_like(y) for y in x]

    def second(function: Callable[..., torch.Tensor], wide: bool) -> list[torch.Tensor]:
        wanted = [(y.double() if wide else y).clone().requires_grad_() for y in (*x, do)]
        first = torch.autograd.grad(function(*wanted[:3]), wanted[:3], wanted[3], create_graph=True)
        return list(torch.autograd.grad(first, wanted, [y.to(wanted[0].dtype) for y in directions]))

    mod = lambda s, b, h, i, j: s + bias[i, j]  # noqa: E731
    found = second(lambda *y: attention(*y, row=traced(of_sigmoid), score_mod=mod, device=device), False)
    check(found, second(lambda *y: dense(of_sigmoid, [bias], *y), True))


@pytest.mark.parametrize("device", ["cpu", "cuda-emulated-sm80", HIP])
def test_variable_lengths(device: str) -> None:
    lengths = [37, 0, 96]
    offsets = torch.tensor([0, 37, 37, 133], dtype=torch.int32)
    q, k, v = (torch.randn(133, heads, D).half() for heads in (HQ, HKV, HKV))
    do = torch.randn(133, HQ, D).half()
    keys = torch.where(torch.arange(96) < 50, -1e9, 0.0)
    rows = {"row": traced(of_heads), "score_mod": lambda s, b, h, i, j: s + keys[j], "device": device}
    call = lambda x, y, z: attention_varlen(x, y, z, offsets, max_q=96, max_k=96, **rows)  # noqa: E731
    found = gradients(call, [q, k, v], do)

    def formula(*y: torch.Tensor) -> torch.Tensor:
        cut = [[x[a : a + n].movedim(0, 1)[None] for x in y] for a, n in zip((0, 37, 37), lengths, strict=True) if n]
        return torch.cat([dense(of_heads, [keys[: x[0].shape[2]]], *x)[0].movedim(1, 0) for x in cut])

    check(found, gradients(formula, [q.double(), k.double(), v.double()], do))


@pytest.mark.parametrize("size", [1e4, 1e5, 1e6])
def test_slopes_beside_zeros(size: float) -> None:
    """Numbers that are added to scores may be large, also where they are 0: so that slopes lose no more digits than float32 does."""
    *x, do = inputs()
    slopes, zeros, far = torch.full((HQ,), size), torch.zeros(HQ), J // 32 - I
    mod = lambda s, b, h, i, j: s + slopes[h] * (j // 32 - i) + zeros[h]  # noqa: E731
    found = gradients(lambda *y: attention(*y, score_mod=mod, device="cuda-emulated"), x, do)

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (y.repeat_interleave(HQ // HKV, 1) for y in (k, v))
        return (q @ k.mT / 8 + (size * far).to(q.dtype)).softmax(-1) @ v

    right = gradients(plain, [y.double() for y in x], do)
    for got, want, eager in zip(found, right, gradients(plain, [y.float() for y in x], do), strict=True):
        assert (got.double() - want).abs().max() < 1.1 * (eager.double() - want).abs().max() + 2e-3 * (1 + want.abs().max())


def test_the_difference_comes_before_its_factor() -> None:
    """In what is printed: forward and backward; scores that cannot be large keep their multiply-add."""
    found = {}
    for name, mod in {"large": lambda s, b, h, i, j: s + KEYS[j], "ordinary": None}.items():
        call = Attention(row=traced(exponential), score_mod=mod)
        call.__dict__.update(_last=Inputs("f16", D, D), _form=None)
        form = prepare_derivative("bwd", ("q", "k", "v"), pipeline.outline("sm_90a"))
        _, units = driver._lower(call.ir(), *form, {"arch": "sm_90a"})  # pyright: ignore[reportPrivateUsage]
        text = "\n".join(unit.code.source for unit in units.values())
        found[name] = bool(re.search(r"exp2f\(\(.* - .*\) \* 2\.45258\d*f\)", text))
    assert found == {"large": True, "ordinary": False}
