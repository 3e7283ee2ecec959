"""attention_varlen by the emulation of AMD GPUs, which finds accesses out of bounds: forward, gradients, single queries in parts; what GPUs
refuse; how many parts there are, and that rows of caches outside of these are not written.
"""

from typing import Any

import pytest
import torch

from attn_mlir import attention_varlen, masks, rows
from attn_mlir.api.append import _write_inside
from attn_mlir.backends.amd import program as amd
from attn_mlir.backends.gpu.split import lists_for, lower_parts, parts_for
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError
from varlen_cases import offsets

QUERIES, KEYS = (17, 0, 1, 70), (30, 4, 0, 70)
DEVICE = "hip-emulated"
Tensor = torch.Tensor


def _close(got: Tensor, wanted: Tensor, limit: float = 3e-3) -> None:
    assert torch.isfinite(got).all()
    assert (got.float() - wanted.float()).norm() <= limit * wanted.float().norm()


def test_gradients_and_poison() -> None:
    """A captured slope has a gradient; NaN in rows of no sequence reaches nothing."""
    draw = torch.Generator().manual_seed(1)
    tensors = [torch.randn(sum(n) + 3, h, 32, generator=draw).half() for n, h in ((QUERIES, 2), (KEYS, 1), (KEYS, 1))]
    weight = torch.randn(sum(QUERIES) + 3, 2, 32, generator=draw)
    made = []
    for dtype, device in ((torch.float16, DEVICE), (torch.float32, None)):
        q, k, v = (x.to(dtype) for x in tensors)
        q[-3:], k[-3:], v[-3:], slopes = torch.nan, torch.nan, torch.nan, torch.tensor([0.1, 0.3], requires_grad=True)
        for x in (q, k, v):
            x.requires_grad_()
        options: dict[str, Any] = {
            "score_mod": lambda s, b, h, i, j, slopes=slopes: s + slopes[h] * (j - i),
            "mask_mod": masks.causal("bottom_right"),
        }
        o, lse = attention_varlen(q, k, v, offsets(QUERIES), offsets(KEYS), device=device, return_lse=True, **options)
        do = weight.to(dtype)
        do[-3:] = torch.nan
        made.append([o, lse.exp(), *torch.autograd.grad(o, (q, k, v, slopes), do)])
    for got, wanted in zip(*made, strict=True):
        _close(got, wanted)
    assert (made[0][0][-3:] == 0).all() and (made[0][1][:, -3:] == 0).all() and (made[0][3][-3:] == 0).all()


@pytest.mark.parametrize("row", [rows.softmax, rows.relu])
def test_single_queries_in_parts(row: Any) -> None:
    """Parts differ by rounding; a sequence without a query writes nothing over that of the next one."""
    queries, keys = (1, 1, 0, 1), (300, 5, 30, 0)
    q, k, v = torch.randn(4, 4, 32).half(), *torch.randn(2, sum(keys), 2, 32).half()
    options: dict[str, Any] = {"row": row, "mask_mod": masks.causal("bottom_right"), "return_lse": row is rows.softmax}
    wanted = attention_varlen(q.float(), k.float(), v.float(), offsets(queries), offsets(keys), **options)
    for splits in (1, 4):
        made = attention_varlen(q, k, v, offsets(queries), offsets(keys), device=DEVICE, num_splits=splits, **options)
        for got, want in zip(made, wanted, strict=True) if row is rows.softmax else [(made, wanted)]:
            assert torch.equal(torch.isfinite(got), torch.isfinite(want))
            _close(got.nan_to_num(neginf=0), want.nan_to_num(neginf=0))


