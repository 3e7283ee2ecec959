"""Serving on an NVIDIA GPU: pages, plans in CUDA graphs, append_kv, the same bits in every run and in every batch."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from attn_mlir import append_kv, attention, attention_varlen, masks, plan_varlen, rows
from gpu_cases import GPU
from test_append_kv import tables
from test_varlen_paged import in_pages, ints
from varlen_cases import CASES, offsets

pytestmark = GPU
QUERIES, KEYS = (17, 1, 0, 5, 140, 1, 2), (100, 77, 3, 0, 140, 300, 1029)
Tensor = torch.Tensor


def given(queries: int, keys: int, heads: tuple[int, int] = (4, 2), dim: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v in f16, drawn on the CPU."""
    q, (k, v) = torch.randn(queries, heads[0], dim).half(), torch.randn(2, keys, heads[1], dim).half()
    return q.cuda(), k.cuda(), v.cuda()


def in_cache(x: Tensor, lengths: Sequence[int], size: int, heads_first: bool) -> tuple[Tensor, Tensor]:
    """`in_pages` on the GPU, with the strides that it has."""
    cache, table = in_pages(x.cpu(), lengths, size, heads_first)
    return (cache.transpose(1, 2).cuda().transpose(1, 2) if heads_first else cache.cuda()), table.cuda()


@pytest.mark.parametrize(("size", "heads_first"), [(16, False), (64, True), (256, False)])
@pytest.mark.parametrize("single", [False, True])
def test_pages_are_packed_keys(size: int, heads_first: bool, single: bool) -> None:
    queries = (1, 1, 0, 1, 1, 1, 1) if single else QUERIES
    q, k, v = given(sum(queries), sum(KEYS))
    options: dict[str, Any] = {"mask_mod": masks.causal("bottom_right"), "max_q": max(queries), "max_k": max(KEYS)}
    with torch.no_grad():
        wanted = attention_varlen(q, k, v, offsets(queries).cuda(), offsets(KEYS).cuda(), **options)
        packed = k, v
        (k, table), (v, _) = (in_cache(x, KEYS, size, heads_first) for x in (k, v))
        pages: dict[str, Any] = {"seqused_k": ints(*KEYS).cuda(), "block_table": table}
        o = attention_varlen(q, k, v, offsets(queries).cuda(), **pages, **options)
        torch.testing.assert_close(o, wanted, atol=0 if single else 2e-3, rtol=0)  # several queries have another kernel on packed keys
        for other in (1, 24) if single else ():  # pages of any size, whose rows are copied one by one
            caches = [in_cache(x, KEYS, other, heads_first) for x in packed]
            small: dict[str, Any] = {**pages, "block_table": caches[0][1]}
            o = attention_varlen(q, caches[0][0], caches[1][0], offsets(queries).cuda(), **small, **options)
            assert torch.equal(o, wanted)
        for parts in (1, 5) if single else ():
            o = attention_varlen(q, k, v, offsets(queries).cuda(), **pages, **options, num_splits=parts)
            torch.testing.assert_close(o, wanted, atol=2e-3, rtol=0)
        bad = {**pages, "block_table": torch.full_like(table, 2**31 - 1)}  # of no page, and nobody looks
        assert torch.isfinite(attention_varlen(q, k, v, offsets(queries).cuda(), **bad, **options)).all()
        torch.cuda.synchronize()


@pytest.mark.parametrize("paged", [False, True])
def test_append_kv_writes_what_a_cpu_does(paged: bool) -> None:
    lengths, new, size = ints(0, 5, 15), 3, 16
    k, v, q = (torch.randn(3, new, heads, 64).half() for heads in (2, 2, 4))
    caches = [torch.randn(6, size, 2, 64).half() if paged else torch.randn(5, 18, 2, 64).half() for _ in range(2)]
    place: dict[str, Any] = {"block_table": ints(5, 0, 3, 1, 2, 4).view(3, 2)} if paged else {"cache_batch_idx": ints(4, 0, 2)}
    cos, sin = tables(32, 64)
    more: dict[str, Any] = {**place, "q": q, "rotary_cos": cos, "rotary_sin": sin}
    on_gpu = [x.cuda() for x in caches]
    wanted = append_kv(caches[0], caches[1], k, v, lengths, **more)
    there = {name: x.cuda() for name, x in more.items()}
    k, v, used, graph = k.cuda(), v.cuda(), lengths.cuda(), torch.cuda.CUDAGraph()
    append_kv(on_gpu[0], on_gpu[1], k, v, used, **there)  # what a capture needs is made
    with torch.cuda.graph(graph):
        got = append_kv(on_gpu[0], on_gpu[1], k, v, used, **there)
    graph.replay()
    assert got is not None and wanted is not None
    for a, b in zip((*on_gpu, got), (*caches, wanted), strict=True):
        torch.testing.assert_close(a.cpu(), b, atol=2e-3, rtol=1e-3)
    before = [x.clone() for x in on_gpu]
    used.fill_(1000)  # outside of the caches
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(on_gpu, before, strict=True))


