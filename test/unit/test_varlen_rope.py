"""Rotary embeddings of packed sequences: positions count in each sequence, in the mods and in their gradients."""

import pytest
import torch

from attn_mlir import attention, attention_varlen, masks, mods
from varlen_cases import offsets

LENGTHS = [17, 0, 33, 1, 20]


@pytest.mark.parametrize("interleaved", [False, True])
def test_each_sequence_rotates_as_alone(interleaved: bool) -> None:
    """Tables are as long as the longest sequence, so that a position in the packed tensor would be read beyond them."""
    angle = torch.randn(max(LENGTHS), 16)
    cos, sin = angle.cos().requires_grad_(), angle.sin().requires_grad_()
    rope = mods.rope(cos, sin, interleaved=interleaved)
    q, k, v = (torch.randn(sum(LENGTHS), heads, 32, requires_grad=True) for heads in (4, 2, 2))
    options = {"query_mod": rope, "key_mod": rope, "mask_mod": masks.causal()}
    o = attention_varlen(q, k, v, offsets(LENGTHS), **options)
    alone = [
        attention(*(x[None].transpose(1, 2) for x in parts), **options)[0].transpose(0, 1)
        for parts in zip(*(x.split(LENGTHS) for x in (q, k, v)), strict=True)
        if len(parts[0])
    ]
    wanted = torch.cat(alone)
    torch.testing.assert_close(o, wanted, rtol=0, atol=0)
    leaves, do = (q, k, v, cos, sin), torch.randn_like(o)
    for found, right in zip(torch.autograd.grad(o, leaves, do), torch.autograd.grad(wanted, leaves, do), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
