"""Layouts, strides, mask strings, ALiBi and biases on an NVIDIA GPU, against float64; which inputs are copied."""

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from api_helpers import order, reference
from attn_mlir import Attention, PerformanceWarning, attention, mods
from gpu_cases import GPU
from test_mask_strings import dense

pytestmark = GPU
LAYOUTS = ["bhsd", "bshd", "sbhd"]
B, H, HKV, SQ, SKV, D = 2, 4, 2, 150, 210, 64


def tensors(dtype: torch.dtype = torch.float16) -> list[Tensor]:
    return [torch.randn(shape).to("cuda", dtype) for shape in ((B, H, SQ, D), (B, HKV, SKV, D), (B, HKV, SKV, D))]


def compare(found: Tensor, wanted: Tensor, bound: float = 3e-3) -> None:
    """By the 2-norm, relative to that of what is wanted."""
    assert found.shape == wanted.shape
    wanted = wanted.double()
    assert float((found.detach().cpu().double() - wanted).norm()) <= bound * float(wanted.norm())


def expected(leaves: list[Tensor], text: str, score_mod: Any = None, more: Any = ()) -> list[Tensor]:
    """o and the gradients of the sum of its squares on the CPU in float64; `score_mod` is made of doubles of `more`."""
    doubles = [x.detach().cpu().double().requires_grad_() for x in (*leaves, *more)]
    kept = torch.from_numpy(dense(text, SQ, SKV))
    o = reference(*doubles[:3], score_mod=score_mod(*doubles[3:]) if score_mod else None, mask_mod=lambda b, h, i, j: kept[i, j])[0]  # type: ignore[arg-type]
    return [o.detach(), *torch.autograd.grad(o.square().sum(), doubles)]


@pytest.mark.parametrize("given", LAYOUTS)
def test_every_pair(given: str) -> None:
    plain = tensors()
    wanted = expected(plain, "b:60,0")
    for made in LAYOUTS:
        q, k, v = leaves = [order(x, given).contiguous().requires_grad_() for x in plain]
        for _ in range(3):  # the short ways of later calls, too
            with torch.no_grad():
                alone = attention(q, k, v, mask_mod="b:60,0", layout=(given, made))
            o = attention(q, k, v, mask_mod="b:60,0", layout=(given, made))
            grads = torch.autograd.grad(o.square().sum(), leaves)
            for one in (alone, o):
                assert one.is_contiguous()
                compare(one, order(wanted[0], made))
            for grad, right in zip(grads, wanted[1:], strict=True):
                assert grad.is_contiguous()
                compare(grad, order(right, given))


@pytest.mark.parametrize(
    ("shape", "place", "layout"),
    [((B, SQ, 3, H, D), 2, "bshd"), ((B, 3, H, SQ, D), 1, "bhsd"), ((SQ, B, 3, H, D), 2, "sbhd"), ((B, SQ, H, 3, D), 3, "bshd")],
)
def test_packed_tensors_are_read_where_they_are(shape: tuple[int, ...], place: int, layout: str) -> None:
    qkv = torch.randn(shape).to("cuda", torch.bfloat16).requires_grad_()
    run = Attention(layout=layout, score_mod=lambda s, b, h, i, j: s * 1.0625)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)
        o = run(*qkv.unbind(place))
        (grad,) = torch.autograd.grad(o.square().sum(), qkv)
    assert "copied" not in run.explain()
    doubles = qkv.detach().cpu().double().requires_grad_()
    plain = [x.permute(1, 2, 0, 3) if layout == "sbhd" else order(x, layout) for x in doubles.unbind(place)]
    wanted = order(reference(*plain, score_mod=lambda s, *_: s * 1.0625)[0], layout)  # type: ignore[arg-type]
    compare(o, wanted.detach(), 2e-2)
    compare(grad, torch.autograd.grad(wanted.square().sum(), doubles)[0], 3e-2)


def test_what_is_copied_is_told() -> None:
    q, k, v = tensors()
    run = Attention(mask_mod="t", score_mod=lambda s, b, h, i, j: s * 1.125)
    wanted = run(q, k, v)
    assert "copied" not in run.explain()
    for column_major, name in ((1, "k"), (2, "v")):
        given = [q, k, v]
        given[column_major] = given[column_major].mT.contiguous().mT
        with pytest.warns(PerformanceWarning, match=f"{name} is copied at every call: elements of one head are not side by side"):
            made = run(*given)
        torch.testing.assert_close(made, wanted)
        assert f"copied: {name}, in a call of this process: elements of one head" in run.explain()
    with warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)
        for view in (k[:, :1].expand(B, H, SKV, D), torch.cat([k, k], 3)[..., D:], k.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)):
            run(q, view, v if view.shape[1] == HKV else v[:, :1].expand(B, H, SKV, D))


@pytest.mark.parametrize("text", ["0", "2", "t:60,-1", "b:30,5", "t:60,3,9", "b:20,0,33", "g:90,-40", "xb:77"])
def test_mask_strings(text: str) -> None:
    q, k, v = leaves = [x.requires_grad_() for x in tensors()]
    o = attention(q, k, v, mask_mod=text)
    wanted = expected(leaves, text)
    compare(o, wanted[0])
    for grad, right in zip(torch.autograd.grad(o.square().sum(), leaves), wanted[1:], strict=True):
        compare(grad, right)


SHAPES = [(B, H, SQ, SKV), (1, 1, SQ, SKV), (B, 1, 1, SKV), (B, 1, SQ, SKV), (H, 1, SKV), (SQ, SKV), (SKV,)]


BIASES = [*zip(SHAPES, itertools.cycle([torch.float32, torch.bfloat16]), strict=False), ((B, 1, 1, SKV), torch.float64)]
"""Gradients of float64 biases [Sq, Skv] have no kernel: they need too many registers, which the error says."""


@pytest.mark.parametrize(("shape", "dtype"), BIASES)
def test_biases(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    q, k, v = leaves = [x.requires_grad_() for x in tensors()]
    bias = torch.randn(shape).to("cuda", dtype).requires_grad_()
    o = attention(q, k, v, score_mod=mods.bias(bias), mask_mod="g:90,-40")
    wanted = expected(leaves, "g:90,-40", lambda t: lambda s, *_: s + t, [bias])
    compare(o, wanted[0])
    for grad, right in zip(torch.autograd.grad(o.square().sum(), [*leaves, bias]), wanted[1:], strict=True):
        compare(grad, right, 1e-2)


@pytest.mark.parametrize("shape", [(H,), (B, H), (1, H), (B, 1)], ids=str)
def test_slopes(shape: tuple[int, ...]) -> None:
    q, k, v = leaves = [x.requires_grad_() for x in tensors()]
    slopes = (torch.rand(shape) / 16).to("cuda").requires_grad_()
    o = attention(q, k, v, score_mod=mods.alibi(slopes, absolute=True, align="bottom_right"), mask_mod="b:60,3")

    def mod(t: Tensor) -> Any:
        return lambda s, b, h, i, j: s - t.expand(B, H)[:, :, None, None] * (i + SKV - SQ - j).abs()

    wanted = expected(leaves, "b:60,3", mod, [slopes])
    compare(o, wanted[0])
    for grad, right in zip(torch.autograd.grad(o.square().sum(), [*leaves, slopes]), wanted[1:], strict=True):
        compare(grad, right, 1e-2)
