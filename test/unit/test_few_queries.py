"""A few queries of each packed sequence, as sequences of single queries, on GPUs: against float64, and where they stay as they are."""

from typing import Any

import pytest
import torch

import attn_mlir
from amd_tools import needs_host_clang
from attn_mlir import attention_varlen, masks, rows
from attn_mlir.api import few_queries, short_sequences
from attn_mlir.errors import ArgumentError
from gpu_cases import GPU
from spies import note_ways
from test_key_varlen import KEYS, QUERIES, agrees, bottom_right, exact, given, top_left
from test_varlen_paged import in_pages, ints
from varlen_cases import offsets

Tensor = torch.Tensor
LARGEST: dict[str, Any] = {"max_q": max(QUERIES), "max_k": max(KEYS)}


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether calls are those of single queries."""
    return note_ways(monkeypatch, few_queries, "single_queries")


def all_keys(queries: int) -> Tensor:
    """A list of one block that has all keys, for `exact`."""
    return torch.zeros(queries, 1, 1, dtype=torch.int32)


def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + 0.1 * h * (j - i) + 0.3 * b


def window(b: Any, h: Any, i: Any, j: Any) -> Any:
    last = i + attn_mlir.kv_len() - attn_mlir.q_len()
    return (last >= j) & (last - j <= 9 + b)


def dense_window(n: int, h: Tensor, i: Tensor, j: Tensor, q_len: int, kv_len: int) -> Tensor:
    return (i + kv_len - q_len >= j) & (i + kv_len - q_len - j <= 9 + n)


KINDS: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "all keys": ({}, ()),
    "top left": ({"mask_mod": masks.causal()}, (top_left,)),
    "bottom right": ({"mask_mod": masks.causal("bottom_right"), "num_splits": 2}, (bottom_right,)),
    "functions": ({"mask_mod": window, "score_mod": score}, (dense_window, score)),
}


@needs_host_clang
@pytest.mark.parametrize("size", [0, 16])
@pytest.mark.parametrize("kind", list(KINDS))
def test_emulated_amd(kind: str, size: int, ways: list[bool]) -> None:
    """Rows of no sequence and sequences without queries or keys included."""
    q, k, v = (x.half() for x in given((8, 2), behind=0 if size else 2))
    options, how = KINDS[kind]
    where: dict[str, Any] = {"cu_seqlens_k": offsets(KEYS)}
    there = k, v
    if size:
        (cache, table), (values, _) = (in_pages(x, KEYS, size) for x in (k, v))
        there, where = (cache, values), {"seqused_k": ints(*KEYS), "block_table": table}
    found = attention_varlen(q, there[0], there[1], offsets(QUERIES), **where, **LARGEST, **options, return_lse=True, device="hip-emulated")
    agrees(found, exact((q, k, v), all_keys(len(q)), 200, *how), 3e-3)
    assert ways == [True]


@needs_host_clang
@pytest.mark.parametrize("size", [0, 16])
@pytest.mark.parametrize("kind", list(KINDS))
def test_queries_as_heads(kind: str, size: int, ways: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 16 queries for each head of a group of 4, which would be more blocks as single ones; only where there are keys enough."""
    q, k, v = (x.half() for x in given((8, 2), behind=0 if size else 2))
    options, how = KINDS[kind]
    where: dict[str, Any] = {"cu_seqlens_k": offsets(KEYS)}
    there = k, v
    if size:
        (cache, table), (values, _) = (in_pages(x, KEYS, size) for x in (k, v))
        there, where = (cache, values), {"seqused_k": ints(*KEYS), "block_table": table}
    options = {**where, **LARGEST, **options, "max_q": 16, "return_lse": True, "device": "hip-emulated"}
    wanted = exact((q, k, v), all_keys(len(q)), 200, *how)
    for least in (8192, 1):
        monkeypatch.setattr(few_queries, "LONG", least)
        agrees(attention_varlen(q, there[0], there[1], offsets(QUERIES), **options), wanted, 3e-3)
    assert ways == [False, True]


def test_what_pays() -> None:
    """Groups of 4: up to 7 queries are fewer blocks as single ones, but fewer still as heads; as many blocks are left as they are."""
    assert few_queries.pays(7, 4) and few_queries.folds(7, 4) and not few_queries.pays(16, 4, 100) and few_queries.pays(16, 4, 1 << 15)
    assert few_queries.pays(4, 128) and not few_queries.folds(4, 128) and not few_queries.pays(1, 4) and not few_queries.pays(2, 1)
    assert not few_queries.pays(17, 4, 1 << 15)


