"""Orders of dimensions of inputs and output, and strides of inputs: results, gradients and their memory; what is copied is told."""

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import attn_mlir
from amd_tools import needs_host_clang
from api_helpers import assert_near, inputs, order, reference
from attn_mlir import ArgumentError, Attention, AttentionEngine, OnlineSoftmax, PerformanceWarning, attention, meta_tensor
from attn_mlir.backends.amd import program as amd
from attn_mlir.backends.copies import Copies

LAYOUTS = ["bhsd", "bshd", "sbhd"]
PAIRS = list(itertools.product(LAYOUTS, repeat=2))
CPU, EMULATED = "cpu", pytest.param("hip-emulated", marks=needs_host_clang)
B, H, HKV, SQ, SKV, D, DV = 2, 4, 2, 17, 29, 16, 24
MASK = "t:8,-1"
"""No row is empty; `EMPTY` leaves the first ones without keys."""
EMPTY = "g:9,-3"
KEPT: dict[str, Callable[..., Any]] = {MASK: lambda b, h, i, j: i - j <= 8, EMPTY: lambda b, h, i, j: (i - j <= 8) & (i - j >= 4)}
NAMES = ("q", "k", "v")


def tensors(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return inputs(B, H, HKV, SQ, SKV, D, DV, dtype)


def expected(plain: Sequence[torch.Tensor], text: str = MASK) -> list[torch.Tensor]:
    """o, and the gradients of q, k and v, `plain`, of the sum of its squares, in float64."""
    q, k, v = (x.detach().double().requires_grad_() for x in plain)
    o = reference(q, k, v, mask_mod=KEPT[text])[0]
    return [o.detach(), *torch.autograd.grad(o.square().sum(), (q, k, v))]


def tolerance(dtype: torch.dtype) -> float:
    return {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]


@pytest.mark.parametrize("device", [CPU, EMULATED])
def test_every_pair(device: str) -> None:
    """o is contiguous in the second order, gradients in the first one."""
    dtype = torch.float32 if device == CPU else torch.float16
    plain = tensors(dtype)
    wanted = expected(plain)
    for given, made in PAIRS:
        q, k, v = leaves = [order(x, given).contiguous().requires_grad_() for x in plain]
        with torch.no_grad():
            alone = attention(q, k, v, mask_mod=MASK, layout=(given, made), device=device)
        o = attention(q, k, v, mask_mod=MASK, layout=(given, made), device=device)
        grads = torch.autograd.grad(o.square().sum(), leaves)
        assert alone.is_contiguous()
        assert o.is_contiguous()
        for one in (alone, o.detach()):
            assert_near(one, order(wanted[0], made), tolerance(dtype))
        for grad, right in zip(grads, wanted[1:], strict=True):
            assert grad.is_contiguous()
            assert_near(grad, order(right, given), tolerance(dtype))


def test_forms_of_the_argument() -> None:
    q, k, v = tensors()
    wanted = expected((q, k, v))[0]
    turned = x, y, z = [order(x, "sbhd") for x in (q, k, v)]
    assert_near(attention(x, y, z, mask_mod=MASK, layout="sbhd"), order(wanted, "sbhd"))
    for layout in (("sbhd", "bhsd"), ["sbhd", "bhsd"]):
        o, lse, states = Attention(mask_mod=MASK, layout=layout, return_lse=True, return_states=True)(*turned)
        assert_near(o, wanted)
        assert lse.shape == states["lse"].shape == (B, H, SQ)
    assert_near(Attention(mask_mod=MASK, layout=("bhsd", "bhsd"))(q, k, v), wanted)
    wrong: Any
    for wrong in ("bhds", ("bhsd",), ("bhsd", "x"), ("bhsd",) * 3, 3, "bhsd->bshd", None):
        for call in (lambda x=wrong: attention(q, k, v, layout=x), lambda x=wrong: Attention(layout=x)):
            with pytest.raises(ArgumentError, match=r'layout is "bhsd".*"sbhd".*the second for the output; got'):
                call()
    with pytest.raises(ArgumentError, match=r'k has batch size 29 but q has 17; did you mean layout="sbhd"\?'):
        attention(x, y, z)
    with pytest.raises(ArgumentError, match=r"q must have 4 dimensions, \[position, batch, head, dim\]"):
        attention(q[0], k, v, layout="sbhd")
    with pytest.raises(ArgumentError, match='layout is "bhsd"'):
        attn_mlir.linear_attention(q, q, q, layout="sbhd")


@pytest.mark.parametrize(("text", "device"), [(MASK, CPU), (EMPTY, CPU), pytest.param(EMPTY, "hip-emulated", marks=needs_host_clang)])
def test_packed(text: str, device: str) -> None:
    """q, k and v are views of one tensor, in whichever order it is packed, and read where they are."""
    dtype = torch.float64 if device == CPU else torch.bfloat16
    generator = torch.Generator().manual_seed(1)
    for shape, place, layout in (
        ((B, SQ, 3, H, D), 2, "bshd"), ((B, 3, H, SQ, D), 1, "bhsd"), ((SQ, B, 3, H, D), 2, "sbhd"), ((B, SQ, H, 3, D), 3, "bshd"),
    ):  # fmt: skip
        qkv = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        run = Attention(mask_mod=text, layout=layout, device=device)
        with warnings.catch_warnings():
            warnings.simplefilter("error", PerformanceWarning)
            q, k, v = qkv.unbind(place)
            o = run(q, k, v)
            (grad,) = torch.autograd.grad(o.square().sum(), qkv)
        assert "copied" not in run.explain()
        plain = [order(x, layout) if layout != "sbhd" else x.permute(1, 2, 0, 3) for x in qkv.detach().unbind(place)]
        wanted, *grads = expected(plain, text)
        assert_near(o.detach(), order(wanted, layout), tolerance(dtype))
        assert_near(grad, torch.stack([order(x, layout) for x in grads], place), tolerance(dtype))


VIEWS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "column-major v": ("v", lambda x: x.mT.contiguous().mT, True),
    "column-major q": ("q", lambda x: x.mT.contiguous().mT, True),
    "every second column of k": ("k", lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2], True),
    "one column for all": ("k", lambda x: x[..., :1].expand(*x.shape), True),
    "one head for all": ("v", lambda x: x[:, :1].expand(*x.shape), False),
    "one batch for all": ("q", lambda x: x[:1].expand(*x.shape), False),
    "one position for all": ("k", lambda x: x[:, :, :1].expand(*x.shape), False),
    "rows apart": ("v", lambda x: torch.cat([x, x, x], 3)[..., 24:48], False),
    "every second row, an offset": ("q", lambda x: torch.cat([x[:, :, :1], torch.stack([x, x], 3).flatten(2, 3)], 2)[:, :, 1::2], False),
    "positions outside": ("k", lambda x: x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3), False),
    "heads inside of columns": ("v", lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), True),
}


