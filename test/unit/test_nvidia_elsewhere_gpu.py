"""Warm calls on a Hopper GPU whose tensors lie elsewhere each time: the bits of the first call, which agree with float64; wrong lists are
told by a later call.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from attn_mlir import attention, attention_varlen, masks
from attn_mlir.backends.nvidia import cuda
from attn_mlir.errors import ArgumentError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
Tensor = torch.Tensor


def random(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").bfloat16()


def between() -> list[Tensor]:
    """Memory of other sizes, so that what comes next lies elsewhere."""
    return [torch.empty(int(torch.randint(1, 1 << 18, ())) * 16, device="cuda", dtype=torch.uint8) for _ in range(5)]


def agree(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert (a.double() - b).abs().max() < 2e-2 * b.abs().max()


def test_descriptions_differ_in_their_addresses_alone() -> None:
    """Of all that kernels take; where not, launches are slower, and right."""
    torch.zeros(1, device="cuda")  # which makes a context
    assert cuda.maps_move()
    for shape, columns, swizzle in (((2, 3, 70, 128), 64, 128), ((1, 1, 1, 32), 32, 64), ((5, 16, 4096, 576), 64, 128)):
        for describe in (cuda.tensor_map, cuda.ragged_map):
            strides = torch.empty(shape, device="meta").stride()
            made = [describe(a, torch.bfloat16, shape, strides, (columns, 8), swizzle) for a in (1 << 33, (1 << 46) + 0x34560)]
            assert made[0][8:] == made[1][8:] and int.from_bytes(made[1][:8], "little") == (1 << 46) + 0x34560


@pytest.mark.parametrize(("block", "queries", "heads", "kv"), [(64, 1000, 4, 2), (1, 127, 16, 1), (64, 64, 16, 1)])
def test_lists(block: int, queries: int, heads: int, kv: int) -> None:
    first = [random(1, heads, queries, 128), *[random(1, kv, 1024, 128) for _ in range(2)]]
    index = torch.stack([torch.randperm(16, device="cuda")[:5] for _ in range(-(-queries // block))]).int()[None, None]
    present = torch.zeros(index.shape[2], 16, dtype=torch.bool, device="cuda").scatter_(1, index[0, 0].long(), True)
    seen = present.repeat_interleave(block, 0)[:queries].repeat_interleave(64, 1)
    exact: Any = [x.double().requires_grad_() for x in first]
    k, v = (x.repeat_interleave(heads // kv, 1) for x in exact[1:])
    o = (exact[0] @ k.mT / 128**0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v
    do = torch.randn_like(first[0])
    kept, bits = list[Any](), list[list[Tensor]]()
    for _ in range(4):
        own: Any = [x.clone().requires_grad_() for x in first]
        found = attention(*own, key_index=index.clone(), key_block=(block, 64))
        bits.append([found, *torch.autograd.grad(found, own, do.clone())])
        kept += [own, between()]
    agree(bits[0], [o, *torch.autograd.grad(o, exact, do.double())])
    for other in bits[1:]:
        same = [torch.equal(a, b) for a, b in zip(bits[0], other, strict=True)]
        assert all(same) or (block == 1 and all([same[0], *same[2:]]))  # sums to dq meet in any order there


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("lengths", [(1, 17, 127, 1000, 0, 300), (37,) * 300, (5,) * 1500], ids=len)
def test_packed(lengths: Sequence[int], deterministic: bool) -> None:
    behind, heads, kv = 3, 4, 2
    first = [random(sum(lengths) + behind, h, 64) for h in (heads, kv, kv)]
    cu = torch.tensor([0, *lengths]).cumsum(0).int().cuda()
    do, exact = torch.randn_like(first[0]), [x.double().requires_grad_() for x in first]
    made = []
    for begin, end in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        q, k, v = (x[begin:end].transpose(0, 1) for x in exact)
        k, v = (x.repeat_interleave(heads // kv, 0) for x in (k, v))
        later = torch.ones(end - begin, end - begin, dtype=torch.bool, device="cuda").triu(1)
        made.append(((q @ k.mT / 8).masked_fill(later, -torch.inf).softmax(-1) @ v).transpose(0, 1))
    wanted = torch.cat([*made, exact[0][-behind:] * 0])
    gradients = torch.autograd.grad(wanted, exact, do.double())
    kept, bits = list[Any](), list[list[Tensor]]()
    for _ in range(3):
        own: Any = [x.clone().requires_grad_() for x in first]
        most: Any = {"max_q": max(lengths), "max_k": max(lengths), "deterministic": deterministic}
        found = attention_varlen(own[0], own[1], own[2], cu.clone(), mask_mod=masks.causal(), **most)
        bits.append([found, *torch.autograd.grad(found, own, do.clone())])
        kept += [own, between()]
    for found in bits:
        agree(found, [wanted, *gradients])
        assert not any(x[-behind:].any() for x in found)
        assert not deterministic or all(torch.equal(a, b) for a, b in zip(bits[0], found, strict=True))


def test_dense_calls() -> None:
    first, kept, bits = [random(2, 4, 200, 64) for _ in range(3)], list[Any](), list[list[Tensor]]()
    do = torch.randn_like(first[0])
    for _ in range(3):
        own: Any = [x.clone().requires_grad_() for x in first]
        found = attention(*own, mask_mod=masks.causal(), deterministic=True)
        bits.append([found, attention(*[x.detach() for x in own], mask_mod=masks.causal()), *torch.autograd.grad(found, own, do.clone())])
        kept += [own, between()]
    assert all(torch.equal(a, b) for other in bits[1:] for a, b in zip(bits[0], other, strict=True))


def test_wrong_numbers_are_told_by_a_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = random(1, 16, 128, 128), random(1, 1, 704, 128), random(1, 1, 704, 128)
    good = torch.zeros(1, 1, 2, 3, dtype=torch.int32, device="cuda")
    bad = good.clone()
    bad[0, 0, 1, 2] = 77

    def call(index: Tensor) -> Tensor:
        return attention(q, k, v, key_index=index, key_block=(64, 64))

    with pytest.raises(ArgumentError, match=r"^key_index holds 77, but there are 11 blocks"):
        call(bad)  # the first call of such sizes waits
    wanted = call(good)

    def later() -> None:
        call(bad)  # which does not wait, but may be late enough
        torch.cuda.synchronize()
        call(good)

    with pytest.raises(ArgumentError, match="this call or one before held 77, but there were 11 blocks of 64 keys"):
        later()
    assert torch.equal(call(good), wanted)
    monkeypatch.setenv("ATTN_MLIR_CHECK", "1")
    with pytest.raises(ArgumentError, match=r"^key_index holds 77"):
        call(bad)