@needs_host_clang
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=str)
@pytest.mark.parametrize("kind", list(KINDS))
def test_short_sequences_side_by_side(kind: str, heads: tuple[int, int], ways: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Many short sequences in one block of queries; mods of keys see those of their own sequence."""
    monkeypatch.setattr(short_sequences, "LEAST", 1)
    made: list[Any] = []
    before = short_sequences.side_by_side
    monkeypatch.setattr(short_sequences, "side_by_side", lambda *given: made.append(before(*given)) or made[-1])
    q, k, v = (x.half() for x in given(heads))
    options, how = KINDS[kind]
    options = {name: value for name, value in options.items() if name != "num_splits"}
    mods: dict[str, Any] = {}
    if kind == "functions":
        mods = {
            "query_mod": lambda x, b, h, i, d: x * (1 + 0.1 * i),
            "key_mod": lambda x, b, h, j, d: x * (1 - 0.01 * j + 0.1 * b),
            "value_mod": lambda x, b, h, j, d: x * (1 + 0.02 * j),
        }
    cu = offsets(QUERIES), offsets(KEYS)
    found = attention_varlen(q, k, v, *cu, **LARGEST, **options, **mods, return_lse=True, device="hip-emulated")
    i, j = (torch.cat([*[torch.arange(n) for n in lengths], torch.zeros(2)])[:, None, None] for lengths in (QUERIES, KEYS))
    b = torch.repeat_interleave(torch.arange(len(KEYS) + 1), torch.tensor([*KEYS, 2]))[:, None, None]
    if mods:
        q, k, v = (q * (1 + 0.1 * i)).half(), (k * (1 - 0.01 * j + 0.1 * b)).half(), (v * (1 + 0.02 * j)).half()
    agrees(found, exact((q, k, v), all_keys(len(q)), 200, *how), 1e-2 if mods else 3e-3)
    assert made[0] is not None and ways == []


LAST = masks.causal("bottom_right")
TABLE, OF_QUERIES = torch.linspace(-1, 1, max(KEYS)), torch.tensor([0.3, -0.2, 0.5, 0.1, -0.4])
PLACED: dict[str, dict[str, Any]] = {
    "query": {"score_mod": lambda s, b, h, i, j: s + OF_QUERIES[i] * h},
    "shifted": {"score_mod": lambda s, b, h, i, j: s + TABLE[i + attn_mlir.kv_len() - attn_mlir.q_len()] * h, "mask_mod": LAST},
    "key": {"score_mod": lambda s, b, h, i, j: s + TABLE[attn_mlir.kv_len() - 1 - j]},
    "x alone": {"query_mod": lambda x: x * 0.5, "key_mod": torch.tanh, "value_mod": lambda x: x + 1},
    "all of it": {
        "query_mod": lambda x, b, h, i, d: x * (1 + 0.1 * i + 0.05 * h - 0.1 * b),
        "key_mod": lambda x, b, h, j, d: x * (1 + 0.01 * j - 0.1 * h),
        "value_mod": lambda x, b, h, j, d: x + 0.1 * h + 0.01 * d,
    },
}
"""Functions that read tensors by positions, and mods of one argument and of all."""


@needs_host_clang
@pytest.mark.parametrize("way", ["heads", "single", "side by side", "lists"])
@pytest.mark.parametrize("kind", list(PLACED))
def test_captured_tensors_and_mods(kind: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that just fit, whose places follow from lengths, and mods that take x alone, as without another form of the call."""
    q, k, v = (x.half() for x in given((8, 2)))
    options, cu = PLACED[kind], (offsets(QUERIES), offsets(KEYS))
    monkeypatch.setattr(few_queries, "LONG", 1 if way == "heads" else 1 << 30)
    monkeypatch.setattr(few_queries, "folds", lambda *_: way == "heads")
    monkeypatch.setattr(short_sequences, "LEAST", 1 if way == "side by side" else 1 << 30)
    lists: dict[str, Any] = {"key_index": all_keys(len(q)), "key_block": (1, 112)} if way == "lists" else {}
    wanted = attention_varlen(q.float(), k.float(), v.float(), *cu, **options, return_lse=True)
    index = lists.get("key_index")
    if index is not None:
        index[sum(QUERIES) - QUERIES[-1] :] = -1  # of the sequence without keys, and rows of none
    device = "cpu" if lists else "hip-emulated"  # which also has queries as sequences
    found = attention_varlen(q, k, v, *cu, **LARGEST, **options, **lists, return_lse=True, device=device)
    agrees(found, (wanted[0].double(), wanted[1].double()), 1e-2)


@needs_host_clang
def test_mixed_batches_stay_single(ways: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """As heads, a sequence of one query would have as many rows as the longest one."""
    monkeypatch.setattr(few_queries, "LONG", 1)
    monkeypatch.setattr(few_queries, "_as_heads", lambda *_: pytest.fail("queries are heads"))
    lengths = (16, *[1] * 11)
    q, k = torch.randn(27, 32, 32).half(), torch.randn(12 * 9, 1, 32).half()
    cu = offsets(lengths), offsets([9] * 12)
    found = attention_varlen(q, k, k, *cu, max_q=16, max_k=9, device="hip-emulated")
    assert ways == [True] and (found - attention_varlen(q.float(), k.float(), k.float(), *cu)).abs().max() < 3e-3


@needs_host_clang
def test_what_stays_as_it_is(ways: list[bool]) -> None:
    """Gradients, an order of sums for each batch, rows that look at heads, as many queries as heads, lengths that are not known."""
    q, k, v = (x.half() for x in given((4, 2), behind=0))
    options: dict[str, Any] = {**LARGEST, "device": "hip-emulated", "return_lse": True}
    cu, wanted = (offsets(QUERIES), offsets(KEYS)), exact((q, k, v), all_keys(len(q)), 200)
    agrees(attention_varlen(q, k, v, *cu, batch_invariant=True, **options), wanted, 3e-3)
    agrees(attention_varlen(q.clone().requires_grad_(), k, v, *cu, **options), wanted, 3e-3)
    narrow = exact((q[:, :2], k, v), all_keys(len(q)), 200)
    agrees(attention_varlen(q[:, :2], k, v, *cu, **options), narrow, 3e-3)
    assert ways == [False] * 3
    agrees(attention_varlen(q, k, v, *cu, **{**options, "max_k": None}), wanted, 3e-3)
    attention_varlen(q, k, v, *cu, row=rows.softmax_sink(torch.rand(4)), **options)
    attention_varlen(q, k, v, *cu, dropout_p=0.5, dropout_seed=(3, 1), **options)
    assert ways == [False] * 4
    with pytest.raises(ArgumentError, match="cu_seqlens_k ends at"):
        attention_varlen(q, k[:-9], v[:-9], *cu, **options)
    with pytest.raises(ArgumentError, match="cu_seqlens_q must not fall"):
        attention_varlen(q, k, v, ints(0, 3, 2, 8, 9, 13), cu[1], **{**options, "max_q": 6})


@pytest.mark.parametrize(("heads", "dim", "values"), [((128, 1), 576, 512), ((32, 4), 128, 128), ((16, 2), 64, 64)])
class TestGpu:
    """On a Hopper GPU."""

    pytestmark = GPU

    @pytest.mark.parametrize("size", [0, 16, 64])
    def test_numbers(
        self, heads: tuple[int, int], dim: int, values: int, size: int, ways: list[bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """MLA's heads and others, whose queries are heads, packed and in pages, and a graph whose lengths change."""
        monkeypatch.setattr(few_queries, "LONG", 1)
        q, k, v = (x.half() for x in given(heads, dim, values, behind=0))
        v = k[..., :values] if values < dim else v
        where: dict[str, Any] = {"cu_seqlens_k": offsets(KEYS).cuda()}
        there = k.cuda(), v.cuda()
        if size:
            (cache, table), (of_values, _) = (in_pages(x, KEYS, size) for x in (k, v))
            there = cache.cuda(), of_values.cuda()
            where = {"seqused_k": ints(*KEYS).cuda(), "block_table": table.cuda()}
        if values < dim:
            there = there[0], there[0][..., :values]
        options: dict[str, Any] = {**where, **LARGEST, "mask_mod": masks.causal("bottom_right"), "return_lse": True}
        cu, on = offsets(QUERIES).cuda(), q.cuda()
        with torch.no_grad():
            found = attention_varlen(on, *there, cu, **options)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                replayed = attention_varlen(on, *there, cu, **options)
            graph.replay()
        agrees(found, exact((q, k, v), all_keys(len(q)), 200, bottom_right), 3e-3)
        assert all(torch.equal(a, b) for a, b in zip(found, replayed, strict=True)) and ways == [True, True]
        if size:
            where["seqused_k"].copy_(ints(*[min(n, 3) for n in KEYS]))
            graph.replay()
            with torch.no_grad():
                shorter = attention_varlen(on, *there, cu, **options)
            assert all(torch.equal(a, b) for a, b in zip(shorter, replayed, strict=True)) and not torch.equal(found[0], replayed[0])
