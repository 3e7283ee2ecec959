"""attention_varlen on the CPU, forward: against float64, against `attention` bit for bit, rows and keys of no sequence, empty ones."""

import pytest
import torch

from attn_mlir import attention, attention_varlen, masks, rows
from varlen_cases import CASES, LENGTHS, offsets


@pytest.mark.parametrize("name", ["causal", "alibi", "retention"])
def test_each_sequence_is_that_of_float64(name: str) -> None:
    case = CASES[name]()
    q, k, v = case.tensors(LENGTHS)
    with torch.no_grad():
        o, lse = case.run(q, k, v, LENGTHS, return_lse=True)
    wanted, wanted_lse = case.reference(q, k, v, LENGTHS)
    torch.testing.assert_close(o.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5, atol=1e-5)
    empty = torch.cat([torch.full((sq,), skv == 0) for sq, skv in zip(*LENGTHS, strict=True)])
    assert (o[empty] == 0).all() and (lse[:, empty] == -torch.inf).all()


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 1)])
def test_bits_are_those_of_attention(heads: int, kv_heads: int) -> None:
    lengths = (1000, 1, 16, 17, 1, 3), (1000, 77, 16, 170, 1, 300)
    q = torch.randn(sum(lengths[0]), heads, 32)
    k, v = torch.randn(2, sum(lengths[1]), kv_heads, 32)
    options = {"mask_mod": masks.causal("bottom_right"), "return_lse": True}
    o, lse = attention_varlen(q, k, v, *map(offsets, lengths), **options)
    first, key = 0, 0
    for sq, skv in zip(*lengths, strict=True):
        parts = q[first : first + sq], k[key : key + skv], v[key : key + skv]
        one_q, one_k, one_v = (x.transpose(0, 1)[None] for x in parts)
        alone, sums = attention(one_q, one_k, one_v, **options)
        assert torch.equal(alone[0].transpose(0, 1), o[first : first + sq])
        assert torch.equal(sums[0], lse[:, first : first + sq])
        first, key = first + sq, key + skv


def test_16_bits_and_strides() -> None:
    lengths = (33, 1, 64), (33, 1, 64)
    packed = torch.randn(98, 3, 4, 32, dtype=torch.bfloat16)
    q, k, v = packed.unbind(1)
    o = attention_varlen(q, k, v, offsets(lengths[0]))
    assert o.dtype == torch.bfloat16 and o.is_contiguous()
    case = CASES["sigmoid"]()
    case.weigh = None
    wanted, _ = case.reference(q, k, v, lengths)
    torch.testing.assert_close(o.double(), wanted, rtol=1e-2, atol=1e-2)


def test_rows_and_keys_of_no_sequence() -> None:
    """Rows behind the last offset are 0, keys behind seqused_k are never read."""
    q, k, v = torch.randn(30, 2, 16), torch.randn(40, 2, 16), torch.randn(40, 2, 16)
    of_q, of_k, used = offsets([10, 12]), offsets([20, 15]), torch.tensor([7, 0], dtype=torch.int32)
    clean = attention_varlen(q, k[:7], v[:7], offsets([10, 0]), offsets([7, 0]))
    k[7:] = v[7:] = torch.nan
    o, lse = attention_varlen(q, k, v, of_q, of_k, seqused_k=used, return_lse=True)
    assert torch.equal(o[:10], clean[:10])
    assert (o[10:] == 0).all() and (lse[:, 10:] == -torch.inf).all() and torch.isfinite(lse[:, :10]).all()


def test_states_and_out() -> None:
    q = torch.randn(20, 2, 16)
    cu = offsets([5, 15])
    out = torch.empty(20, 2, 16)
    o, states = attention_varlen(q, q, q, cu, return_states=True, out=out, row=lambda s: ((s - s.max()).exp(), {"largest": s.max()}))
    assert o is out and states["largest"].shape == (2, 20)
    largest = torch.einsum("ihd,jhd->hij", q[:5], q[:5]).amax(-1) / 4.0
    torch.testing.assert_close(states["largest"][:, :5], largest)


@pytest.mark.parametrize("lengths", [([], []), ([0], [0]), ([0, 0], [4, 2]), ([3, 2], [0, 0])])
def test_nothing_to_do(lengths: tuple[list[int], list[int]]) -> None:
    q, k = torch.randn(sum(lengths[0]), 2, 16, requires_grad=True), torch.randn(sum(lengths[1]), 2, 16, requires_grad=True)
    o, lse = attention_varlen(q, k, k, *map(offsets, lengths), return_lse=True)
    assert (o == 0).all() and (lse == -torch.inf).all() and o.shape == q.shape
    o.sum().backward()
    assert q.grad is not None and (q.grad == 0).all() and k.grad is not None and (k.grad == 0).all()


def test_no_sequences_but_rows() -> None:
    q = torch.randn(3, 2, 16)
    o, lse = attention_varlen(q, q, q, offsets([]), return_lse=True)
    assert (o == 0).all() and (lse == -torch.inf).all()


def test_new_lengths_compile_nothing() -> None:
    from attn_mlir.backends.cpu.program import _PROGRAMS

    def run(lengths: list[int]) -> None:
        q = torch.randn(sum(lengths), 2, 16)
        attention_varlen(q, q, q, offsets(lengths), row=rows.relu)

    run([40, 1, 7])
    before = len(_PROGRAMS)
    for lengths in ([1] * 50, [500, 3], [16, 17, 33, 1], [2]):
        run(lengths)
    assert len(_PROGRAMS) == before


def test_many_short_sequences() -> None:
    lengths = torch.randint(0, 4, (10_000,)).tolist()
    q = torch.randn(sum(lengths), 2, 16)
    o = attention_varlen(q, q, q, offsets(lengths), row=rows.relu)
    owner = torch.repeat_interleave(torch.arange(10_000), torch.tensor(lengths))
    near = torch.stack([torch.roll(owner, n) == owner for n in range(-3, 4)])
    keys = torch.stack([torch.roll(q, n, 0) for n in range(-3, 4)])
    weights = torch.relu(torch.einsum("ihd,nihd->nih", q, keys) / 4.0) * near[..., None]
    torch.testing.assert_close(o, torch.einsum("nih,nihd->ihd", weights, keys), rtol=1e-5, atol=1e-5)
