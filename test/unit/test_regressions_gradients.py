"""Gradients that once were wrong, or could not be computed."""

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import attn_mlir


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_scan_of_values_behind_captured_integers(dtype: torch.dtype) -> None:
    """The backward sums do v over the present keys first; its kernel takes the lengths before any tensor of scores."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 5, 4, generator=generator, dtype=dtype, requires_grad=True) for _ in range(3))
    gain = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([3, 4])

    def centred(s):
        return s - s.mean()

    def within(b, h, q_idx, kv_idx):
        return kv_idx < lengths[b]

    o = attn_mlir.attention(q, k, v, row=centred, mask_mod=within, value_mod=lambda x: x * gain)
    present = (torch.arange(5) < lengths[:, None])[:, None, None, :].to(dtype)
    scores = q @ k.transpose(-1, -2) / 2
    mean = (scores * present).sum(-1, keepdim=True) / present.sum(-1, keepdim=True)
    expected = (scores - mean) * present @ (v * gain)
    upstream = torch.randn(o.shape, generator=generator, dtype=dtype)
    found = torch.autograd.grad(o, (q, k, v, gain), upstream)
    wanted = torch.autograd.grad(expected, (q, k, v, gain), upstream.to(expected.dtype))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), rtol=1e-5, atol=1e-5 if dtype == torch.float32 else 1e-12)


def _one(q: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return attn_mlir.attention(q, q, q, score_mod=lambda score, b, h, q_idx, kv_idx: score * gain[h])


def test_vmap_over_nothing() -> None:
    q, gain = torch.randn(0, 1, 2, 3, 4), torch.randn(0, 2)
    assert torch.vmap(_one)(q, gain).shape == (0, 1, 2, 3, 4)
    gradients = torch.vmap(torch.func.grad(lambda q, gain: _one(q, gain).sum(), (0, 1)))(q, gain)
    assert [tuple(x.shape) for x in gradients] == [(0, 1, 2, 3, 4), (0, 2)]


def test_tangent_of_vmap() -> None:
    generator = torch.Generator().manual_seed(1)
    q, dq = (torch.randn(3, 1, 2, 5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    gain, dgain = (torch.randn(2, generator=generator, dtype=torch.float64) for _ in range(2))
    found = torch.func.jvp(lambda q, gain: torch.vmap(_one, (0, None))(q, gain), (q, gain), (dq, dgain))
    for i in range(3):
        expected = torch.func.jvp(_one, (q[i], gain), (dq[i], dgain))
        torch.testing.assert_close((found[0][i], found[1][i]), expected[:2], rtol=0, atol=1e-14)


def test_the_output_of_a_jvp_has_a_gradient_and_so_has_its_tangent() -> None:
    generator = torch.Generator().manual_seed(5)
    x, direction = (torch.randn(1, 2, 9, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    weight = torch.randn(4, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    found = []
    for attend in (attn_mlir.attention, torch.nn.functional.scaled_dot_product_attention):
        with sdpa_kernel(SDPBackend.MATH):
            o, change = torch.func.jvp(lambda x, attend=attend: attend(x @ weight, x, x), (x,), (direction,))[:2]
            losses = ((o - change.detach()).square().sum(), change.square().sum())
            found.append([torch.autograd.grad(loss, weight, retain_graph=True)[0] for loss in losses])
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-11)


def test_a_numpy_array_may_change_before_the_backward() -> None:
    q, k, v = (torch.randn(1, 1, 7, 4, requires_grad=True) for _ in range(3))
    bias = np.random.default_rng(0).normal(size=(7, 7)).astype("f")
    o = attn_mlir.attention(q, k, v, score_mod=lambda score, b, h, q_idx, kv_idx: score + bias[q_idx, kv_idx])
    wanted = torch.autograd.grad(o.sum(), v, retain_graph=True)[0]
    bias[:] = 0
    assert torch.equal(torch.autograd.grad(o.sum(), v)[0], wanted)
