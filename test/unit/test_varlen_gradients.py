"""Gradients of attention_varlen on the CPU: of q, k, v and captures against float64, the same bits in every run and for any threads."""

import pytest
import torch

from attn_mlir import attention_varlen, masks
from varlen_cases import CASES, LENGTHS, offsets


@pytest.mark.parametrize("name", list(CASES))
def test_gradients_are_those_of_float64(name: str) -> None:
    case = CASES[name]()
    q, k, v = case.tensors(LENGTHS)
    inputs = [q, k, v, *case.captures]
    o, lse = case.run(q, k, v, LENGTHS, return_lse=True)
    wanted, wanted_lse = case.reference(q, k, v, LENGTHS)
    torch.testing.assert_close(o.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5, atol=1e-5)
    d_o, d_lse = torch.randn_like(o), torch.where(torch.isfinite(lse), torch.randn_like(lse), 0.0)
    some = torch.isfinite(lse)
    got = torch.autograd.grad((o * d_o).sum() + (lse * d_lse)[some].sum(), inputs)
    exact = torch.autograd.grad((wanted * d_o).sum() + (wanted_lse * d_lse)[some].sum(), inputs)
    for mine, theirs in zip(got, exact, strict=True):
        assert torch.isfinite(mine).all()
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


def test_same_bits_for_any_number_of_threads() -> None:
    """One long sequence among many short ones: its keys are cut into chunks with sums of their own."""
    lengths = ([1500, *[5] * 40, 0, 700], [1500, *[9] * 40, 3, 700])
    case = CASES["alibi"]()
    q, k, v = case.tensors(lengths)
    inputs = [q, k, v, *case.captures]
    found = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            o = case.run(q, k, v, lengths)
            found.append([o, *torch.autograd.grad(o.square().sum(), inputs)])
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    wanted, _ = case.reference(q, k, v, lengths)
    exact = torch.autograd.grad(wanted.square().sum(), inputs)
    for mine, theirs in zip(found[0][1:], exact, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


def test_gradients_of_rows_and_keys_of_no_sequence_are_zero() -> None:
    q, k, v = (torch.randn(n, 2, 16, requires_grad=True) for n in (30, 40, 40))
    used = torch.tensor([7, 0], dtype=torch.int32)
    o = attention_varlen(q, k, v, offsets([10, 12]), offsets([20, 15]), seqused_k=used, mask_mod=masks.causal("bottom_right"))
    d_q, d_k, d_v = torch.autograd.grad(o.square().sum(), (q, k, v))
    assert (d_q[10:] == 0).all() and (d_k[7:] == 0).all() and (d_v[7:] == 0).all()
    assert all((x[:7] != 0).any() for x in (d_q, d_k, d_v))


def test_16_bits() -> None:
    """Grouped heads in bfloat16: what rounding takes from o is kept for the backward, as in `attention`."""
    case = CASES["alibi"]()
    q, k, v = case.tensors(LENGTHS, torch.bfloat16)
    inputs = [q, k, v, *case.captures]
    o = case.run(q, k, v, LENGTHS)
    wanted, _ = case.reference(q, k, v, LENGTHS)
    torch.testing.assert_close(o.double(), wanted, rtol=2e-2, atol=2e-2)
    d_o = torch.randn_like(o)
    got, exact = torch.autograd.grad((o * d_o).sum(), inputs), torch.autograd.grad((wanted * d_o).sum(), inputs)
    for mine, theirs in zip(got, exact, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=5e-2, atol=2e-2 * float(theirs.abs().max()))