def forget(run: Attention) -> None:
    """Makes the kernels of an attention, which others may share, know of no copies."""
    for program in run._entry(run._last)[0].programs:
        for kernel in () if program is None else (*program.kernels.values(), *program.derivatives.values()):
            kernel.copies.clear()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    """Any strides; only elements of a head that are not side by side are copied, and that is told once, and by explain()."""
    which, view, copied = VIEWS[name]
    plain = tensors()
    at = NAMES.index(which)
    plain[at] = view(plain[at])
    wanted = expected(plain, EMPTY)
    leaves = [x.detach().requires_grad_() for x in plain]
    run = Attention(mask_mod=EMPTY)
    q, k, v = tensors()
    run(q, k, v)
    forget(run)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", PerformanceWarning)
        with torch.no_grad():
            assert_near(run(*plain), wanted[0])
            assert_near(run(*plain), wanted[0])
        assert len([one for one in told if one.category is PerformanceWarning]) == copied
        o = run(*leaves)
        made = [o.detach(), *torch.autograd.grad(o.square().sum(), leaves)]
    for one, right in zip(made, wanted, strict=True):
        assert_near(one, right)
    assert (f"copied: {which}, in a call of this process: elements of one head are not side by side" in run.explain()) == copied
    assert run.explain().count("copied") == copied


def test_a_copy_is_told_where_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors()
    run = Attention(score_mod=lambda s, b, h, i, j: s * 1.0625)
    with pytest.warns(
        PerformanceWarning, match="v is copied at every call: elements of one head are not side by side.*docs/layouts.md"
    ) as told:
        run(q, k, v.mT.contiguous().mT)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(q, k, v.mT.contiguous().mT)  # told once
        Attention(score_mod=lambda s, b, h, i, j: s * 1.125)(q, k, v[:, :, :1].mT.contiguous().mT[:, :, [0] * SKV])
    monkeypatch.setenv("ATTN_MLIR_STRICT", "1")
    run = Attention(score_mod=lambda s, b, h, i, j: s * 1.1875)
    for _ in range(2):
        with pytest.raises(attn_mlir.UnsupportedError, match=r"k is copied at every call.*ATTN_MLIR_STRICT=1 refuses that"):
            run(q, k.mT.contiguous().mT, v)
    run(q, k, v)


@needs_host_clang
def test_what_emulated_gpus_copy() -> None:
    """Rows must begin at multiples of 16 bytes; heads of 10 columns never do, which is no reason to warn."""
    q, k, v = tensors(torch.float16)
    wanted = expected((q, k, v))[0]
    run = Attention(mask_mod=MASK, device="hip-emulated")
    shifted = torch.cat([k[..., :1], k], 3)[..., 1:]
    with pytest.warns(PerformanceWarning, match="k is copied at every call: its address or a stride is no multiple of 16 bytes"):
        assert_near(run(q, shifted, v), wanted, 5e-3)
    assert "copied: k, in a call of this process: its address" in run.explain()
    copies = Copies()
    with warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)
        copies.tell(0, q[..., :10].contiguous())
    assert copies.notes == {"q": "its 10 columns of torch.float16 are no multiple of 16 bytes"}


