"""Key lists of packed sequences: each query lists positions, or blocks, of its own sequence, packed or in pages, against float64."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import attn_mlir
from amd_tools import needs_host_clang
from attn_mlir import attention_varlen, driver, masks, rows
from attn_mlir.api import key_varlen
from attn_mlir.backends.gpu.program import BY_ROWS, PartsForm
from attn_mlir.errors import ArgumentError, PerformanceWarning, UnsupportedError
from generated_code import complaints
from gpu_cases import GPU
from key_list_cases import Score, agree, dense, listed
from spies import note_ways
from test_varlen_paged import in_pages, ints
from varlen_cases import offsets

QUERIES, KEYS = (3, 0, 5, 1, 4), (40, 7, 33, 100, 0)

Tensor = torch.Tensor


def given(heads: tuple[int, int] = (4, 2), dim: int = 32, values: int = 0, behind: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, with rows of no sequence at the ends."""
    queries, keys = sum(QUERIES) + behind, sum(KEYS) + behind
    return torch.randn(queries, heads[0], dim), torch.randn(keys, heads[1], dim), torch.randn(keys, heads[1], values or dim)


def draw(queries: int, lists: int, keys: int, count: int = 9) -> Tensor:
    """Random lists with absent entries, and some that are there twice."""
    index = torch.full((queries, lists, count), -1, dtype=torch.int32)
    for own, q_len, kv_len in zip(index.split([*QUERIES, queries - sum(QUERIES)]), QUERIES, KEYS, strict=False):
        own.copy_(torch.randint(-1, -(-kv_len // keys), (q_len, lists, count)))
    return index


def exact(
    qkv: Sequence[Tensor], index: Tensor, keys: int, mask: Any = None, score: Score | None = None, row: Any = None
) -> tuple[Tensor, Tensor]:
    """o and lse in float64, a sequence after the other; `mask` and `score` get the number of the sequence first, and lengths last."""
    o = torch.zeros(*qkv[0].shape[:2], qkv[2].shape[2], dtype=torch.double)
    lse = torch.full((qkv[0].shape[1], len(o)), -torch.inf, dtype=torch.double)
    q_at, k_at = (list(itertools.accumulate(lengths, initial=0)) for lengths in (QUERIES, KEYS))
    for n, (q_len, kv_len) in enumerate(zip(QUERIES, KEYS, strict=True)):
        if not q_len or not kv_len:
            continue
        own = slice(q_at[n], q_at[n] + q_len)
        q, k, v = (
            x[at : at + size].transpose(0, 1)[None]
            for x, at, size in zip(qkv, (q_at[n], *[k_at[n]] * 2), (q_len, *[kv_len] * 2), strict=True)
        )
        present = listed(index[own].transpose(0, 1)[None], (1, keys), q.shape[1], q_len, kv_len)
        places = [torch.arange(size).view([-1 if i == d else 1 for i in range(4)]) for d, size in enumerate(present.shape)][1:]
        if mask is not None:
            present = present & mask(n, *places, q_len, kv_len)
        of_row = None if row is None else lambda s, present, n=n: row(s, present, n)
        found = dense([q, k, v], present, None if score is None else lambda s, b, h, i, j, n=n: score(s, n, h, i, j), of_row)
        o = torch.cat([o[: own.start], found[0][0].transpose(0, 1), o[own.stop :]])
        lse = torch.cat([lse[:, : own.start], found[1][0], lse[:, own.stop :]], 1)
    return o, lse


def agrees(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], tolerance: float = 2e-5) -> None:
    there = torch.isfinite(wanted[1])
    assert torch.equal(torch.isfinite(found[1].cpu()), there)
    agree([found[0].cpu(), found[1].cpu()[there]], [wanted[0], wanted[1][there]], tolerance)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether calls are those of pages."""
    return note_ways(monkeypatch, key_varlen, "paged_rows")


def bottom_right(n: int, h: Tensor, i: Tensor, j: Tensor, q_len: int, kv_len: int) -> Tensor:
    return i + kv_len - q_len >= j


def top_left(n: int, h: Tensor, i: Tensor, j: Tensor, q_len: int, kv_len: int) -> Tensor:
    return i >= j


LISTS = [(4, 2, 1), (4, 2, 2), (4, 2, 4), (4, 1, 1), (4, 4, 4)]
"""Heads of queries, keys, lists."""
CAUSAL = {"none": (None, None), "top left": (masks.causal(), top_left), "bottom right": (masks.causal("bottom_right"), bottom_right)}


@pytest.mark.parametrize("kind", list(CAUSAL))
@pytest.mark.parametrize("keys", [1, 5, 16])
@pytest.mark.parametrize("heads", LISTS, ids=str)
def test_packed(heads: tuple[int, int, int], keys: int, kind: str, ways: list[bool]) -> None:
    qkv, (mask, dense_mask) = given((heads[0], heads[1])), CAUSAL[kind]
    index = draw(len(qkv[0]), heads[2], keys)
    options: dict[str, Any] = {"mask_mod": mask, "key_block": (1, keys), "return_lse": True}
    found = attention_varlen(*qkv, offsets(QUERIES), offsets(KEYS), key_index=index, **options)
    agrees(found, exact(qkv, index, keys, dense_mask))
    moved = index[..., torch.randperm(index.shape[2])]
    again = attention_varlen(*qkv, offsets(QUERIES), offsets(KEYS), key_index=moved, **options)
    assert all(torch.equal(a, b) for a, b in zip(again, found, strict=True)) and ways == [True, True]


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("size", [16, 48, 10])
@pytest.mark.parametrize("keys", [1, 8, 32])
@pytest.mark.parametrize("heads", LISTS[:4], ids=str)
def test_pages(heads: tuple[int, int, int], keys: int, size: int, heads_first: bool, ways: list[bool]) -> None:
    """Lists go through the table of a cache; pages of NaN that no list names are not read."""
    qkv = given((heads[0], heads[1]), behind=0)
    index = draw(len(qkv[0]), heads[2], keys)
    (k, table), (v, _) = (in_pages(x, KEYS, size, heads_first) for x in qkv[1:])
    pages: dict[str, Any] = {"seqused_k": ints(*KEYS), "block_table": table}
    options: dict[str, Any] = {"mask_mod": masks.causal("bottom_right"), "key_block": (1, keys), "return_lse": True}
    found = attention_varlen(qkv[0], k, v, offsets(QUERIES), key_index=index, **pages, **options)
    agrees(found, exact(qkv, index, keys, bottom_right))
    packed = attention_varlen(*qkv, offsets(QUERIES), offsets(KEYS), key_index=index, **options)
    assert all(torch.equal(a, b) for a, b in zip(found, packed, strict=True)) and ways == [True, True]


def test_pages_with_gaps_and_values_among_keys(ways: list[bool]) -> None:
    """A cache that is a part of another tensor, and v the first columns of k."""
    (q, k, _), size = given((4, 1), 48, behind=0), 16
    dense_cache, table = in_pages(k, KEYS, size, False)
    whole = torch.full((len(dense_cache) + 2, 2, size, 1, 64), torch.nan)
    cache = whole[1:-1, 1, :, :, 8:56].copy_(dense_cache)
    index = draw(len(q), 1, 1)
    options: dict[str, Any] = {"seqused_k": ints(*KEYS), "block_table": table, "key_index": index, "key_block": (1, 1), "return_lse": True}
    agrees(attention_varlen(q, cache, cache[..., :32], offsets(QUERIES), **options), exact((q, k, k[..., :32]), index, 1))
    with pytest.warns(PerformanceWarning, match="copied at every call"):
        agrees(
            attention_varlen(q, cache, dense_cache[..., :32].contiguous(), offsets(QUERIES), **options),
            exact((q, k, k[..., :32]), index, 1),
        )
    assert ways == [True, True]


def test_functions_see_sequences_and_true_positions(ways: list[bool]) -> None:
    qkv, slopes, bias = given(), torch.rand(4), torch.randn(len(KEYS), 4)
    index = draw(len(qkv[0]), 2, 3)

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i + attn_mlir.kv_len() - attn_mlir.q_len() >= j) & ((j + b + h) % 3 != 0)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + slopes[h] * 0.1 * (j - i) + bias[b, h]

    found = attention_varlen(
        *qkv, offsets(QUERIES), offsets(KEYS), mask_mod=mask, score_mod=score, key_index=index, key_block=(1, 3), return_lse=True
    )
    agrees(found, exact(qkv, index, 3, lambda n, h, i, j, a, b: (i + b - a >= j) & ((j + n + h) % 3 != 0), score))
    moded = attention_varlen(
        *qkv,
        offsets(QUERIES),
        offsets(KEYS),
        query_mod=lambda x, b, h, i, d: x * (1 + 0.1 * i + 0.05 * b),
        key_mod=lambda x, b, h, j, d: x * (1 + 0.01 * j + 0.02 * b),
        value_mod=lambda x, b, h, j, d: x * (1 - 0.01 * j + h),
        row=rows.sigmoid,
        key_index=index,
        key_block=(1, 3),
        return_lse=False,
    )
    own, position = (torch.zeros(len(x), 1, 1) for x in qkv[:2]), [torch.zeros(len(x), 1, 1) for x in qkv[:2]]
    own = list(own)
    for n, lengths in enumerate((QUERIES, KEYS)):
        at = 0
        for b, length in enumerate(lengths):
            own[n][at : at + length] = b
            position[n][at : at + length, 0, 0] = torch.arange(length)
            at += length
    q = qkv[0] * (1 + 0.1 * position[0] + 0.05 * own[0])
    k = qkv[1] * (1 + 0.01 * position[1] + 0.02 * own[1])
    v = qkv[2] * (1 - 0.01 * position[1] + torch.arange(2).view(1, 2, 1))
    wanted, _ = exact((q, k, v), index, 3, row=lambda s, present, n: torch.sigmoid(s))
    agree([moded], [wanted])
    assert ways == [True, True]


def test_lengths_options_and_results(ways: list[bool]) -> None:
    """`seqused_k` ends what lists may name; parts, `out` and states; queries in no sequence are fully masked."""
    qkv, used = given(), (20, 7, 33, 64, 0)
    index = draw(len(qkv[0]), 1, 1)
    index = index.clamp(max=6)
    options: dict[str, Any] = {"key_index": index, "key_block": (1, 1), "seqused_k": ints(*used)}
    wanted, _ = exact(qkv, index, 1)
    out = torch.full_like(wanted, torch.nan, dtype=torch.float32)
    o = attention_varlen(*qkv, offsets(QUERIES), offsets(KEYS), out=out, **options)
    assert o is out and (o[sum(QUERIES) :] == 0).all()
    agree([o], [wanted])
    asked: list[dict[str, Any]] = [{"num_splits": 3}, {"num_splits": 1}, {"batch_invariant": True}, {"max_q": 5, "max_k": 100}]
    for more in asked:
        agree([attention_varlen(*qkv, offsets(QUERIES), offsets(KEYS), **options, **more)], [wanted])
    _, states = attention_varlen(*qkv, offsets(QUERIES), offsets(KEYS), return_states=True, **options)
    assert all(x.shape == (4, len(o)) for x in states.values()) and all(ways)
    with pytest.raises(ArgumentError, match=r"key_index\[0, 0, 0\] is 20, but the sequence of query 0 has 20 blocks of 1 keys"):
        attention_varlen(*qkv, offsets(QUERIES), offsets(KEYS), **{**options, "key_index": torch.full_like(index, 20)})


def test_gradients_and_what_else_reads_a_table(ways: list[bool]) -> None:
    """Gradients of q, k, v and captured tensors; rows that look at heads; dropout, with the bits of a mask."""
    qkv, slopes = given(behind=0), torch.rand(4, requires_grad=True)
    for x in qkv:
        x.requires_grad_()
    index = draw(len(qkv[0]), 2, 5)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + slopes[h] * 0.1 * (j - i)

    options: dict[str, Any] = {"mask_mod": masks.causal("bottom_right"), "score_mod": score, "key_index": index, "key_block": (1, 5)}
    o = attention_varlen(*qkv, offsets(QUERIES), offsets(KEYS), **options)
    wanted, _ = exact(qkv, index, 5, bottom_right, score)
    do = torch.randn_like(o)
    found = torch.autograd.grad(o, (*qkv, slopes), do)
    agree([o, *found], [wanted, *torch.autograd.grad(wanted, (*qkv, slopes), do.double())])
    sinks = slopes.detach()

    def with_sinks(s: Tensor, present: Tensor, n: int) -> Tensor:
        return s.exp() / ((s.exp() * present).sum(-1, keepdim=True) + sinks.double().exp().view(4, 1, 1))

    def dropped(s: Tensor, present: Tensor, n: int) -> Tensor:
        keep = attn_mlir.dropout_mask(len(KEYS), 4, s.shape[2], s.shape[3], 0.5, (3, 1))[n]
        return 2 * keep * s.exp() / (s.exp() * present).sum(-1, keepdim=True).clamp(min=1e-300)

    given_index: dict[str, Any] = {"key_index": index, "key_block": (1, 5)}
    with torch.no_grad():
        o = attention_varlen(*qkv, offsets(QUERIES), offsets(KEYS), row=rows.softmax_sink(sinks), **given_index)
        agree([o], [exact(qkv, index, 5, row=with_sinks)[0]])
        o = attention_varlen(*qkv, offsets(QUERIES), offsets(KEYS), dropout_p=0.5, dropout_seed=(3, 1), **given_index)
        agree([o], [exact(qkv, index, 5, row=dropped)[0]])
    assert ways == [False]
    (k, table), (v, _) = (in_pages(x.detach(), KEYS, 16, False) for x in qkv[1:])
    pages: dict[str, Any] = {"seqused_k": ints(*KEYS), "block_table": table, **given_index}
    with pytest.raises(UnsupportedError, match="no gradients"):
        attention_varlen(qkv[0], k, v, offsets(QUERIES), **pages)


def test_what_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    (q, k, v), cu = given(behind=0), (offsets(QUERIES), offsets(KEYS))
    index = draw(len(q), 2, 7).clamp(max=0)
    for message, bad in (
        (r"key_block=\(2, 7\): in attention_varlen each query has a list of its own", {"key_index": index, "key_block": (2, 7)}),
        ("key_index needs key_block", {"key_index": index}),
        ("key_block is for key_index", {"key_block": (1, 1)}),
        ("key_block must be two positive integers", {"key_index": index, "key_block": (1, 0)}),
        ("key_index must be an int32 tensor, got a tensor of torch.int64", {"key_index": index.long(), "key_block": (1, 7)}),
        (r"key_index must be \[queries, 1 or heads", {"key_index": index[1:], "key_block": (1, 7)}),
        (r"got shape \[13, 3, 9\]", {"key_index": index[:, [0, 0, 0]], "key_block": (1, 7)}),
        (r"key_index\[0, 0, 0\] is 90, .* 6 blocks of 7 keys", {"key_index": torch.full_like(index, 90), "key_block": (1, 7)}),
        (r"key_index\[0, 0, 0\] is -2", {"key_index": torch.full_like(index, -2), "key_block": (1, 7)}),
        ("whole results", {"key_index": index, "key_block": (1, 7), "return_partial": True}),
    ):
        options: dict[str, Any] = bad
        with pytest.raises((ArgumentError, UnsupportedError), match=message):
            attention_varlen(q, k, v, *cu, **options)
    (cache, table), (values, _) = (in_pages(x, KEYS, 16, False) for x in (k, v))
    table[2, 1] = 999
    pages: dict[str, Any] = {"seqused_k": ints(*KEYS), "block_table": table, "key_index": index, "key_block": (1, 7)}
    with pytest.raises(ArgumentError, match=r"block_table\[2, 1\] is 999"):
        attention_varlen(q, cache, values, cu[0], **pages)
    with pytest.raises(ArgumentError, match="cu_seqlens_q must not fall"):
        attention_varlen(q, k, v, ints(0, 3, 2, 8, 9, 13), cu[1], key_index=index, key_block=(1, 7))
    monkeypatch.setenv("ATTN_MLIR_CHECK", "1")
    index[4, 1, :2] = 0
    with pytest.raises(ArgumentError, match=r"key_index\[.*\] lists block 0 twice"):
        attention_varlen(q, k, v, *cu, key_index=index, key_block=(1, 7))


def test_compiled_graphs_break_there(ways: list[bool]) -> None:
    qkv, index = given(behind=0), draw(sum(QUERIES), 1, 1)
    options: dict[str, Any] = {"key_index": index, "key_block": (1, 1)}
    o = torch.compile(lambda q: attention_varlen(q + 0, *qkv[1:], offsets(QUERIES), offsets(KEYS), **options) + 1, backend="eager")(qkv[0])
    agree([o - 1], [exact(qkv, index, 1)[0]])
    assert ways == [True]


def test_nothing_to_see() -> None:
    """No sequences, no queries, no keys, empty lists."""
    q, k, v = given(behind=0)
    index = draw(len(q), 1, 1)
    options: dict[str, Any] = {"key_block": (1, 1), "return_lse": True}
    for cu in ((ints(0), ints(0)), (offsets(QUERIES), ints(*[0] * 6))):
        o, lse = attention_varlen(q, k, v, *cu, key_index=torch.full_like(index, -1), **options)
        assert (o == 0).all() and (lse == -torch.inf).all()
    o, lse = attention_varlen(q, k, v, offsets(QUERIES), offsets(KEYS), key_index=index[..., :0], **options)
    assert (o == 0).all() and (lse == -torch.inf).all()
    o, lse = attention_varlen(q[:0], k, v, ints(0, 0), ints(0, 100), key_index=index[:0], **options)
    assert o.shape == (0, 4, 32) and lse.shape == (4, 0)


@needs_host_clang
@pytest.mark.parametrize(("size", "keys", "lists", "in_list"), [(16, 16, 1, True), (64, 32, 2, True), (16, 48, 4, True), (16, 1, 1, False)])
def test_emulated_amd(size: int, keys: int, lists: int, in_list: bool, ways: list[bool]) -> None:
    """Blocks of 16 keys are pages of a cache there; of others a mask is asked, which a warning says."""
    qkv = [x.half() for x in given(behind=0)]
    index = draw(len(qkv[0]), lists, keys)
    (k, table), (v, _) = (in_pages(x, KEYS, size, False) for x in qkv[1:])
    options: dict[str, Any] = {"seqused_k": ints(*KEYS), "block_table": table, "key_index": index, "key_block": (1, keys)}
    options |= {"return_lse": True, "mask_mod": masks.causal("bottom_right"), "device": "hip-emulated"}
    if in_list:
        found = attention_varlen(qkv[0], k, v, offsets(QUERIES), **options)
    else:
        with pytest.warns(PerformanceWarning, match="read as a mask of all keys"):
            found = attention_varlen(qkv[0], k, v, offsets(QUERIES), **options)
    agrees(found, exact(qkv, index, keys, bottom_right), 2e-3)
    assert ways == [in_list]


def test_hopper_makes_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """DSA on MLA's cache: lanes of the producer copy rows, values among the keys; lists of 64 keys are pages for TMA. Nothing spills."""
    texts, before = list[str](), key_varlen.looks_at_scores_alone
    monkeypatch.setattr(key_varlen, "looks_at_scores_alone", lambda text: texts.append(text) or before(text))
    for heads, dim, values, size, keys in ((32, 576, 512, 64, 1), (16, 128, 128, 64, 64)):
        q, k, _ = given((heads, 1), dim, behind=0)
        cache, table = in_pages(k.half(), KEYS, size, False)
        options: dict[str, Any] = {"seqused_k": ints(*KEYS), "block_table": table, "mask_mod": masks.causal("bottom_right")}
        index = draw(len(q), 1, keys)
        attention_varlen(q.half(), cache, cache[..., :values], offsets(QUERIES), key_index=index, key_block=(1, keys), **options)
        made: Any = driver.compile_derivative(texts[-1], "cuda", "", [])
        assert made.gathers()
        form = PartsForm(dim > 256, BY_ROWS) if keys == 1 else PartsForm(False, 0)
        units = made.lower_parts(form)
        assert units[0].schedule["emitter"] == "hopper" and not any(complaints(unit.code) for unit in units)
        assert ("attn::gather_rows<" in units[0].code.source) == (keys == 1)


@pytest.mark.parametrize(
    ("dim", "values", "keys", "size"), [(128, 128, 1, 64), (576, 512, 1, 64), (64, 64, 64, 64), (128, 128, 64, 0), (64, 64, 1, 24)]
)
class TestGpu:
    """On a Hopper GPU, as far as lists are loaded there."""

    pytestmark = GPU

    def test_lists(self, dim: int, values: int, keys: int, size: int, ways: list[bool]) -> None:
        heads = (16, 1) if dim > 256 else (8, 2)
        q, k, v = (x.half() for x in given(heads, dim, values, behind=0))
        v = k[..., :values] if values < dim else v
        index = draw(len(q), 1 if dim != 64 else heads[1], keys, 40)
        where: dict[str, Any] = {"cu_seqlens_k": offsets(KEYS).cuda()}
        there = k.cuda(), v.cuda()
        if size:
            (cache, table), (of_values, _) = (in_pages(x, KEYS, size, False) for x in (k, v))
            cache = cache.cuda()
            there = cache, cache[..., :values] if values < dim else of_values.cuda()
            where = {"seqused_k": ints(*KEYS).cuda(), "block_table": table.cuda()}
        options: dict[str, Any] = {**where, "max_q": 5, "max_k": 100, "mask_mod": masks.causal("bottom_right"), "return_lse": True}
        with torch.no_grad():
            found = attention_varlen(q.cuda(), *there, offsets(QUERIES).cuda(), key_index=index.cuda(), key_block=(1, keys), **options)
        agrees(found, exact((q, k, v), index, keys, bottom_right), 3e-3)
        assert ways == [True]
