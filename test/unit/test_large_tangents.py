"""Tangents and second derivatives of a sigmoid far below 0: exp(-s) times a tangent leaves the range of f32 if it is not divided first."""

from typing import Any

import torch
from torch import Tensor

from attn_mlir import Attention, rows


def test_sigmoids_far_below_zero() -> None:
    generator = torch.Generator().manual_seed(5)
    tensors = [torch.randn(1, 1, length, 16, generator=generator) for length in (5, 33, 33)]
    # Scores of -88 to 2: exp(-s) is up to 1e38.
    tensors[0][..., 0], tensors[1][..., 0] = 344.0, torch.linspace(-1.02, 0.02, 33)
    tensors[0][..., 1:] *= 0.01
    directions = [torch.randn(x.shape, generator=generator) for x in tensors]

    def made(run: Any, to: torch.dtype) -> list[Tensor]:
        primals, tangents = ([x.to(to) for x in given] for given in (tensors, directions))
        moved = torch.func.jvp(run, tuple(primals), tuple(tangents))[1]
        leaves = [x.requires_grad_() for x in primals]
        first = torch.autograd.grad(run(*leaves).sum(), leaves, create_graph=True)
        return [moved, *torch.autograd.grad(first, leaves, tangents, materialize_grads=True, allow_unused=True)]

    for ours, plain in ((rows.sigmoid, torch.sigmoid), (torch.nn.functional.silu, torch.nn.functional.silu)):
        got = made(Attention(row=ours), torch.float32)
        exact = made(lambda q, k, v, f=plain: f(q @ k.mT / 4) @ v, torch.float64)
        for x, wanted in zip(got, exact, strict=True):
            assert x.isfinite().all()
            assert (x - wanted).abs().max() <= 1e-4 * wanted.abs().max()
