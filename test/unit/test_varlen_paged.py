"""Keys in pages: the bits of packed keys for any page size and strides, nothing read outside of the cache, what is refused."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from attn_mlir import ArgumentError, UnsupportedError, attention_varlen, masks, mods, rows
from varlen_cases import offsets

QUERIES, KEYS = (17, 1, 0, 5, 40, 1, 2), (100, 77, 3, 0, 40, 300, 129)
"""Blocks of 32 and of 16 queries, one query, no queries, no keys; keys that end within a page."""
LONG = (17, 0, 40), (100, 3, 40)
"""The same for kernels of 32 queries alone."""
Lengths = tuple[Sequence[int], Sequence[int]]
Tensor = torch.Tensor


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def in_pages(x: Tensor, lengths: Sequence[int], size: int, heads_first: bool = False) -> tuple[Tensor, Tensor]:
    """A cache of pages in random order that holds x, NaN elsewhere, and its table; entries that count for nothing are far out of range."""
    counts = [-(-n // size) for n in lengths]
    generator = torch.Generator().manual_seed(size)
    order = iter(torch.randperm(sum(counts) + 2, generator=generator).tolist())
    shape = (sum(counts) + 2, size, *x.shape[1:])
    cache = torch.full((shape[0], shape[2], shape[1], shape[3]), torch.nan, dtype=x.dtype).transpose(1, 2)
    cache = cache if heads_first else cache.contiguous()
    table = torch.full((len(lengths), max(counts) + 1), 2**31 - 1, dtype=torch.int32)
    rest = iter(x.split(list(lengths)))
    for b, count in enumerate(counts):
        one = next(rest)
        for n in range(count):
            page = next(order)
            table[b, n] = page
            part = one[n * size : (n + 1) * size]
            cache[page, : len(part)] = part
    return cache, table


def given(lengths: Lengths, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    q = torch.randn(sum(lengths[0]), 4, 32).to(dtype)
    k, v = torch.randn(2, sum(lengths[1]), 2, 32).to(dtype)
    return q, k, v


def packed(qkv: tuple[Tensor, Tensor, Tensor], lengths: Lengths, **options: Any) -> Any:
    return attention_varlen(*qkv, offsets(lengths[0]), offsets(lengths[1]), **options)


def paged(qkv: tuple[Tensor, Tensor, Tensor], lengths: Lengths, size: int, heads_first: bool = False, **options: Any) -> Any:
    q, *others = qkv
    (k, table), (v, _) = (in_pages(x, lengths[1], size, heads_first) for x in others)
    return attention_varlen(q, k, v, offsets(lengths[0]), seqused_k=ints(*lengths[1]), block_table=table, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads_first", [False, True])
def test_bits_are_those_of_packed_keys(dtype: torch.dtype, heads_first: bool) -> None:
    """A block of 64 keys is in one page, in several, or begins within one."""
    lengths = QUERIES, KEYS
    qkv = given(lengths, dtype)
    options: dict[str, Any] = {"mask_mod": masks.causal("bottom_right"), "return_lse": True}
    o, lse = packed(qkv, lengths, **options)
    for size in (16, 17, 64, 256):
        made, sums = paged(qkv, lengths, size, heads_first, **options)
        assert torch.equal(made, o) and torch.equal(sums, lse)


def test_any_row_score_and_mask_with_dropout() -> None:
    """Blocks of a window begin at any position; functions and dropout see positions in the sequence."""
    qkv = given(LONG)
    slopes = torch.rand(4)
    options: dict[str, Any] = {
        "row": rows.sigmoid, "score_mod": mods.alibi(slopes, align="bottom_right"), "dropout_p": 0.25, "dropout_seed": (3, 4),
        "mask_mod": masks.sliding_window(37, 0, align="bottom_right"), "value_mod": lambda x, b, h, i, d: x * (1 + 0.1 * i),
    }  # fmt: skip
    assert torch.equal(paged(qkv, LONG, 24, **options), packed(qkv, LONG, **options))


def test_mods_that_read_two_channels() -> None:
    """A key_mod of partners changes keys on the way: a cache is not changed, nor copied."""
    qkv, angles = given(LONG), torch.arange(100)[:, None] * torch.rand(16)
    rope = mods.rope(angles.cos(), angles.sin())
    o = packed(qkv, LONG, key_mod=rope, query_mod=rope)
    torch.testing.assert_close(paged(qkv, LONG, 16, key_mod=rope, query_mod=rope), o, rtol=1e-5, atol=1e-5)


def test_pages_are_shared_and_lengths_grow() -> None:
    """Sequences share the pages of a prefix; a longer one is seen without compiling anything."""
    cache = torch.randn(5, 16, 2, 32)
    table, q = torch.tensor([[4, 1, 0], [4, 1, 2]], dtype=torch.int32), torch.randn(2, 4, 32)
    for used in (ints(33, 40), ints(34, 48), ints(0, 1)):
        o = attention_varlen(q, cache, cache, offsets([1, 1]), seqused_k=used, block_table=table)
        keys = torch.cat([cache[table[b]].flatten(0, 1)[: used[b]] for b in range(2)])
        assert torch.equal(o, attention_varlen(q, keys, keys, offsets([1, 1]), offsets(used.tolist())))


Q, CACHE = torch.randn(3, 4, 32), torch.randn(4, 16, 2, 32)
TABLE, USED = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32), ints(20, 32)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"block_table": torch.tensor([[3, 4], [1, 2]], dtype=torch.int32)}, r"block_table\[0, 1\] is 4, but k has 4 pages"),
        ({"block_table": torch.tensor([[3, 0], [-1, 2]], dtype=torch.int32)}, r"block_table\[1, 0\] is -1, but k has 4 pages"),
        ({"seqused_k": ints(20, 33)}, r"seqused_k\[1\] is 33, but block_table has 2 pages of 16 positions for a sequence"),
        ({"seqused_k": ints(20, -1)}, r"seqused_k\[1\] is -1"),
        ({"seqused_k": None}, "block_table needs seqused_k"),
        ({"seqused_k": ints(20)}, "seqused_k is for 1 sequences but cu_seqlens_q has 2"),
        ({"block_table": TABLE[:1]}, "block_table is for 1 sequences but cu_seqlens_q has 2"),
        ({"block_table": TABLE.long()}, "block_table must be an int32 tensor, got a tensor of torch.int64"),
        ({"block_table": TABLE[0]}, r"block_table must be \[sequences, pages\], got shape \[2\]"),
        ({"cu_seqlens_k": ints(0, 3, 4)}, "cu_seqlens_k is for packed keys"),
        ({"k": CACHE[0]}, r"k must have 4 dimensions, \[pages, positions of a page, head, dim\], with block_table, got shape"),
        ({"v": CACHE[:3]}, "v has 3 pages of 16 positions but k has 4 of 16"),
        ({"v": CACHE.double()}, "v has dtype torch.float64"),
        ({"k": CACHE[:, :, :, :16]}, "k has head dimension 16 but q has 32|head dim"),
        ({"k": CACHE[:0], "v": CACHE[:0]}, r"seqused_k\[0\] is 20, but k has no pages"),
        ({"k": CACHE[:, :0], "v": CACHE[:, :0]}, r"seqused_k\[0\] is 20, but k has no positions in its pages"),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {
        "q": Q,
        "k": CACHE,
        "v": CACHE,
        "cu_seqlens_q": ints(0, 1, 3),
        "seqused_k": USED,
        "block_table": TABLE,
        **changed,
    }
    with pytest.raises(ArgumentError, match=message):
        attention_varlen(**call)


def test_kernels_read_pages_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a table holds: without checks, the nearest page stands for one out of range."""
    monkeypatch.setattr("attn_mlir.runtime.varlen.check_pages", lambda *_: None)
    call: dict[str, Any] = {"q": Q, "k": CACHE, "v": CACHE, "cu_seqlens_q": ints(0, 1, 3)}
    wild = torch.tensor([[-(2**31), 2**31 - 1], [4, -1]], dtype=torch.int32)
    o = attention_varlen(**call, seqused_k=ints(20, 90), block_table=wild)
    near = torch.tensor([[0, 3, 3, 3, 3, 3], [3, 0, 0, 0, 0, 0]], dtype=torch.int32)
    assert torch.equal(o, attention_varlen(**call, seqused_k=ints(20, 90), block_table=near))


def test_what_is_not_there_is_refused() -> None:
    call: dict[str, Any] = {"k": CACHE, "v": CACHE, "cu_seqlens_q": ints(0, 1, 3), "seqused_k": USED, "block_table": TABLE}
    with pytest.raises(UnsupportedError, match=r"block_table. has no gradients"):
        attention_varlen(Q.clone().requires_grad_(), **call)
    with pytest.raises(UnsupportedError, match="leave block_table out"):
        attention_varlen(Q, **call, return_partial=True)


def test_no_keys_at_all() -> None:
    for cache in (CACHE, CACHE[:0], CACHE[:, :0]):
        o, lse = attention_varlen(Q, cache, cache, ints(0, 1, 3), seqused_k=ints(0, 0), block_table=TABLE, return_lse=True)
        assert (o == 0).all() and (lse == -torch.inf).all()