def test_plans_are_captured_and_lengths_change() -> None:
    """Decoding by a plan in a CUDA graph: lengths grow in place, the results are those of plain calls."""
    q, k, v = given(3, 8 * 64, (8, 2), 128)
    k, v = (x.view(8, 64, 2, 128) for x in (k, v))
    used, table = ints(20, 0, 65).cuda(), ints(3, 1, 0, 5, 7, 2).view(3, 2).cuda()
    options: dict[str, Any] = {"seqused_k": used, "block_table": table, "mask_mod": masks.causal("bottom_right"), "max_q": 1, "max_k": 128}
    cu = offsets([1, 1, 1]).cuda()
    plan = plan_varlen(cu, q_heads=8, kv_heads=2, head_dim=128, dtype=torch.float16, **options)
    with torch.no_grad():
        plan.run(q, k, v)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = plan.run(q, k, v)
        for lengths in ((20, 0, 65), (21, 1, 66), (128, 128, 128)):
            used.copy_(ints(*lengths))
            graph.replay()
            assert torch.equal(o, attention_varlen(q, k, v, cu, **options))
        assert torch.isfinite(o).all() and (o != 0).any()


@pytest.mark.parametrize("name", ["causal", "alibi", "sigmoid"])
def test_gradients_have_the_same_bits_in_every_run(name: str) -> None:
    """deterministic=True, with many blocks of keys that meet; close to the sums in any order."""
    lengths = ((700, 0, 1, 900, 130), (700, 3, 5, 1000, 130))
    with torch.device("cuda"):
        case = CASES[name]()
        q, k, v = case.tensors(lengths, torch.float16, 64)
        leaves = (q, k, v, *(x for x in case.captures if x.requires_grad))
        do = torch.randn(sum(lengths[0]), case.heads[0], 64).half()
        made = [torch.autograd.grad(case.run(q, k, v, lengths, deterministic=True), leaves, do) for _ in range(4)]
        wanted = torch.autograd.grad(case.run(q, k, v, lengths), leaves, do)
    for several in made[1:]:
        assert all(torch.equal(a, b) for a, b in zip(several, made[0], strict=True))
    for got, want in zip(made[0], wanted, strict=True):
        assert (got.double() - want.double()).norm() <= 2e-3 * want.double().norm()


