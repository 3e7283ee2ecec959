"""Captured tensors may be called what derivative functions call their own arguments."""

from typing import Any, cast

import pytest
import torch

import attn_mlir


@pytest.mark.parametrize("name", ["o", "do", "saved_max", "dd_q"])
def test_any_name(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 2, 9, 4, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, generator=generator, dtype=torch.float64, requires_grad=True)
    scope = {name: bias}
    exec(f"def score_mod(score, b, h, q_idx, kv_idx): return score * {name}[h] + {name}[h]", scope)
    o, lse = attn_mlir.attention(q, k, v, score_mod=cast(Any, scope["score_mod"]), return_lse=True)
    s = (q @ k.transpose(-1, -2) / 2) * bias.view(2, 1, 1) + bias.view(2, 1, 1)
    wanted = torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)
    inputs = (q, k, v, bias)
    seeds = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in wanted]
    got = torch.autograd.grad((o, lse), inputs, seeds, create_graph=True)
    expected = torch.autograd.grad(wanted, inputs, seeds, create_graph=True)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    twice = torch.autograd.grad([g.square().sum() for g in got], inputs)
    for a, b in zip(twice, torch.autograd.grad([g.square().sum() for g in expected], inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
