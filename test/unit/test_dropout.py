"""Dropout: the bits of every kernel are those of `dropout_mask`, and results and gradients those of the dense formula with it."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jvp, vmap

import attn_mlir
from attn_mlir import ArgumentError, OnlineFunc, OnlineSoftmax, attention, dropout_mask, masks, rows
from attn_mlir.philox import philox
from engine_helpers import engine

P, SEED = 0.3, (123456789012345, 77)


Three = tuple[Tensor, Tensor, Tensor]


def qkv(b: int = 2, h: int = 4, hkv: int = 2, sq: int = 37, skv: int = 71, d: int = 16, dtype: Any = torch.float32) -> Three:
    shapes = ((b, h, sq, d), (b, hkv, skv, d), (b, hkv, skv, d))
    q, k, v = (torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes)
    return q, k, v


def fixed(*inputs: Tensor) -> Three:
    """The same without gradients."""
    q, k, v = (x.detach() for x in inputs)
    return q, k, v


def dense(q: Tensor, k: Tensor, v: Tensor, kept: Any, p: float = P, row: Any = None, mask: Any = None) -> Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf)
    w = s.softmax(-1).nan_to_num(0.0) if row is None else row(s)
    return (w * kept / (1 - p)) @ v


def check(got: Callable[..., Tensor], wanted: Callable[..., Tensor], inputs: Sequence[Tensor], tolerance: float = 2e-5) -> None:
    """Compares results and gradients with those of a formula in float64."""
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    o, expected = got(*inputs), wanted(*doubles)
    do = torch.randn_like(o)
    grads = torch.autograd.grad(o, inputs, do), torch.autograd.grad(expected, doubles, do.double())
    for a, b in zip((o, *grads[0]), (expected, *grads[1]), strict=True):
        assert (a.double() - b).abs().max() <= tolerance * max(b.abs().max().item(), 1.0)


def bits(b: int, h: int, sq: int, skv: int, p: float, seed: Any, dtype: Any = torch.float32, hkv: int = 1, **options: Any) -> Tensor:
    """What a kernel keeps: weights are 1, values the identity."""
    v = torch.eye(skv, dtype=dtype).expand(b, hkv, skv, skv)
    q, k = torch.zeros(b, h, sq, 16, dtype=dtype), torch.zeros(b, hkv, skv, 16, dtype=dtype)
    return attention(q, k, v, row=lambda s: s * 0 + 1, dropout_p=p, dropout_seed=seed, **options) > 0.5


def test_philox_gives_the_published_numbers() -> None:
    ones = 2**32 - 1
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((ones, ones, ones, ones), (ones, ones)) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    assert philox(*pi) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float32), ("cpu", torch.bfloat16), ("hip-emulated", torch.float16)])
def test_every_kernel_keeps_what_the_mask_says(device: str, dtype: Any) -> None:
    for seed, p, sizes in ((SEED, P, (2, 4, 33, 131)), ((-1, 2**32 - 1), 0.004, (1, 2, 70, 17)), ((0, 0), 0.998, (1, 2, 1, 130))):
        kept = dropout_mask(*sizes, p, seed)
        assert torch.equal(bits(*sizes, p, seed, dtype, hkv=2, device=device), kept)
        assert kept.shape == sizes and kept.dtype == torch.bool


def test_kernels_of_the_cpu_keep_the_same() -> None:
    """In double precision, with keys that begin within a group, and for a single query, whose heads are packed."""
    assert torch.equal(bits(1, 2, 20, 50, P, SEED, torch.float64), dropout_mask(1, 2, 20, 50, P, SEED))
    assert torch.equal(bits(2, 4, 1, 300, P, SEED), dropout_mask(2, 4, 1, 300, P, SEED))
    window = bits(1, 1, 200, 200, P, SEED, mask_mod=masks.sliding_window(21, 5))
    q, k = torch.arange(200)[:, None], torch.arange(200)
    assert torch.equal(window, dropout_mask(1, 1, 200, 200, P, SEED) & (q - k <= 21) & (k - q <= 5))


@pytest.mark.parametrize("p", [1e-4, 0.1, 1 / 3, 0.5, 0.97, 0.9995])
def test_the_kept_fraction(p: float) -> None:
    kept = dropout_mask(4, 8, 256, 1000, p, (11, 3)).float()
    sigma = math.sqrt(p * (1 - p) / kept.numel())
    assert abs(kept.mean().item() - (1 - p)) < 4 * sigma


def test_the_bits_of_heads_rows_and_keys_are_independent() -> None:
    kept = dropout_mask(2, 4, 128, 512, 0.25, (5, 0)).double() - 0.75
    n = kept.numel() / 8
    flat = kept.reshape(8, -1) / math.sqrt(0.25 * 0.75)
    assert ((flat @ flat.T / n - torch.eye(8)).abs() < 5 / math.sqrt(n)).all()
    for a, b in ((kept[:, :, 1:], kept[:, :, :-1]), *((kept[..., by:], kept[..., :-by]) for by in (1, 2, 3, 4, 8, 12, 16, 32))):
        assert abs((a * b).mean().item()) / (0.25 * 0.75) < 5 / math.sqrt(a.numel())
    counts = kept.reshape(-1, 16).sum(1)  # of groups, which share a call
    assert abs(counts.var().item() / (16 * 0.25 * 0.75) - 1) < 0.02
    others = [dropout_mask(2, 4, 128, 512, 0.25, seed) for seed in ((5, 1), (6, 0), (5 + 2**32, 0), (5, 2**31))]
    for other in others:
        assert abs(((other.double() - 0.75) * kept).mean().item()) / (0.25 * 0.75) < 5 / math.sqrt(kept.numel())


@pytest.mark.parametrize(("device", "dtype", "tolerance"), [
    ("cpu", torch.float32, 2e-5), ("cpu", torch.float64, 1e-12), ("cpu", torch.bfloat16, 2e-2), ("hip-emulated", torch.float16, 3e-3),
])  # fmt: skip
def test_results_and_gradients(device: str, dtype: Any, tolerance: float) -> None:
    """With grouped heads and fully masked rows, and with a seed of either kind."""
    kept, mask = dropout_mask(2, 4, 37, 71, P, SEED), torch.arange(71) < torch.arange(37)[:, None]
    wanted = lambda q, k, v: dense(q, k, v, kept, mask=mask)  # noqa: E731
    for seed in (SEED, torch.tensor(SEED)):
        options = {"mask_mod": lambda b, h, q, k: k < q, "dropout_p": P, "dropout_seed": seed, "device": device}
        check(lambda q, k, v, options=options: attention(q, k, v, **options), wanted, qkv(dtype=dtype), tolerance)
        if device != "cpu":
            break


ROWS: dict[str, tuple[Any, Any]] = {
    "relu": (rows.relu, lambda s: s.relu()),
    "squares": (lambda s: (s - s.max()).exp() ** 2 / (s - s.max()).exp().sum(), lambda s: (s - s.amax(-1, True)).exp() ** 2 / (
        s - s.amax(-1, True)).exp().sum(-1, True)),
    "centred": (lambda s: (s - s.mean()).tanh(), lambda s: (s - s.mean(-1, True)).tanh()),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_any_row(name: str) -> None:
    row, formula = ROWS[name]
    kept = dropout_mask(2, 4, 37, 71, P, SEED)
    check(
        lambda q, k, v: attention(q, k, v, row=row, dropout_p=P, dropout_seed=SEED),
        lambda q, k, v: dense(q, k, v, kept, row=formula),
        qkv(),
    )


def test_statistics_of_the_row_know_nothing_of_it() -> None:
    q, k, v = (x.detach() for x in qkv())
    o, lse = attention(q, k, v, return_lse=True)
    dropped, same = attention(q, k, v, return_lse=True, dropout_p=P, dropout_seed=SEED)
    assert torch.equal(lse, same) and not torch.allclose(o, dropped)


def test_captured_tensors_get_gradients() -> None:
    kept, bias = dropout_mask(2, 4, 37, 71, P, SEED), torch.randn(4, 37, 71)

    def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i, j], dropout_p=P, dropout_seed=SEED)

    def formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return dense(q, k, v, kept, row=lambda s: (s + bias).softmax(-1))

    check(biased, formula, [*qkv(), bias.requires_grad_()])


def test_further_derivatives() -> None:
    kept = dropout_mask(2, 4, 19, 23, P, SEED)
    inputs = fixed(*qkv(sq=19, skv=23, dtype=torch.float64))
    dots = tuple(torch.randn_like(x) for x in inputs)
    call = lambda q, k, v: attention(q, k, v, dropout_p=P, dropout_seed=SEED)  # noqa: E731
    formula = lambda q, k, v: dense(q, k, v, kept)  # noqa: E731
    torch.testing.assert_close(jvp(call, inputs, dots)[1], jvp(formula, inputs, dots)[1])

    def second(function: Any) -> tuple[Tensor, ...]:
        xs = [x.clone().requires_grad_() for x in inputs]
        first = torch.autograd.grad(function(*xs).square().sum(), xs, create_graph=True)
        return torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), xs)

    for got, wanted in zip(second(call), second(formula), strict=True):
        torch.testing.assert_close(got, wanted)


class Derived(OnlineSoftmax):
    """Softmax without a custom VJP."""

    backward = OnlineFunc.backward


@pytest.mark.parametrize("online", [OnlineSoftmax, Derived])
def test_engines(online: type[Any]) -> None:
    inputs = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in qkv(sq=37, skv=37)]
    made = engine(tuple(inputs), online_func=online(), mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, dropout_p=P)
    kept, mask = dropout_mask(2, 4, 37, 37, P, SEED), torch.ones(37, 37, dtype=torch.bool).tril()

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return dense(q * math.sqrt(q.shape[-1]), k, v, kept, mask=mask).transpose(1, 2)

    check(lambda *x: made(*x, dropout_seed=SEED), formula, inputs)
    off = made(*inputs, dropout_p=0.0)
    torch.testing.assert_close(off, engine(tuple(inputs), online_func=online(), mask_mod=masks.causal())(*inputs))
    graph: Any = torch.compile(lambda *x: made(*x, dropout_seed=SEED), backend="aot_eager", fullgraph=True)
    check(graph, formula, inputs)


def test_inside_torch_compile() -> None:
    inputs = qkv()

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=False)
    def compiled(q: Tensor, k: Tensor, v: Tensor, seed: Any) -> Tensor:
        return attention(q, k, v, dropout_p=P, dropout_seed=seed)

    kept = dropout_mask(2, 4, 37, 71, P, SEED)
    for seed in (SEED, torch.tensor(SEED)):
        check(lambda q, k, v, seed=seed: compiled(q, k, v, seed), lambda q, k, v: dense(q, k, v, kept), inputs)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        o = compiled(*inputs, None)
        (dv,) = torch.autograd.grad(o.sum(), inputs[2])
        torch.testing.assert_close((dv * inputs[2]).sum(), o.sum())  # the backward pass keeps the same
        results.append(o)
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_export() -> None:
    class Model(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, seed: Tensor) -> Tensor:
            return attention(q, k, v, dropout_p=P, dropout_seed=seed)

    inputs = fixed(*qkv())
    made = torch.export.export(Model(), (*inputs, torch.tensor((1, 2))))
    torch.testing.assert_close(made.module()(*inputs, torch.tensor(SEED)), dense(*inputs, dropout_mask(2, 4, 37, 71, P, SEED)))


def test_torch_gives_seeds_and_nothing_is_compiled_for_them() -> None:
    inputs = qkv()
    call = attn_mlir.Attention(dropout_p=P)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(call(*inputs))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    assert len({id(call._entry(call._last)[0].programs[0]) for _ in (call(*inputs), call(*inputs, dropout_p=0.7))}) == 1
    saved = torch.utils.checkpoint.checkpoint(call, *inputs, use_reentrant=False)
    (dv,) = torch.autograd.grad(saved.sum(), inputs[2])
    torch.testing.assert_close((dv * inputs[2]).sum(), saved.sum())


def test_the_ends_of_the_range() -> None:
    inputs = fixed(*qkv())
    assert torch.equal(attention(*inputs, dropout_p=0.0, dropout_seed=SEED), attention(*inputs))
    assert not attention(*inputs, dropout_p=1.0).any() and not dropout_mask(1, 2, 3, 4, 1.0, SEED).any()
    assert dropout_mask(1, 2, 3, 4, 0, SEED).all() and dropout_mask(1, 1, 0, 5, P, SEED).shape == (1, 1, 0, 5)


def test_vmap_follows_its_randomness() -> None:
    q, k, v = fixed(*qkv(b=1, sq=5, skv=9))
    call = lambda q: attention(q, k, v, dropout_p=P)  # noqa: E731
    two = torch.stack([q, q])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(call)(two)
    same, different = (vmap(call, randomness=how)(two) for how in ("same", "different"))
    assert torch.equal(same[0], same[1]) and not torch.equal(different[0], different[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout_p": -0.1}, "dropout_p must lie between 0 and 1, got -0.1"),
        ({"dropout_p": 1.5}, "between 0 and 1"),
        ({"dropout_p": math.nan}, "between 0 and 1"),
        ({"dropout_p": "0.1"}, "dropout_p must be a number"),
        ({"dropout_p": True}, "dropout_p must be a number"),
        ({"dropout_p": P, "dropout_seed": 3}, r"dropout_seed is \(seed, offset\).*; got int"),
        ({"dropout_p": P, "dropout_seed": (1, 2, 3)}, "a tuple of 3"),
        ({"dropout_p": P, "dropout_seed": (1.5, 2)}, "its seed is a float"),
        ({"dropout_p": P, "dropout_seed": (1, 2**64)}, "its offset does not fit 64 bits"),
        ({"dropout_p": P, "dropout_seed": torch.zeros(2)}, "a tensor of torch.float32"),
        ({"dropout_p": P, "dropout_seed": (torch.zeros(3, dtype=torch.int64), 0)}, "its seed is a tensor"),
        ({"dropout_seed": "x"}, "dropout_seed is"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        attention(*qkv(), **options)
