"""Key lists on devices whose kernels read a table of blocks in their place."""

from typing import Any

import pytest
import torch

import attn_mlir
from amd_tools import needs_host_clang
from attn_mlir.api import key_lists, key_pages
from attn_mlir.errors import ArgumentError, PerformanceWarning
from key_list_cases import agree, dense, draw, inputs, listed

SIZES = (1, 4, 2, 70, 130, 32)


def attended(device: str, block: tuple[int, int], tolerance: float) -> None:
    on = "cuda" if device == "cuda" else "cpu"
    qkv: Any = [x.detach().to(on).requires_grad_() for x in inputs(SIZES, torch.float16)]
    index = draw(SIZES, block, 2, 3)
    there = index.to(qkv[0].device)

    def near(b: int, h: int, q_idx: int, kv_idx: int) -> bool:
        return q_idx + 60 >= kv_idx

    o = attn_mlir.attention(*qkv, mask_mod=near, key_index=there, key_block=block, device=device)
    present = listed(index, block, 4, 70, 130) & (torch.arange(70)[:, None] + 60 >= torch.arange(130))
    wanted, _ = dense([x.cpu() for x in qkv], present)
    agree([o.cpu()], [wanted], tolerance)
    do = torch.randn_like(o)
    found = torch.autograd.grad(o, qkv, do)
    leaves = [x.detach().cpu().double().requires_grad_() for x in qkv]
    exact = torch.autograd.grad(dense(leaves, present)[0], leaves, do.cpu().double())
    agree([x.cpu() for x in found], exact, 4 * tolerance)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTN_MLIR_CHECK", "1")  # else a later call may tell
        with pytest.raises(ArgumentError, match="key_index holds 99, but there are"):
            attn_mlir.attention(*qkv, key_index=torch.full_like(there, 99), key_block=block, device=device)


@needs_host_clang
def test_emulated_amd() -> None:
    attended("hip-emulated", (32, 64), 2e-3)


@needs_host_clang
def test_lists_of_keys_say_that_they_are_a_mask_there() -> None:
    qkv: Any = [x.detach() for x in inputs(SIZES, torch.float16)]
    with pytest.warns(PerformanceWarning, match="key_index lists blocks of 1 keys"):
        o = attn_mlir.attention(*qkv, key_index=draw(SIZES, (7, 1), 1, 9), key_block=(7, 1), device="hip-emulated")
    assert o.isfinite().all()


@needs_host_clang
def test_twice_is_an_error_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_MLIR_CHECK", "1")
    qkv: Any = [x.detach() for x in inputs(SIZES, torch.float16)]
    index = torch.tensor([-1, -1, 1, 0], dtype=torch.int32).expand(1, 1, 3, 4).clone()
    index[0, 0, 1] = torch.tensor([2, 1, 2, -1])
    with pytest.raises(ArgumentError, match=r"key_index\[0, 0, 1\] lists block 2 twice"):
        attn_mlir.attention(*qkv, key_index=index, key_block=(32, 64), device="hip-emulated")


@pytest.mark.gpu
@pytest.mark.parametrize("block", [(32, 64), (64, 64), (1, 16)])
def test_nvidia(block: tuple[int, int]) -> None:
    attended("cuda", block, 2e-3)


def loads_through_the_list(
    device: str, sizes: tuple[int, ...], block: tuple[int, int], lists: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without gradients lists are tables of pages; what no list names is never read."""
    taken: list[Any] = []
    monkeypatch.setattr(key_lists, "attention_in_pages", lambda *given: taken.append(key_pages.attention_in_pages(*given)) or taken[-1])
    on, (queries, keys) = "cuda" if device == "cuda" else "cpu", sizes[3:5]
    qkv: Any = [x.detach().to(on) for x in inputs(sizes, torch.float16)]
    index = draw(sizes, block, lists, 5)
    index[index == 3] = -1
    for x in qkv[1:]:
        x[:, :, 3 * block[1] : 4 * block[1]] = torch.nan
    causal = attn_mlir.masks.causal("bottom_right")
    o, lse = attn_mlir.attention(*qkv, mask_mod=causal, key_index=index.to(on), key_block=block, return_lse=True, device=device)
    assert taken[0] is not None
    present = listed(index, block, 4, queries, keys) & (torch.arange(queries)[:, None] + keys - queries >= torch.arange(keys))
    wanted, wanted_lse = dense([x.cpu().nan_to_num() for x in qkv], present)
    agree([o.cpu()], [wanted], 2e-3)
    empty = wanted_lse == -torch.inf
    assert torch.equal(lse.cpu() == -torch.inf, empty)
    agree([lse.cpu()[~empty]], [wanted_lse[~empty]], 2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("block", "lists"), [((64, 64), 4), ((1, 64), 2), ((1, 16), 1), ((128, 32), 2), ((64, 64), 2), ((48, 80), 1), ((4, 192), 1)]
)
def test_nvidia_loads_through_the_list(block: tuple[int, int], lists: int, monkeypatch: pytest.MonkeyPatch) -> None:
    loads_through_the_list("cuda", (2, 4, 2, 257, 1030, 64), block, lists, monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize(("columns", "values", "heads"), [(128, 128, 16), (64, 64, 80), (576, 512, 128), (320, 264, 16)])
def test_nvidia_single_keys(columns: int, values: int, heads: int) -> None:
    """DSA: each query lists single keys, of which many are one block of a kernel; values may be columns of the keys."""
    q, k = torch.randn(2, heads, 9, columns, device="cuda").half(), torch.randn(2, 1, 5000, columns, device="cuda").half()
    v = k[..., :values]
    index = torch.stack([torch.randperm(5000, device="cuda")[:777] for _ in range(18)]).view(2, 1, 9, 777).int()
    index[1, :, 4, 3:] = -1
    index[0, :, 0] = -1
    index[1, :, 2, 700:] = index[1, :, 2, :77]

    def score(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return s + 0.001 * kv_idx + 0.1 * b

    with torch.no_grad():
        o, lse = attn_mlir.attention(q, k, v, score_mod=score, key_index=index, key_block=(1, 1), return_lse=True)
    present = torch.zeros(2, 1, 9, 5001, dtype=torch.bool, device="cuda")
    present.scatter_(3, torch.where(index < 0, 5000, index).long(), True)
    s = (
        q.double() @ k.double().mT / columns**0.5
        + 0.001 * torch.arange(5000, device="cuda")
        + 0.1 * torch.arange(2, device="cuda").view(2, 1, 1, 1)
    )
    s = s.masked_fill(~present[..., :5000], -torch.inf)
    agree([o.cpu()], [(torch.softmax(s, -1).nan_to_num() @ v.double()).cpu()], 2e-3)
    wanted = torch.logsumexp(s, -1)
    assert torch.equal(lse == -torch.inf, wanted == -torch.inf) and (wanted == -torch.inf).any()
    there = wanted > -torch.inf
    agree([lse[there].cpu()], [wanted[there].cpu()], 2e-3)


@needs_host_clang
@pytest.mark.parametrize(("block", "lists"), [((32, 64), 4), ((1, 16), 1), ((16, 48), 2)])
def test_emulated_amd_loads_through_the_list(block: tuple[int, int], lists: int, monkeypatch: pytest.MonkeyPatch) -> None:
    loads_through_the_list("hip-emulated", (1, 4, 2, 40, 410, 32), block, lists, monkeypatch)