def test_bad_offsets_end_with_an_order_of_sums() -> None:
    """Offsets that nobody checks ask for more counters than there are: numbers are wrong then, and nothing waits for ever."""
    q = torch.randn(600, 4, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    cu = torch.tensor([0, 600, -7, 600, 10, 600], dtype=torch.int32, device="cuda")
    o = attention_varlen(q, q, q, cu, mask_mod=masks.causal(), max_q=600, max_k=600, deterministic=True)
    torch.autograd.grad(o.sum(), q)
    torch.cuda.synchronize()


def test_a_sequence_has_the_same_bits_in_every_batch() -> None:
    """batch_invariant=True: o of single and of several queries, and gradients, alone and beside others."""
    one = given(300, 2500)
    single = given(1, 5000)
    options: dict[str, Any] = {"mask_mod": masks.causal("bottom_right"), "batch_invariant": True}

    def together(before: Sequence[tuple[int, int]], mine: tuple[Tensor, Tensor, Tensor], **more: Any) -> list[Tensor]:
        queries, keys = zip(*before, (mine[0].shape[0], mine[1].shape[0]), (3, 9), strict=True)
        leaves = given(sum(queries), sum(keys))
        places = sum(queries[: len(before)]), *[sum(keys[: len(before)])] * 2
        for x, part, at in zip(leaves, mine, places, strict=True):
            x[at : at + len(part)] = part
        cu = offsets(queries).cuda(), offsets(keys).cuda()
        with torch.no_grad():
            o = attention_varlen(*leaves, *cu, **options, **more)
        if len(mine[0]) == 1:
            return [o[places[0] : places[0] + 1]]
        for x in leaves:
            x.requires_grad_()
        do = torch.linspace(-1, 1, mine[0].numel(), device="cuda").view(mine[0].shape).half()
        trained = attention_varlen(*leaves, *cu, **options, **more)[places[0] : places[0] + len(do)]
        found = torch.autograd.grad(trained, leaves, do)
        return [o[places[0] : places[0] + len(do)], *(x[at : at + len(p)] for x, p, at in zip(found, mine, places, strict=True))]

    for mine in (one, single):
        alone = together([], mine)
        for before in ([(1, 700), (1, 3000)], [(2000, 2000), (0, 4), (1, 1)]):
            assert all(torch.equal(a, b) for a, b in zip(together(before, mine), alone, strict=True))
    cu = offsets([1]).cuda(), offsets([5000]).cuda()
    with torch.no_grad():
        by_itself = attention_varlen(*single, *cu, max_q=1, max_k=5000, **options)
        assert torch.equal(by_itself, together([(40, 40)], single)[0])
        torch.testing.assert_close(
            by_itself, attention_varlen(*single, *cu, row=rows.softmax, **{**options, "batch_invariant": False}), atol=2e-3, rtol=0
        )


@pytest.mark.parametrize(("dim", "values"), [(576, 512), (1024, 1024), (320, 264), (128, 512)])
def test_wide_heads(dim: int, values: int) -> None:
    """Whole attention of MLA's widths and others against float64; v is a part of k's storage."""
    q, k = torch.randn(1, 4, 130, dim, device="cuda").half(), torch.randn(1, 1, 300, max(dim, values), device="cuda").half()
    k, v = k[..., :dim], k[..., :values]
    o, lse = attention(q, k, v, mask_mod=masks.causal("bottom_right"), return_lse=True)
    s = q.double() @ k.double().mT / dim**0.5
    s.masked_fill_(torch.ones(130, 300, dtype=torch.bool, device="cuda").triu(171), -torch.inf)
    wanted = torch.softmax(s, -1) @ v.double()
    assert (o.double() - wanted).norm() <= 2e-3 * wanted.norm()
    torch.testing.assert_close(lse.double(), torch.logsumexp(s, -1), atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("paged", [False, True])
def test_latent_decoding(paged: bool) -> None:
    """MLA's decoding, 128 heads of one of keys: single queries in parts, packed and in pages, of any row."""
    keys = (1000, 0, 17, 3000)
    q, k = torch.randn(4, 128, 576, device="cuda").half(), torch.randn(sum(keys), 1, 576, device="cuda").half()
    cu = offsets([1] * 4).cuda()
    options: dict[str, Any] = {"max_q": 1, "max_k": 3000, "scale": 1 / 192**0.5}
    where: dict[str, Any] = {"cu_seqlens_k": offsets(keys).cuda()}
    cache = k
    if paged:
        cache, table = in_cache(k, keys, 64, False)
        where = {"seqused_k": ints(*keys).cuda(), "block_table": table}
    for row in (rows.softmax, rows.sigmoid):
        o = attention_varlen(q, cache, cache[..., :512], cu, **where, row=row, **options)
        for b, part in enumerate(k.split(keys)):
            s = q[b].double() @ part[:, 0].double().T / 192**0.5
            wanted = (torch.softmax(s, -1) if row is rows.softmax else torch.sigmoid(s)) @ part[:, 0, :512].double()
            assert (o[b].double() - wanted).norm() <= 2e-3 * wanted.norm()


@pytest.mark.parametrize(("dim", "values"), [(576, 512), (512, 384), (512, 512)])
def test_values_among_keys_are_other_values(dim: int, values: int) -> None:
    """The kernel that loads values with the keys gives what slices of values in memory of their own give, in many parts, or one."""
    keys, heads = (5000, 1, 0, 129, 64), 72
    q, k = torch.randn(5, heads, dim, device="cuda").bfloat16(), torch.randn(sum(keys), 1, dim, device="cuda").bfloat16()
    slopes = torch.rand(heads, device="cuda")
    options: dict[str, Any] = {"max_q": 1, "max_k": 5000, "score_mod": lambda s, b, h, i, j: s + slopes[h] * 0.01 * j, "return_lse": True}
    cu = offsets([1] * 5).cuda(), offsets(keys).cuda()
    for splits in (0, 1, 7):
        found = attention_varlen(q, k, k[..., :values], *cu, num_splits=splits, **options)
        wanted = attention_varlen(q, k, k[..., :values].clone(), *cu, num_splits=splits, **options)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, atol=4e-3, rtol=2e-2)
        again = attention_varlen(q, k, k[..., :values], *cu, num_splits=splits, **options)
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
