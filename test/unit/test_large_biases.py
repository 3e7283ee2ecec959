"""Large finite numbers that captured tensors add to scores, as masks of floats do, on every device: forward, backward, tangents, parts."""

from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir import attention, merge, mods

F32, BF16 = torch.finfo(torch.float32).min, torch.finfo(torch.bfloat16).min
DEVICES = ["cpu", "cuda-emulated", "cuda-emulated-sm80", pytest.param("hip-emulated", marks=needs_host_clang)]
TWO = ["cuda-emulated", pytest.param("hip-emulated", marks=needs_host_clang)]
S, D = 200, 64
I, J = torch.arange(S)[:, None], torch.arange(S)
HIDDEN = (J < 150) | (I < 20) | (I > 190)
"""The first blocks of all rows, and all of some rows."""


def inputs(count: int = 4) -> list[torch.Tensor]:
    return [torch.randn(1, 2, S, D).half() for _ in range(count)]


def dense(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Scores with the rounding of float32, in which a bias may swallow them."""
    return ((q.double() @ k.double().mT / 8).float() + bias.float()).double()


def expected(scores: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor) -> list[torch.Tensor]:
    """The output and the gradients of q, k and v."""
    w = scores.softmax(-1).nan_to_num(0.0)
    dp = do.double() @ v.double().mT
    ds = w * (dp - (w * dp).sum(-1, True)) / 8
    return [w @ v.double(), ds @ k.double(), ds.mT @ q.double(), w.mT @ do.double()]


def check(found: Any, right: Any) -> None:
    for got, want in zip(found, right, strict=True):
        assert (got.detach().double() - want).abs().max() < 6e-3 * (1 + want.abs().max())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("low", "dtype"), [(F32, torch.float32), (BF16, torch.bfloat16), (-1e9, torch.float32), (1e30, torch.float32)])
def test_dense_masks(low: float, dtype: torch.dtype, device: str) -> None:
    """As transformers make them: rows of one number have equal weights, others none where that number is."""
    q, k, v, do = inputs()
    bias = torch.zeros(1, 1, S, S).masked_fill(HIDDEN, low).to(dtype)
    wanted = [x.requires_grad_() for x in (q, k, v)]
    o, lse = attention(q, k, v, score_mod=mods.bias(bias), device=device, return_lse=True)
    scores = dense(q.detach(), k.detach(), bias)
    check([o, *torch.autograd.grad(o, wanted, do)], expected(scores, q.detach(), k.detach(), v.detach(), do))
    assert ((lse.double() / scores.logsumexp(-1)).nan_to_num() - 1).abs().max() < 1e-3


@pytest.mark.parametrize("device", TWO)
def test_other_functions(device: str) -> None:
    """Numbers of keys, of differences, chosen ones, and temperatures of them."""
    q, k, v, _ = inputs()
    factor = torch.tensor([1.3, 0.7])
    for low in (-1e30, -1e10):
        keys = torch.stack([torch.where(torch.arange(S) < 150, low, 0.0), torch.full((S,), low)])
        table = torch.full((2 * S,), low)
        table[:S] = 0.0
        right = dense(q, k, keys[None, :, None])
        functions = {
            "keys": (lambda s, b, h, i, j, t=keys: s + t[h, j], right),
            "chosen": (
                lambda s, b, h, i, j, t=keys: torch.where(t[h, j] < 0, t[h, j], s),
                torch.where(keys[None, :, None] < 0, low, right),
            ),
            "literal": (lambda s, b, h, i, j, low=low: torch.where(i < 50, s, low), torch.where(I < 50, dense(q, k, torch.zeros(1)), low)),
            "temperature": (lambda s, b, h, i, j, t=keys: (s + t[h, j]) * 1.3, (right.float() * 1.3).double()),
            "by head": (lambda s, b, h, i, j, t=keys: (s + t[h, j]) * factor[h], (right.float() * factor[:, None, None]).double()),
            "table": (lambda s, b, h, i, j, t=table: s + t[i - j + S], dense(q, k, table[I - J + S])),
        }
        for name, (function, scores) in functions.items():
            o = attention(q, k, v, score_mod=function, device=device)
            want = scores.softmax(-1) @ v.double()
            assert (o.double() - want).abs().max() < 6e-3, (name, low)


@pytest.mark.parametrize("device", DEVICES)
def test_windows(device: str) -> None:
    """A mask that may leave fully masked rows: a row of the lowest number is none."""
    q, k, v, do = inputs()
    bias = torch.zeros(1, 1, S, S).masked_fill(HIDDEN, F32)
    wanted = [x.requires_grad_() for x in (q, k, v)]
    o = attention(q, k, v, score_mod=mods.bias(bias), mask_mod=lambda b, h, i, j: (i - j >= 3) & (i - j < 40), device=device)
    seen = (I - J >= 3) & (I - J < 40)
    scores = dense(q.detach(), k.detach(), bias).masked_fill(~seen, -torch.inf)
    check([o, *torch.autograd.grad(o, wanted, do)], expected(scores, q.detach(), k.detach(), v.detach(), do))
    assert (o[:, :, :3] == 0).all()


@pytest.mark.parametrize("device", ["cpu", *TWO])
def test_parts_of_keys(device: str) -> None:
    q, k, v, _ = inputs()
    bias = torch.zeros(1, 1, S, S).masked_fill(HIDDEN, F32)
    made = [
        attention(q, k[:, :, a:b], v[:, :, a:b], score_mod=mods.bias(bias), device=device, return_partial=True, kv_offset=a, kv_len=S)
        for a, b in ((0, 70), (70, 150), (150, S))
    ]
    assert (merge(*made).finalize().double() - dense(q, k, bias).softmax(-1) @ v.double()).abs().max() < 6e-3


@pytest.mark.parametrize("device", ["cpu", *TWO])
def test_tangents(device: str) -> None:
    q, k, v, _ = inputs()
    tangents = inputs(3)
    bias = torch.zeros(1, 1, S, S).masked_fill(HIDDEN, -1e30)
    with torch.autograd.forward_ad.dual_level():
        x, y, z = (torch.autograd.forward_ad.make_dual(x, t) for x, t in zip((q, k, v), tangents, strict=True))
        found = torch.autograd.forward_ad.unpack_dual(attention(x, y, z, score_mod=mods.bias(bias), device=device)).tangent
    w = dense(q, k, bias).softmax(-1)
    dq, dk, dv = (t.double() for t in tangents)
    ds = (dq @ k.double().mT + q.double() @ dk.mT) / 8
    right = (w * (ds - (w * ds).sum(-1, True))) @ v.double() + w @ dv
    check([found], [right])


def test_what_emulation_rounds() -> None:
    """A multiply-add rounds once, and the product that it takes from was rounded before, as on a GPU: the residual is there."""
    from attn_mlir.dialects import load_all
    from attn_mlir.mlir import LOCK, ir
    from attn_mlir.passes.regions import find_all
    from attn_mlir.reference.warp.program import Inst

    text = """func.func @f(%x: f32, %c: f32) -> f32 {
      %product = arith.mulf %x, %c : f32
      %minus = arith.negf %product : f32
      %residual = math.fma %x, %c, %minus : f32
      return %residual : f32
    }"""
    with LOCK, ir.Context() as context:
        load_all(context)
        module = ir.Module.parse(text)
        ops = {op.name: Inst(op, {}).scalar for op in find_all(module.operation, "arith.mulf", "math.fma")}
    product, fma = ops["arith.mulf"], ops["math.fma"]
    assert product is not None and fma is not None
    x, c = 1e9, float(torch.tensor(1.442695).float())
    assert 1.0 < abs(float(fma(x, c, -product(x, c)))) <= 64.0


def test_columns_beyond_the_end_cost_nothing() -> None:
    """A weight is 0 where the score is -inf, as the difference to a running maximum is -inf then: kernels need not ask again."""
    from attn_mlir import Attention
    from attn_mlir.backends.nvidia import driver, pipeline
    from attn_mlir.backends.program import prepare_derivative
    from attn_mlir.frontend.emit import Inputs

    call = Attention(score_mod=mods.bias(torch.zeros(1, 1, 8, 8)))
    call.__dict__.update(_last=Inputs("f16", 64, 64), _form=None)
    form = prepare_derivative("fwd", ("q", "k", "v"), pipeline.outline("sm_90a"))
    _, units = driver._lower(call.ir(), *form, {"arch": "sm_90a", "emitter": "hopper"})  # pyright: ignore[reportPrivateUsage]
    (source,) = [unit.code.source for unit in units.values()]
    assert "- max_new" in source
    assert "? weight" not in source


NUMBER = -1e9
SEEN = (torch.arange(S) >= 150).long()
INTEGERS = torch.where(HIDDEN, -(10**9), 0).int()
HALVES = torch.zeros(S, S).masked_fill(HIDDEN, -65504.0).half()
FEW = (I >= 2) & (I + J > 3)
PLACES = {
    "a number of Python's, where": (
        lambda s, b, h, i, j: torch.where(i >= 50, s, s + NUMBER),
        lambda s: torch.where(I >= 50, s, s + NUMBER),
    ),
    "a number of Python's, everywhere": (lambda s, b, h, i, j: s + NUMBER, lambda s: s + NUMBER),
    "an integer times a number": (lambda s, b, h, i, j: s + (1 - SEEN[j]) * NUMBER, lambda s: s + (1 - SEEN) * NUMBER),
    "integers": (lambda s, b, h, i, j: s + INTEGERS[i, j], lambda s: s + INTEGERS),
    "a multiple of halves": (lambda s, b, h, i, j: s + HALVES[i, j] * 200.0, lambda s: s + HALVES.float() * 200),
    "a literal": (lambda s, b, h, i, j: torch.where((i >= 2) & (i + j > 3), s - 1e6, s), lambda s: torch.where(FEW, s - 1e6, s)),
}


@pytest.mark.parametrize("device", ["cpu", *TWO])
@pytest.mark.parametrize("name", list(PLACES))
def test_where_they_come_from(name: str, device: str) -> None:
    """Whatever large numbers are made of, and where large begins: rows of one number have equal weights, others their own."""
    function, score = PLACES[name]
    q, k, v, do = inputs()
    wanted = [x.requires_grad_() for x in (q, k, v)]
    o = attention(q, k, v, score_mod=function, device=device)
    scores = score(dense(q.detach(), k.detach(), torch.zeros(1)).float()).double()
    check([o, *torch.autograd.grad(o, wanted, do)], expected(scores, q.detach(), k.detach(), v.detach(), do))


def test_long_products_are_decided_once() -> None:
    """What a product of products is made of is asked of each once."""
    numbers = torch.ones(S)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        factor = numbers[j]
        for _ in range(40):
            factor = factor * factor
        return s * factor

    q, k, v, _ = inputs()
    o = attention(q, k, v, score_mod=score, device="cuda-emulated")
    assert (o.double() - dense(q, k, torch.zeros(1)).softmax(-1) @ v.double()).abs().max() < 6e-3
