"""A single query of 16 bits on the CPU, whose keys and values are read where they lie."""

from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import masks

TYPES = (torch.bfloat16, torch.float16)
Tensor = torch.Tensor


def drawn(heads: int, kv_heads: int, length: int, columns: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    return [
        torch.randn(2, h, n, d).to(dtype)
        for h, n, d in ((heads, 1, columns[0]), (kv_heads, length, columns[0]), (kv_heads, length, columns[1]))
    ]


def wanted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Weights are rounded as elements are, before they are multiplied with values."""
    group = q.shape[1] // k.shape[1]
    scores = q.double() @ k.double().repeat_interleave(group, 1).mT / q.shape[3] ** 0.5
    return scores.softmax(-1) @ v.double().repeat_interleave(group, 1)


def error(found: Tensor, right: Tensor) -> float:
    return ((found.double() - right).abs().max() / right.abs().max()).item()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("columns", [(64, 64), (128, 72), (24, 17), (1, 3), (80, 256)])
@pytest.mark.parametrize("length", [1, 17, 127, 1000])
def test_lengths_and_columns(length: int, columns: tuple[int, int], dtype: torch.dtype) -> None:
    q, k, v = drawn(2, 2, length, columns, dtype)
    assert error(attn_mlir.attention(q, k, v), wanted(q, k, v)) < (8e-3 if dtype == torch.bfloat16 else 1e-3)


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_that_are_apart(dtype: torch.dtype) -> None:
    """Keys and values between others in memory, those of all heads side by side, and rows at odd addresses."""
    q, k, v = drawn(4, 4, 90, (40, 40), dtype)
    right = wanted(q, k, v)
    both = torch.full((2, 4, 180, 81), torch.nan, dtype=dtype)
    both[:, :, ::2, :40], both[:, :, ::2, 41:] = k, v
    tolerance = 8e-3 if dtype == torch.bfloat16 else 1e-3
    assert error(attn_mlir.attention(q, both[:, :, ::2, :40], both[:, :, ::2, 41:]), right) < tolerance
    turned: Any = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    assert error(attn_mlir.attention(*turned, layout="bshd").transpose(1, 2), right) < tolerance
    assert error(attn_mlir.attention(q, k, k), wanted(q, k, k)) < tolerance


@pytest.mark.parametrize("dtype", TYPES)
def test_extreme_numbers(dtype: torch.dtype) -> None:
    """The largest, the smallest and infinite numbers are widened as they are; NaN that no query sees is not read."""
    q, k, v = drawn(2, 2, 40, (16, 16), dtype)
    tiny, large = torch.finfo(dtype).smallest_normal / 4, torch.finfo(dtype).max
    k[:, :, 3] = tiny
    v[:, :, 5], v[:, :, 6] = tiny, large
    assert error(attn_mlir.attention(q, k, v), wanted(q, k, v)) < 8e-3
    k[:, :, 7:] = v[:, :, 7:] = torch.nan
    found = attn_mlir.attention(q, k, v, mask_mod=lambda b, h, i, j: j < 7)
    assert error(found, wanted(q, k[:, :, :7], v[:, :, :7])) < 8e-3
    v[:, :, 2] = torch.inf
    assert attn_mlir.attention(q, k, v, mask_mod=lambda b, h, i, j: j < 7).isposinf().all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("page", [16, 24, 256])
def test_pages(page: int, dtype: torch.dtype) -> None:
    """Rows of one page stay where they are, those of several are put together: the same bits as of one tensor."""
    lengths = torch.tensor([100, 1, 37], dtype=torch.int32)
    pages = -(-100 // page)
    table = torch.randperm(3 * pages).reshape(3, pages).to(torch.int32)
    k, v = (torch.randn(3 * pages, page, 2, 32).to(dtype) for _ in range(2))
    q = torch.randn(3, 2, 32).to(dtype)
    starts, mask = torch.arange(4, dtype=torch.int32), masks.causal("bottom_right")
    o = attn_mlir.attention_varlen(q, k, v, starts, seqused_k=lengths, block_table=table, mask_mod=mask, max_q=1, max_k=pages * page)
    for b, length in enumerate(lengths.tolist()):
        whole: Any = [x[table[b].long()].flatten(0, 1)[:length].permute(1, 0, 2)[None] for x in (k, v)]
        assert torch.equal(o[b], attn_mlir.attention(q[b][None, :, None], whole[0], whole[1])[0, :, 0])


@pytest.mark.parametrize("dtype", TYPES)
def test_many_calls_agree(dtype: torch.dtype) -> None:
    q, k, v = drawn(3, 3, 3000, (64, 64), dtype)
    first = attn_mlir.attention(q, k, v, num_splits=4)
    assert all(torch.equal(attn_mlir.attention(q, k, v, num_splits=4), first) for _ in range(5))
    assert error(first, wanted(q, k, v)) < (8e-3 if dtype == torch.bfloat16 else 1e-3)
