"""Biases and ALiBi slopes of every broadcast shape: results and gradients, which are sums over what repeats, on the CPU and emulated."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from api_helpers import assert_near, inputs, reference
from attn_mlir import attention, masks, mods, rows
from attn_mlir.errors import ArgumentError

B, H, SQ, SKV = 2, 4, 17, 29
SIZES = (B, H, SQ, SKV)
SHAPES = [SIZES, (1, 1, SQ, SKV), (B, 1, 1, SKV), (B, 1, SQ, 1), (H, 1, 1), ()]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
VIEWS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: torch.randn(SKV, SQ).t(),
    "slice": lambda: torch.randn(B, H, SQ + 3, 2 * SKV + 1)[:, :, 2:-1, 1::2],
    "expanded": lambda: torch.randn(1, 1, SQ, SKV).expand(SIZES),
    "expanded keys": lambda: torch.randn(B, 1, SQ, 1).expand(SIZES),
    "one number": lambda: torch.randn(()).expand(SIZES),
    "turned": lambda: torch.randn(H, B, SKV, SQ).permute(1, 0, 3, 2),
}


def normalised(s: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(s)


def late(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx - kv_idx >= 3  # the first three rows are empty


def compare(bias: torch.Tensor, dtype: torch.dtype, mod: Any, dense: Any, device: str = "cpu", mask: Any = late) -> None:
    """o and all gradients of sigmoid attention, whose weights change with a constant as well, against float64."""
    q, k, v = (x.requires_grad_() for x in inputs(B, H, 2, SQ, SKV, 16, 16, dtype))
    weights = torch.linspace(-1.0, 1.0, 16)
    made = attention(q, k, v, row=rows.sigmoid, score_mod=mod, mask_mod=mask, device=device)
    grads = torch.autograd.grad((made * weights).sum(), (q, k, v, bias))
    doubles = [x.detach().double().requires_grad_() for x in (q, k, v, bias)]
    wanted = reference(*doubles[:3], normalised, dense(doubles[3]), mask)[0]  # type: ignore[arg-type]
    expected = torch.autograd.grad((wanted * weights).sum(), doubles)
    small = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
    assert_near(made.detach(), wanted.detach(), small[dtype])
    for grad, right, like in zip(grads, expected, (q, k, v, bias), strict=True):
        assert grad.dtype == like.dtype
        assert_near(grad, right, max(small[dtype], small[like.dtype]))


def added(bias: torch.Tensor) -> Any:
    return lambda s, *_: s + bias


@pytest.mark.parametrize(("shape", "number"), list(zip(SHAPES, itertools.cycle(range(4)), strict=False)), ids=str)
def test_every_shape(shape: tuple[int, ...], number: int) -> None:
    bias = torch.randn(shape, dtype=torch.float64).to(DTYPES[number]).requires_grad_()
    compare(bias, DTYPES[number // 2], mods.bias(bias), added)


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    bias = VIEWS[name]().requires_grad_()
    compare(bias, torch.float32, mods.bias(bias), added)


@needs_host_clang
@pytest.mark.parametrize(("shape", "number"), [((B, 1, 1, SKV), 1), ((H, SQ, 1), 3)], ids=str)
def test_emulated(shape: tuple[int, ...], number: int) -> None:
    bias = torch.randn(shape, dtype=torch.float64).to(DTYPES[number]).requires_grad_()
    compare(bias, torch.float16, mods.bias(bias), added, "hip-emulated")


@needs_host_clang
def test_views_emulated() -> None:
    for view in VIEWS.values():
        bias = view().expand(SIZES).requires_grad_()
        compare(bias, torch.float16, mods.bias(bias), added, "hip-emulated")


def slope_of(slopes: torch.Tensor) -> torch.Tensor:
    return slopes.expand(B, H)[:, :, None, None]


@pytest.mark.parametrize(
    ("shape", "device"),
    [((H,), "cpu"), ((B, H), "cpu"), ((1,), "cpu"), pytest.param((B, H), "hip-emulated", marks=needs_host_clang)],
    ids=str,
)
def test_slopes(shape: tuple[int, ...], device: str) -> None:
    slopes = (torch.rand(shape) / 8).requires_grad_()
    mod = mods.alibi(slopes, absolute=True, align="bottom_right")
    compare(slopes, torch.float16, mod, lambda t: lambda s, b, h, i, j: s - slope_of(t) * (i + SKV - SQ - j).abs(), device)


MASKS = ["0", "t:-1,-1", "b:-4,0", "t:3,2", "b:3,4", "g:4,3"]


@pytest.mark.parametrize("text", MASKS)
def test_alibi_with_a_mask_as_ck_adds_it(text: str) -> None:
    """Vertical with causal masks, else by the distance from the corner that the mask is aligned to; without one the lower right one."""
    q, k, v = inputs(B, H, 2, SQ, SKV)
    slopes = mods.alibi_slopes(H)
    causal, shift = text in ("1", "2", "t:-1,0", "b:-4,0", "xt:0"), SKV - SQ if text[0] in "0b" or text[:2] == "xb" else 0

    def dense(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + slopes[h] * j if causal else s - slopes[h] * (i + shift - j).abs()

    mask = masks.parse(text)
    kept = attention(torch.ones(1, 1, SQ, 1), torch.ones(1, 1, SKV, 1), torch.eye(SKV)[None, None], row=rows.relu, mask_mod=mask)[0, 0] > 0
    expected, expected_lse = reference(q, k, v, score_mod=dense, mask_mod=lambda b, h, i, j: kept[i, j])
    o, lse = attention(q, k, v, score_mod=mods.alibi_with_mask(slopes, text), mask_mod=text, return_lse=True)
    assert_near(o, expected)
    assert_near(lse, expected_lse)


def test_usual_slopes() -> None:
    """Those that the paper's own program gives, also where the number of heads is no power of two."""
    torch.testing.assert_close(mods.alibi_slopes(8), torch.tensor([2.0**-i for i in range(1, 9)]))
    twelve = [2.0**-i for i in range(1, 9)] + [2.0 ** (-i / 2) for i in (1, 3, 5, 7)]
    torch.testing.assert_close(mods.alibi_slopes(12), torch.tensor(twelve))
    torch.testing.assert_close(mods.alibi_slopes(3), torch.tensor([2.0**-4, 2.0**-8, 2.0**-2]))
    torch.testing.assert_close(mods.alibi_slopes(1), torch.tensor([2.0**-8]))
    for heads in range(1, 40):
        assert mods.alibi_slopes(heads).shape == (heads,)


def test_what_is_refused() -> None:
    for make in (
        lambda: mods.alibi(torch.ones(1, 2, 3)), lambda: mods.alibi(0.5), lambda: mods.alibi(torch.ones(4), align="left"),  # type: ignore[arg-type]
        lambda: mods.alibi_with_mask(torch.ones(4), "t:"), lambda: mods.bias(torch.ones(1, 1, 1, 1, 1)), lambda: mods.alibi_slopes(0),
    ):  # fmt: skip
        with pytest.raises(ArgumentError):
            make()
    q, k, v = inputs()
    with pytest.raises(ArgumentError, match="`slopes` has size 3"):
        attention(q, k, v, score_mod=mods.alibi(torch.ones(3)))
