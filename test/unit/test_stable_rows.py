"""Rows that do not overflow as written do not in online form: outputs and gradients against the dense formula in f32 and f64."""

import pytest
import torch

import attn_mlir
import stable_rows
from stable_rows import Row, check_stable, dense, of_row, with_gradients

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
TOLERANCE = {F32: 5e-4, F16: 1e-2, BF16: 4e-2}
PRESENT = torch.arange(70) <= 9 * torch.arange(8)[:, None]
CASES = [
    *[(row, F32) for row in ("softpick", "sinh", "floor_of_scores", "mean_centred", "half_exponents")],
    *[(row, F16) for row in ("softpick", "fourth_power", "fourth_power_normalised", "unshifted")],
    ("softpick", BF16),
    ("half_exponents", BF16),
]


def steps(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    """1, 10, 19... keys: rows of one key, of a part of a block, and of two blocks."""
    return j <= 9 * i


def inputs(dtype: torch.dtype, size: float) -> list[torch.Tensor]:
    """q, k, v and the gradient of o, for 8 queries and 70 keys; scores are about `size`."""
    generator = torch.Generator().manual_seed(3)
    q, k, v, do = (torch.randn(1, 1, length, 16, generator=generator) for length in (8, 70, 70, 8))
    return [x.to(dtype) for x in (q * size, k, v, do)]


def compare(row: Row, tensors: list[torch.Tensor], present: torch.Tensor, run: attn_mlir.Attention) -> None:
    *qkv, do = tensors
    exact, single = (with_gradients(of_row(row, present), [t.to(to) for t in qkv], do) for to in (torch.float64, F32))
    least = [0.0, *[0.1 * float(x.abs().max()) for x in (qkv[1], qkv[0])], 0.0]
    check_stable(with_gradients(run, qkv, do), exact, single, least, TOLERANCE[qkv[0].dtype])


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_large_scores(name: str, dtype: torch.dtype) -> None:
    row = getattr(stable_rows, name)
    run = attn_mlir.Attention(row=row, mask_mod=steps)
    for size in (1.0, 20.0, 300.0):
        compare(row, inputs(dtype, size), PRESENT, run)


@pytest.mark.parametrize("name", ["sinh_squared", "softpick", "over_largest_difference"])
def test_small_scores(name: str) -> None:
    """Multiplied out, (exp(s - m) - exp(-s - m))^2 has terms of size 1 of which nothing is left; such differences attain a maximum."""
    row = getattr(stable_rows, name)
    run = attn_mlir.Attention(row=row)
    present = torch.ones(16, 200, dtype=torch.bool)
    for seed in range(3, 6):
        generator = torch.Generator().manual_seed(seed)
        q, k, v, do = (torch.randn(1, 1, length, 16, generator=generator) for length in (16, 200, 200, 16))
        for size in (1e-3, 1e-1):
            compare(row, [q * size, k, v, do], present, run)


@pytest.mark.parametrize("name", ["softpick", "floor_of_scores", "mean_centred"])
def test_blocks_far_apart(name: str) -> None:
    """A first block far below the next, and the reverse; equal scores; one far above the rest; one key; no key."""
    row, length = getattr(stable_rows, name), 200
    steps = [
        torch.where(torch.arange(length) < 64, -300.0, 300.0),
        torch.where(torch.arange(length) == 150, 1e4, -1e4),
        torch.full((length,), -20.0),
    ]
    k = torch.stack([*steps, torch.linspace(-80, 80, length)], 1)[None, None]
    q = torch.cat([torch.eye(4), -torch.eye(4)])[None, None] * 2.0
    v = torch.randn(1, 1, length, 4)
    present = torch.ones(8, length, dtype=torch.bool)
    present[1, 1:], present[6] = False, False

    def mask(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return ((i != 1) | (j < 1)) & (i != 6)

    compare(row, [q, k, v, torch.randn(1, 1, 8, 4)], present, attn_mlir.Attention(row=row, mask_mod=mask))


def test_infinite_scores() -> None:
    """A score of -inf from a score_mod is a key of weight 0 where the formula says so."""
    row = stable_rows.above_floor

    def mod(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return torch.where(j < 66, -torch.inf, score)

    q, k, v, _ = inputs(F32, 300.0)
    o = attn_mlir.attention(q, k, v, row=row, score_mod=mod)
    wanted = (
        torch.stack([row(torch.where(torch.arange(70) < 66, -torch.inf, s)) for s in (q.double() @ k.double().mT / 4)[0, 0]])
        @ v[0, 0].double()
    )
    assert (o[0, 0] - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["unshifted", "score_times_softmax"])
def test_emulated_gpu(name: str) -> None:
    """Weights of f16, on the way of GPUs, which rescale only now and then."""
    row, (q, k, v, _) = getattr(stable_rows, name), inputs(F16, 20.0)
    o = attn_mlir.attention(q, k, v, row=row, device="hip-emulated")
    wanted = dense(row, q.double(), k.double(), v.double(), torch.ones(8, 70, dtype=torch.bool))
    assert (o - wanted).abs().max() < 4e-3 * wanted.abs().max()


def test_gradients_on_an_emulated_gpu() -> None:
    """A maximum of computed values, on the way of GPUs: <do, o> would carry what rounding weights to f16 did to o."""
    generator = torch.Generator().manual_seed(3)
    q, k, v, do = (torch.randn(1, 2, length, 16, generator=generator).to(F16) for length in (9, 21, 21, 9))
    q, present = q * 300, torch.ones(9, 21, dtype=torch.bool).tril(12)
    run = attn_mlir.Attention(row=stable_rows.sinh, mask_mod=attn_mlir.masks.causal("bottom_right"), device="hip-emulated")
    exact, single = (
        with_gradients(of_row(stable_rows.sinh, present), [t.to(to) for t in (q, k, v)], do) for to in (torch.float64, torch.float32)
    )
    check_stable(with_gradients(run, [q, k, v], do), exact, single, [0.0] * 4, 1e-2)


def test_large_tangents_on_an_emulated_gpu() -> None:
    """exp(s - max) times a tangent of 100 is in range of f16, also where the maximum that is kept is lower than the real one."""
    q, k, v, t = inputs(F16, 1.0)
    t = t * 100

    def f(q: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.double().mT / 4, -1) @ v.double()

    wanted = torch.func.jvp(f, (q.double(),), (t.double(),))[1]
    got = torch.func.jvp(lambda q: attn_mlir.attention(q, k, v, device="hip-emulated"), (q,), (t,))[1]
    assert (got - wanted).abs().max() < 4e-3 * wanted.abs().max()
