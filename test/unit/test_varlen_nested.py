"""Jagged nested tensors in `attention`: those of torch's scaled_dot_product_attention, forward and backward."""

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attn_mlir import ArgumentError, UnsupportedError, attention, masks

LENGTHS = (5, 17, 1, 40)


def jagged(heads: int = 2) -> torch.Tensor:
    parts = [torch.randn(n, heads, 16) for n in LENGTHS]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


def parts_of(tensor: Any) -> list[torch.Tensor]:
    return list(tensor.unbind())


def test_o_lse_and_gradients_are_those_of_each_sequence() -> None:
    q, k, v = jagged(), jagged(), jagged()
    o, lse = attention(q, k, v, mask_mod=masks.causal(), layout="bshd", return_lse=True)
    assert o.is_nested and o.shape == q.shape and lse.dim() == 3
    got = torch.autograd.grad(o.values().square().sum(), (q, k, v))
    alone = [[x.detach().transpose(0, 1)[None].requires_grad_() for x in parts] for parts in zip(*map(parts_of, (q, k, v)), strict=True)]
    for number, inputs in enumerate(alone):
        wanted = scaled_dot_product_attention(*inputs, is_causal=True)
        torch.testing.assert_close(parts_of(o)[number], wanted[0].transpose(0, 1))
        scores = torch.einsum("bhid,bhjd->bhij", inputs[0], inputs[1]) / 4.0
        scores = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(1), -torch.inf)
        torch.testing.assert_close(parts_of(lse)[number], scores.logsumexp(-1)[0])
        gradients = torch.autograd.grad(wanted.square().sum(), inputs)
        for mine, theirs in zip(got, gradients, strict=True):
            torch.testing.assert_close(parts_of(mine)[number], theirs[0].transpose(0, 1))


def test_heads_first_as_torch_takes_them() -> None:
    q, k, v = (jagged().detach().transpose(1, 2) for _ in range(3))
    o = attention(q, k, v)
    assert o.shape == q.shape
    wanted = scaled_dot_product_attention(q, k, v)
    for mine, theirs in zip(parts_of(o), parts_of(wanted), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_refusals() -> None:
    q = jagged().detach()
    with pytest.raises(ArgumentError, match="k is not a jagged nested tensor"):
        attention(q, torch.randn(4, 17, 2, 16), q, layout="bshd")
    with pytest.raises(ArgumentError, match=r"q must be \[batch, head, jagged, dim\]"):
        attention(q, q, q)
    with pytest.raises(ArgumentError, match="v is a nested tensor with other lengths than k"):
        attention(q, q, torch.nested.nested_tensor([torch.randn(n, 2, 16) for n in (5, 17, 2, 39)], layout=torch.jagged), layout="bshd")
    with pytest.raises(UnsupportedError, match="extra_qk takes no nested tensors"):
        attention(q, q, q, layout="bshd", extra_qk=[(q, q)])