@needs_host_clang
def test_rows_that_are_too_far_apart_for_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results whose rows kernels cannot reach by 32 bits are copied into their order."""
    monkeypatch.setattr(amd, "ROW_BYTES", B * H * DV * 2)
    plain = tensors(torch.float16)
    q, k, v = leaves = [order(x, "sbhd").contiguous().requires_grad_() for x in plain]
    o = attention(q, k, v, mask_mod=MASK, layout="sbhd", device="hip-emulated")
    made = [o.detach(), *torch.autograd.grad(o.square().sum(), leaves)]
    for one, right in zip(made, expected(plain), strict=True):
        assert one.is_contiguous()
        assert_near(one, order(right, "sbhd"), 5e-3)


@pytest.mark.parametrize("layout", [("bhsd", "bshd"), "sbhd"], ids=str)
def test_transforms(layout: Any) -> None:
    """Tangents, second derivatives, torch.compile and torch.export, compared with the same on tensors [B, H, S, D]."""
    given, made = (layout, layout) if isinstance(layout, str) else layout
    plain = inputs(1, 2, 1, 5, 7, 8, 8, torch.float64)
    leaves = [order(x, given).contiguous().requires_grad_() for x in plain]

    def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, mask_mod="b:3,1", layout=layout)

    def formula(*x: torch.Tensor) -> torch.Tensor:
        turned = [order(one, given) if given != "sbhd" else one.permute(1, 2, 0, 3) for one in x]
        return order(reference(*turned, mask_mod=lambda b, h, i, j: (i + 2 - j <= 3) & (j - i - 2 <= 1))[0], made)  # type: ignore[arg-type]

    directions = tuple(torch.randn_like(x) for x in leaves)
    found, wanted = (torch.func.jvp(f, tuple(x.detach() for x in leaves), directions) for f in (ours, formula))
    for one, right in zip(found, wanted, strict=True):
        assert_near(one, right, 1e-10)
        assert one.is_contiguous()
    seconds = []
    for function in (ours, formula):
        grads = torch.autograd.grad(function(*leaves).sin().sum(), leaves, create_graph=True)
        seconds.append(torch.autograd.grad(sum(grad.square().sum() for grad in grads), leaves))  # type: ignore[arg-type]
    for one, right in zip(*seconds, strict=True):
        assert_near(one, right, 1e-9)
    o = ours(*leaves)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)(*leaves)
    assert compiled.is_contiguous()
    assert_near(compiled.detach(), o.detach(), 1e-12)
    for one, right in zip(*(torch.autograd.grad(x.sin().sum(), leaves) for x in (compiled, o)), strict=True):
        assert one.stride() == right.stride()
        assert_near(one, right, 1e-12)


class Layer(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, mask_mod=MASK, layout=("sbhd", "bshd"))


def test_export() -> None:
    plain = tensors()
    given = tuple(order(x, "sbhd").contiguous() for x in plain)
    o = torch.export.export(Layer(), given).module()(*given)
    assert o.is_contiguous()
    assert_near(o, order(expected(plain)[0], "bshd"))


@pytest.mark.parametrize("layout", ["bhsd", ("sbhd", "bhsd")], ids=str)
def test_engine(layout: Any) -> None:
    given, made = (layout, layout) if isinstance(layout, str) else layout
    plain = tensors()
    meta = [meta_tensor(*x.shape, dtype=torch.float32) for x in plain]
    engine = AttentionEngine(
        meta, score_mod=lambda s, custom, b, h, i, j: s * 0.25, mask_mod=MASK, online_func=OnlineSoftmax(), layout=layout
    )
    wanted = expected(plain)
    for run in (engine, torch.compile(engine, backend="aot_eager", fullgraph=True)):
        leaves = [order(x, given).contiguous().requires_grad_() for x in plain]
        o = run(*leaves)
        assert o.is_contiguous()
        assert_near(o.detach(), order(wanted[0], made))
        for grad, right in zip(torch.autograd.grad(o.square().sum(), leaves), wanted[1:], strict=True):
            assert_near(grad, order(right, given))
    with pytest.raises(ArgumentError, match='layout is "bhsd"'):
        AttentionEngine(meta, layout="hbsd")


def test_sizes_of_one_and_nothing() -> None:
    for given, made in PAIRS[1::2]:
        for sq, skv in ((1, 5), (5, 1), (0, 5), (5, 0)):
            q, k, v = (torch.randn(1, 2, length, 8) for length in (sq, skv, skv))
            o = attention(order(q, given), order(k, given), order(v, given), layout=(given, made))
            assert o.shape == order(q, made).shape
            if sq and skv:
                assert_near(o, order(reference(q, k, v)[0], made))
            assert skv or not o.any()


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd"])
def test_results_may_be_changed_in_place(layout: str) -> None:
    q, k, v = (torch.randn(2, 3, 5, 8).requires_grad_() for _ in range(3))
    for _ in range(2):  # the second call repeats the first
        o = attention(q, k, v, layout=layout)  # type: ignore[arg-type]
        doubled = 2.0 * o.detach()
        assert torch.equal(o.mul_(2.0), doubled)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # the backward reads o
            o.sum().backward()
