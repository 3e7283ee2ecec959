"""Partial results on GPUs: merged they are the attention to all keys, whatever computes the parts."""

from typing import Any

import pytest
import torch

from attn_mlir import UnsupportedError, attention, attention_varlen, merge, rows
from gpu_cases import GPU
from partial_cases import ROWS, Case, inputs

DEVICES = [("hip-emulated", 16), pytest.param(("cuda", 64), marks=GPU)]
CUTS = (0, 64, 64, 101, 127)
Tensor = torch.Tensor


@pytest.fixture(params=DEVICES, ids=lambda given: given[0])
def made(request: pytest.FixtureRequest) -> tuple[str, Any]:
    """What computes the parts, and what makes inputs of it."""
    device, dim = request.param
    where = "cpu" if device.endswith("emulated") else device

    def given(queries: int, keys: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
        return [x.to(where) for x in inputs(queries, keys, dtype, dim)]

    return device, given


def case_of(row: str, like: Tensor) -> Case:
    return Case(row, torch.tensor([0.5, -1.0, 2.0, 0.0], device=like.device))


@pytest.mark.parametrize(("row", "dtype"), [*((row, torch.bfloat16) for row in ROWS), ("softmax", torch.float16)])
def test_merged_parts_are_the_whole(made: tuple[str, Any], row: str, dtype: torch.dtype) -> None:
    device, given = made
    q, k, v = given(17, 127, dtype)
    case = case_of(row, q)
    p = case.parts(q, k, v, CUTS, device=device)
    wanted = case.reference(q, k, v)
    bound = (1e-3 if dtype == torch.float16 else 8e-3) * wanted.abs().max().item()
    for merged in (merge(*p), merge(p[-1], merge(*p[:-1]))):
        o = merged.finalize()
        assert o.dtype == dtype
        assert (o.double() - wanted).abs().max() <= bound
    assert all(x.dtype == torch.float32 and x.device == q.device for x in (*p[0].accumulators, *p[0].states.values()))
    # Accumulators are not rounded to 16 bits.
    assert all(x.to(dtype).float().ne(x).any() for x in p[0].accumulators)


@pytest.mark.parametrize("row", ["softmax", "two_reductions"])
def test_gradients(made: tuple[str, Any], row: str) -> None:
    device, given = made
    q, k, v = (x.requires_grad_() for x in given(17, 127))
    case = case_of(row, q)
    wrt = [q, k, v, case.slopes.requires_grad_()]
    wanted = case.reference(q, k, v)
    do = torch.randn_like(wanted)
    expected = torch.autograd.grad(wanted, wrt, do)
    o = merge(*case.parts(q, k, v, CUTS, device=device)).finalize()
    assert (o.double() - wanted).abs().max() <= 8e-3 * wanted.abs().max()
    for one, right in zip(torch.autograd.grad(o, wrt, do.bfloat16()), expected, strict=True):
        assert one.dtype == right.dtype
        assert (one - right).abs().max() <= 2e-2 * right.abs().max()


def test_float16_and_transforms_are_told(made: tuple[str, Any]) -> None:
    device, given = made
    q, k, v = given(5, 17, torch.float16)
    with pytest.raises(UnsupportedError, match="pass bfloat16, or compute them on the CPU"):
        attention(q.requires_grad_(), k, v, return_partial=True, device=device)
    q = q.detach()
    with pytest.raises(UnsupportedError, match="take no derivatives"):
        torch.func.jvp(lambda q: attention(q, k, v, return_partial=True, device=device).finalize(), (q,), (q,))


def test_an_end_that_reads_captures_and_rows_without_keys(made: tuple[str, Any]) -> None:
    device, given = made
    q, k, v = given(5, 17)
    sink = torch.tensor([0.3, -1.0, 2.0, 0.5], device=q.device, requires_grad=True)
    row = rows.softmax_sink(sink)
    whole = attention(q, k, v, row=row, device=device)
    limits = ((0, 4), (4, 4), (4, 17))
    o = merge(*(attention(q, k[:, :, a:b], v[:, :, a:b], row=row, return_partial=True, device=device) for a, b in limits)).finalize()
    torch.testing.assert_close(o, whole, atol=1e-2, rtol=1e-2)
    do = torch.randn_like(whole)
    torch.testing.assert_close(*(torch.autograd.grad(x, sink, do)[0] for x in (o, whole)), atol=2e-2, rtol=2e-2)
    case = case_of("softmax", q)
    q, k, v = given(17, 127)
    masked = case.partial(q, k, v, 0, 127, return_lse=True, device=device)
    assert (masked.lse[:, :, 3::5] == -torch.inf).all()
    assert not masked.finalize()[:, :, 3::5].any()


def test_packed_sequences(made: tuple[str, Any]) -> None:
    device, given = made
    q, k, v = (x[0].transpose(0, 1).contiguous().requires_grad_() for x in given(44, 100))
    q_offsets, kv_offsets = (torch.tensor(x, dtype=torch.int32, device=q.device) for x in ((0, 5, 5, 22, 40), (0, 30, 35, 35, 100)))
    whole = attention_varlen(q, k, v, q_offsets, kv_offsets, return_lse=True, device=device)
    p = attention_varlen(q, k, v, q_offsets, kv_offsets, return_lse=True, return_partial=True, device=device)
    torch.testing.assert_close(p.finalize()[:40], whole[0][:40], atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(p.lse[:, :40], whole[1][:, :40], atol=1e-3, rtol=1e-3)
    assert not p.finalize()[40:].any()
    do = torch.randn_like(whole[0])
    do[40:] = 0
    for one, right in zip(*(torch.autograd.grad(o, (q, k, v), do) for o in (p.finalize(), whole[0])), strict=True):
        assert (one - right).abs().max() <= 2e-2 * right.abs().max()