def test_bits_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single query has the same parts and the same kernel alone, beside other single ones, and beside longer sequences."""
    monkeypatch.setattr("attn_mlir.backends.gpu.split.FIXED_PART", 128)
    q, (k, v) = torch.randn(1, 4, 32).half(), torch.randn(2, 300, 2, 32).half()
    options: dict[str, Any] = {"mask_mod": masks.causal("bottom_right"), "return_lse": True, "device": DEVICE, "batch_invariant": True}
    alone = attention_varlen(q, k, v, offsets([1]), offsets([300]), **options)
    wanted = attention_varlen(q.float(), k.float(), v.float(), offsets([1]), offsets([300]), mask_mod=options["mask_mod"])
    _close(alone[0], wanted)
    for queries, keys in (((1, 1, 0, 1), (500, 300, 3, 0)), ((17, 1, 2, 0), (40, 300, 900, 5))):
        others = torch.randn(sum(queries) + 2, 4, 32).half()
        more = torch.randn(2, sum(keys), 2, 32).half()
        at, first = queries[0], keys[0]
        others[at], more[0, first : first + 300], more[1, first : first + 300] = q[0], k, v
        o, lse = attention_varlen(others, more[0], more[1], offsets(queries), offsets(keys), **options)
        assert torch.equal(o[at], alone[0][0]) and torch.equal(lse[:, at], alone[1][:, 0])
        assert (o[sum(queries) :] == 0).all() and (lse[:, sum(queries) :] == -torch.inf).all()
        one = attention_varlen(others[:at], more[0, :first], more[1, :first], offsets([at]), offsets([first]), **options)
        assert torch.equal(o[:at], one[0]) and torch.equal(lse[:, :at], one[1])


def test_kernels_of_parts_are_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(amd, "lower_parts", lambda *given, **more: made.append(lower_parts(*given, **more)) or made[-1])
    q, (k, v) = torch.randn(2, 4, 64).half(), torch.randn(2, 57, 2, 64).half()
    for parts in (2, 2, 3):
        row = lambda s: rows.softmax(0.5 * s)  # noqa: E731
        with torch.no_grad():
            attention_varlen(
                q, k, v, offsets([1, 1]), offsets([40, 17]), row=row, max_q=1, max_k=40, num_splits=parts, device="hip-emulated"
            )
    assert len(made) == 1


def test_refusals() -> None:
    q = torch.randn(2, 1, 32).half()
    cu = offsets([1, 1])
    pages: dict[str, Any] = {"seqused_k": torch.tensor([3, 4], dtype=torch.int32), "block_table": torch.zeros(2, 1, dtype=torch.int32)}
    with pytest.raises(ArgumentError, match="pages of 2 positions, and kernels for GPUs take multiples of 16"):
        attention_varlen(q, q[None].expand(1, 2, 1, 32), q[None].expand(1, 2, 1, 32), cu, device=DEVICE, **{**pages, "seqused_k": cu[1:]})
    with pytest.raises(UnsupportedError, match="num_splits: keys are not seen in parts"):
        attention_varlen(q, q, q, cu, device=DEVICE, num_splits=2, row=lambda s: torch.tanh(s - s.mean()))
    with pytest.raises(UnsupportedError, match="batch_invariant sees the keys of single queries in parts of 1024"):
        attention_varlen(q, q, q, cu, device=DEVICE, batch_invariant=True, num_splits=2)
    with pytest.raises(CompileError, match="adds gradients of packed sequences in no fixed order"):
        attention_varlen(q.requires_grad_(), q, q, cu, device=DEVICE, batch_invariant=True).sum().backward()


def test_parts_fill_the_machine() -> None:
    """Parts are whole blocks, cover all keys, and no more of them than help."""
    for keys, pairs, wanted in ((0, 1, 0), (100, 4, 0), (4096, 64, 0), (131072, 16, 0), (5000, 40, 7), (256, 1, 50)):
        count, length = parts_for(keys, pairs, 128, 132, wanted)
        assert length % 128 == 0 and count * length >= keys and (count == 1 or (count - 1) * length < keys)
    assert parts_for(1 << 20, 1000, 128, 132)[0] < 8 and parts_for(32768, 16, 128, 132)[0] >= 8
    parts, merged = lists_for(3, 130, (4, 256), 64, torch.device("cpu"))
    assert parts[-1, 0] == len(parts) - 1 == 3 * 4 * 3 and merged[-1, 0] == len(merged) - 1 == 3 * 130
    assert sorted(set(parts[:-1, 3].tolist())) == list(range(12)) and parts[:-1, 2].max() == 130


@pytest.mark.parametrize("places", [[(0, 1), (2, 0), (1, 2)], [(0, 5), (-1, 0), (2, 1)], [(9, 0), (0, -1), (-1, 7)]])
def test_rows_outside_of_caches_are_not_written(places: list[tuple[int, int]]) -> None:
    cache, rows_ = torch.arange(3 * 4 * 2.0).view(3, 4, 1, 2).clone(), -torch.ones(3, 1, 1, 2) * torch.arange(1, 4).view(3, 1, 1, 1)
    wanted = cache.clone()
    for n, (entry, slot) in enumerate(places):
        if 0 <= entry < 3 and 0 <= slot < 4:
            wanted[entry, slot] = rows_[n, 0]
    entry, slot = torch.tensor(places).T[:, :, None]
    _write_inside(((cache, rows_),), entry, slot)
    assert torch.equal(cache, wanted)


def test_kernels_of_chips_before_hopper_read_no_pages() -> None:
    """They would take the number of a sequence for that of its page."""
    q, cache, used = torch.randn(2, 1, 32).half(), torch.randn(3, 16, 1, 32).half(), torch.tensor([3, 4], dtype=torch.int32)
    with pytest.raises(CompileError, match=r"no keys in pages \(block_table\) on chips without TMA: gather the pages"):
        attention_varlen(q, cache, cache, offsets([1, 1]), seqused_k=used, block_table=used[:, None] - 2, device="cuda-emulated-sm80")
