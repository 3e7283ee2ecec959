"""Rows that are stable as written, on an NVIDIA GPU: outputs and gradients at large scores in 16 bits, and large tangents."""

import pytest
import torch

import attn_mlir
import stable_rows
from attn_mlir import masks
from gpu_cases import GPU
from stable_rows import check_stable, dense, of_row, with_gradients

pytestmark = GPU

TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 4e-2}
ROWS = ("softpick", "sinh", "floor_of_scores", "mean_centred", "half_exponents", "fourth_power", "unshifted", "squares_normalised")


def inputs(dtype: torch.dtype, size: float) -> list[torch.Tensor]:
    """q, k, v and the gradient of o for 40 queries and 200 keys, on the CPU."""
    generator = torch.Generator().manual_seed(3)
    q, k, v, do = (torch.randn(1, 2, length, 64, generator=generator) for length in (40, 200, 200, 40))
    return [x.to(dtype) for x in (q * size, k, v, do)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ROWS)
def test_large_scores(name: str, dtype: torch.dtype) -> None:
    row = getattr(stable_rows, name)
    present = torch.ones(40, 200, dtype=torch.bool).tril(160)
    run = attn_mlir.Attention(row=row, mask_mod=masks.causal("bottom_right"))
    for size in (1.0, 20.0, 300.0):
        *qkv, do = inputs(dtype, size)
        exact, single = (with_gradients(of_row(row, present), [t.to(to) for t in qkv], do) for to in (torch.float64, torch.float32))
        got = with_gradients(run, [x.cuda() for x in qkv], do.cuda())
        least = [0.0, *[0.1 * float(x.abs().max()) for x in (qkv[1], qkv[0])], 0.0]
        check_stable(got, exact, single, least, TOLERANCE[dtype])


def test_large_factor_beside_exponentials() -> None:
    """s exp(s - max) is in range of f16 while it is no more than 65504."""
    q, k, v, _ = inputs(torch.float16, 100.0)
    o = attn_mlir.attention(q.cuda(), k.cuda(), v.cuda(), row=stable_rows.score_times_softmax).cpu()
    wanted = dense(stable_rows.score_times_softmax, q.double(), k.double(), v.double(), torch.ones(40, 200, dtype=torch.bool))
    assert (o - wanted).abs().max() < 4e-3 * wanted.abs().max()


def test_large_tangents() -> None:
    """exp(s - max) times a tangent of 300 is in range of f16, also where the maximum that is kept is lower than the real one."""
    q, k, v, t = inputs(torch.float16, 1.0)
    t = t * 300

    def f(q: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.double().mT / 8, -1) @ v.double()

    wanted = torch.func.jvp(f, (q.double(),), (t.double(),))[1]
    key, value = k.cuda(), v.cuda()
    got = torch.func.jvp(lambda q: attn_mlir.attention(q, key, value), (q.cuda(),), (t.cuda(),))[1]
    assert (got.cpu() - wanted).abs().max() < 4e-3 * wanted.abs().max()
