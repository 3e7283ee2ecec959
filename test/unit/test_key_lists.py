"""Key lists against dense masks in float64: forward and backward, blocks of all kinds, and everything that pieces may do."""

from typing import Any

import pytest
import torch

import attn_mlir
from key_list_cases import agree, dense, draw, inputs, listed

SIZES = (2, 4, 2, 101, 203, 32)


def causal(b: int, h: int, q_idx: int, kv_idx: int) -> bool:
    return q_idx + 100 >= kv_idx


CASES = [
    # (bq, bk), heads of the list, entries, with a mask. Blocks of 128 and 48 keys are several of a kernel; of those of 7 and 1, the keys
    # are listed. 1 and 3 queries have heads as rows where these share lists.
    ((32, 128), 1, 1, False),
    ((17, 48), 4, 2, True),
    ((1, 16), 2, 5, True),
    ((1, 1), 4, 40, True),
    ((3, 7), 1, 6, False),
]


@pytest.mark.parametrize(("block", "heads", "count", "masked"), CASES)
def test_forward_and_backward(block: tuple[int, int], heads: int, count: int, masked: bool) -> None:
    qkv, index = inputs(SIZES), draw(SIZES, block, heads, count)
    present = listed(index, block, SIZES[1], *SIZES[3:5])
    if masked:
        present &= torch.arange(101)[:, None] + 100 >= torch.arange(203)
    o, lse = attn_mlir.attention(*qkv, mask_mod=causal if masked else None, key_index=index, key_block=block, return_lse=True)
    wanted, wanted_lse = dense(qkv, present)
    some = present.any(-1)
    agree([o, lse[some]], [wanted, wanted_lse[some]])
    assert (lse[~some] == -torch.inf).all() and (o[~some] == 0).all()
    do, dlse = torch.randn_like(o), torch.where(some, torch.randn_like(lse), 0.0)
    found = torch.autograd.grad([o, lse], qkv, [do, dlse], retain_graph=True)
    again = torch.autograd.grad([o, lse], qkv, [do, dlse])
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    total = (wanted * do).sum() + (wanted_lse[some] * dlse[some]).sum()
    agree(found, torch.autograd.grad(total, qkv))


@pytest.mark.parametrize("block", [(16, 32), (1, 1)])
def test_captures_and_mods(block: tuple[int, int]) -> None:
    sizes = (2, 4, 2, 37, 90, 16)
    qkv, index = inputs(sizes), draw(sizes, block, 1, 12)
    slopes, bias = torch.rand(4, requires_grad=True), torch.randn(37, 90, requires_grad=True)
    shift = torch.randn(90, requires_grad=True)

    def score(s: Any, b: int, h: int, q_idx: int, kv_idx: int) -> Any:
        return s + slopes[h] * (kv_idx - q_idx) / 50 + bias[q_idx, kv_idx]

    def value(x: Any, b: int, h: int, kv_idx: int, d: int) -> Any:
        return x * (1 + kv_idx / 90) + shift[kv_idx]

    def key(x: Any, b: int, h: int, kv_idx: int, d: int) -> Any:
        return x * (1 + h - kv_idx / 180)

    o = attn_mlir.attention(*qkv, score_mod=score, value_mod=value, key_mod=key, key_index=index, key_block=block)
    q, k, v = qkv
    where = torch.arange(90)[:, None]
    changed = q, k * (1 + torch.arange(2)[:, None, None] - where / 180), v * (1 + where / 90) + shift[:, None]
    wanted, _ = dense(changed, listed(index, block, 4, 37, 90), lambda s, b, h, i, j: s + slopes[h] * (j - i) / 50 + bias[i, j])
    agree([o], [wanted])
    do = torch.randn_like(o)
    wrt = [*qkv, slopes, bias, shift]
    agree(torch.autograd.grad(o, wrt, do), torch.autograd.grad(wanted, wrt, do.double()))


def layer_norm(s: Any) -> Any:
    """A row of two moments."""
    mean = s.mean()
    return (s - mean) / (((s - mean) ** 2).mean() + 1e-3) ** 0.5


def two_passes(s: Any) -> Any:
    """A row whose second sum needs the first one."""
    mean = s.mean()
    w = (s - mean).abs().exp()
    return w / w.sum()


def _means(s: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    return s.sum(-1, keepdim=True) / present.sum(-1, keepdim=True).clamp(min=1)


def _layer_norm(s: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    mean = _means(s, present)
    squares = torch.where(present, (s - mean) ** 2, 0.0)
    return (s - mean) / (_means(squares, present) + 1e-3) ** 0.5


def _two_passes(s: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    w = torch.where(present, (s - _means(s, present)).abs().exp(), 0.0)
    return w / w.sum(-1, keepdim=True).clamp(min=1e-300)


@pytest.mark.parametrize(("row", "same", "block"), [(layer_norm, _layer_norm, (16, 32)), (two_passes, _two_passes, (5, 1))])
def test_other_rows(row: Any, same: Any, block: tuple[int, int]) -> None:
    sizes = (1, 2, 2, 20, 90, 16)
    qkv, index = inputs(sizes), draw(sizes, block, 2, 9)
    o = attn_mlir.attention(*qkv, row=row, key_index=index, key_block=block)
    wanted, _ = dense(qkv, listed(index, block, 2, 20, 90), row=same)
    agree([o], [wanted], 1e-4)
    do = torch.randn_like(o)
    agree(torch.autograd.grad(o, qkv, do), torch.autograd.grad(wanted, qkv, do.double()), 1e-3)
