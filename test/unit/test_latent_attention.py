"""Latent attention (MLA): large head dimensions, and values that are columns of the keys."""

import pytest
import torch

import attn_mlir
from attn_mlir.errors import UnsupportedError


@pytest.mark.parametrize(("dim", "value_dim", "dtype", "tolerance"), [(576, 512, torch.float32, 1e-5), (1024, 1001, torch.bfloat16, 2e-2)])
def test_values_are_columns_of_keys(dim: int, value_dim: int, dtype: torch.dtype, tolerance: float) -> None:
    q = torch.randn(1, 4, 17, dim, dtype=dtype, requires_grad=True)
    latent = torch.randn(1, 1, 70, dim, dtype=dtype, requires_grad=True)
    o = attn_mlir.attention(q, latent, latent[..., :value_dim])
    keys = latent.double()
    wanted = ((q.double() @ keys.mT) / dim**0.5).softmax(-1) @ keys[..., :value_dim]
    do = torch.randn_like(o)
    found, exact = torch.autograd.grad(o, (q, latent), do), torch.autograd.grad(wanted, (q, latent), do.double())
    for a, b in zip([o, *found], [wanted, *exact], strict=True):
        assert (a.double() - b).abs().max() <= tolerance * b.abs().max()


def test_decoding_with_many_heads_of_one_latent_key() -> None:
    q, latent = torch.randn(2, 128, 1, 576), torch.randn(2, 1, 90, 576)
    v = latent[..., :512]
    assert v.data_ptr() == latent.data_ptr()
    wanted = (q.double() @ latent.double().mT / 24).softmax(-1) @ v.double()
    assert (attn_mlir.attention(q, latent, v).double() - wanted).abs().max() < 1e-5
    # The keys of a list, as DSA picks them.
    index = torch.randperm(90)[:40].int().view(1, 1, 1, 40).expand(2, 1, 1, 40)
    chosen = latent[:, :, index[0, 0, 0].long()].double()
    wanted = (q.double() @ chosen.mT / 24).softmax(-1) @ chosen[..., :512]
    o = attn_mlir.attention(q, latent, v, key_index=index, key_block=(1, 1))
    assert (o.double() - wanted).abs().max() < 1e-5


def test_the_emulated_hopper_says_what_it_takes() -> None:
    q, latent = torch.randn(1, 2, 20, 576).half(), torch.randn(1, 1, 70, 576).half()
    with pytest.raises(UnsupportedError, match=r"q has head dimension 576.*take up to 256: compute on the CPU"):
        attn_mlir.attention(q, latent, latent[..., :512], device="cuda-emulated")
