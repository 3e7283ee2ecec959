"""Key lists for GPUs whose kernels read keys in pages: each block of queries is a sequence, and the blocks that it lists are its pages.

So kernels load what is listed through a table, and nothing else: the sorted lists are `block_table`, and functions get the true positions.
Short blocks of queries are what decoding is: heads of a group are rows, and a single query sees its keys in parts.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir.api.dropout import NONE
from attn_mlir.api.options import Options
from attn_mlir.api.varlen_inputs import inside_of, problem_of, sequences_of
from attn_mlir.dialects import loaded
from attn_mlir.frontend import sizes as frontend_sizes
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk
from attn_mlir.performance import told
from attn_mlir.runtime.call import Problem
from attn_mlir.runtime.dispatch import dispatch, needing_gradient
from attn_mlir.runtime.key_lists import ListForm
from attn_mlir.runtime.orders import heads_first, in_order, input_order, output_order
from attn_mlir.runtime.varlen import largest

PAGE_ROWS = 16
"""Keys of a block are a multiple of so many where kernels copy pages."""
BLOCK_ROWS = 128
"""Rows of a kernel's block, which queries of several heads that share a list fill where a list has fewer."""
_COPIED = (
    "key_index: k and v are copied at every call, since blocks of one head are not pages there: give heads first (bhsd), a multiple of {} "
    "keys, or one list for all heads"
)
Tensor = torch.Tensor


@dataclass(frozen=True)
class _Sequences:
    """Sequences of (batch entry, head of the lists, block of queries), in this order: how many heads and blocks there are."""

    heads: int
    blocks: int
    group: int
    """Query heads of one head here."""
    fold: int
    """How many of these are rows of a sequence, side by side: each query is so many rows, and kernels see group / fold heads."""
    key_group: int
    """Heads here of one key head."""
    key_heads: int
    """Key heads that a sequence sees."""


def attention_in_pages(
    qkv: tuple[Tensor, Tensor, Tensor], options: Options, index: Tensor, form: ListForm, problem: Problem
) -> tuple[Any] | None:
    """What `attention` returns with these lists, as the only element; None where pages do not do, and a table of blocks has to.

    They do without gradients, for blocks of a multiple of 16 keys, and rows that look at nothing but their scores.
    """
    if form.listed % PAGE_ROWS or not index.numel() or problem.is_empty or needing_gradient(qkv):
        return None
    sizes, order = problem.sizes, input_order(problem.layout)
    q, k, v = (heads_first(x, order) for x in qkv)
    blocks = -(-sizes["Skv"] // form.listed)
    table, used = _sorted(index, blocks, form.listed, sizes["Skv"])
    missing = blocks * form.listed - sizes["Skv"]
    if missing:
        k, v = (torch.nn.functional.pad(x, (0, 0, 0, missing)) for x in (k, v))
    whole = index.shape[1] == 1 and (k.stride(1) < k.stride(2) or sizes["Hkv"] == 1)
    heads = 1 if whole else max(index.shape[1], sizes["Hkv"])
    rows, key_heads = min(form.queries, sizes["Sq"]), sizes["Hkv"] if whole else 1
    group, fold = sizes["Hq"] // heads, _fold(rows, sizes["Hq"] // heads // key_heads)
    made = _Sequences(heads, index.shape[2], group, fold, 1 if whole else heads // sizes["Hkv"], key_heads)
    k_pages, v_pages = (_pages(x, made, blocks) for x in (k, v))
    packed = q.unflatten(1, (heads, group // fold, fold)).permute(0, 1, 4, 3, 2, 5).flatten(0, 3)
    if missing or any(x.data_ptr() != page.data_ptr() for x, page in ((k, k_pages), (v, v_pages))):
        told(_COPIED.format(form.listed), "docs/key-lists.md")
    listed = table[:, _to(heads, table)].flatten(0, 2)
    functions = _wrapped(options.functions, form, made, listed, (sizes["Sq"], sizes["Skv"], sizes["Hq"]))
    asked = Options(functions, options.scale, "bshd", options.lse, options.states, options.device)
    own = torch.arange(0, sizes["Sq"], form.queries, device=index.device)
    lengths = (sizes["Sq"] - own).clamp(max=form.queries).repeat(sizes["B"] * heads) * fold
    first = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    numbers, used = _numbers(listed, made, sizes, blocks), used[:, _to(heads, index)].flatten()
    most = rows * fold, index.shape[3] * form.listed
    sequences = sequences_of(packed, first, None, used, numbers, inside_of(packed, k_pages, numbers, most))
    call = asked.call(problem_of(packed, k_pages, v_pages, True), (packed.unsqueeze(0), k_pages, v_pages), NONE, sequences)
    if needing_gradient(call.values) or not _looks_at_scores_alone(call.entry.traced.text):
        return None
    with largest(*most):
        results = [_back(each.squeeze(0), made, sizes, output_order(problem.layout)) for each in dispatch(call)]
    return (options.named(results, call.entry),)


def _fold(rows: int, group: int) -> int:
    """How many heads of a group, a divisor of it, fill a block with `rows` queries of each. Decoding packs those of single queries."""
    return 1 if rows == 1 else max(n for n in range(1, group + 1) if group % n == 0 and (n == 1 or n * rows <= BLOCK_ROWS))


def _sorted(index: Tensor, blocks: int, keys: int, kv_len: int) -> tuple[Tensor, Tensor]:
    """The lists in order without gaps, what is left 0, and how many keys each has."""
    ordered = torch.where(index < 0, blocks, index).sort(-1).values
    twice = torch.zeros_like(ordered, dtype=torch.bool)
    twice[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
    ordered = torch.where(twice, blocks, ordered).sort(-1).values
    present = ordered < blocks
    used = present.sum(-1) * keys - (ordered == blocks - 1).any(-1) * (blocks * keys - kv_len)
    return torch.where(present, ordered, 0).to(torch.int32), used.to(torch.int32)


def _pages(x: Tensor, made: _Sequences, blocks: int) -> Tensor:
    """[B, H, S, D] as pages [B blocks, keys, H, D], or of single heads [B H blocks, keys, 1, D]."""
    cut = x.unflatten(2, (blocks, -1))
    if made.key_heads > 1 or x.shape[1] == 1:
        return cut.permute(0, 2, 3, 1, 4).flatten(0, 1)
    return cut.flatten(0, 2).unsqueeze(2)


def _to(heads: int, index: Tensor) -> Tensor:
    """Which head of the lists is that of each head of sequences."""
    return torch.arange(heads, device=index.device) * index.shape[1] // heads


def _numbers(rows: Tensor, made: _Sequences, sizes: Mapping[str, Any], blocks: int) -> Tensor:
    """The numbers of pages, [sequences, entries], of those of blocks."""
    first = torch.arange(sizes["B"], device=rows.device)[:, None] * (sizes["Hkv"] // made.key_heads)
    first = (first + torch.arange(made.heads, device=rows.device) // made.key_group) * blocks
    return (rows + first.flatten().repeat_interleave(made.blocks)[:, None]).to(torch.int32)


@functools.lru_cache(256)
def _looks_at_scores_alone(text: str) -> bool:
    """Whether the row of a program does not ask which batch entry, head or query it is, nor for lengths, which are those of a sequence."""
    with loaded():
        module = ir.Module.parse(text)
        for row in find_all(module.operation, "attn.row"):
            places = [value for value in row.regions[0].blocks[0].arguments if isinstance(value.type, ir.IndexType)]
            if any(list(value.uses) for value in places) or any(op.name == "tensor.dim" for op in walk(row)):
                return False
    return True


def _back(x: Tensor, made: _Sequences, sizes: Mapping[str, Any], order: str) -> Tensor:
    """o of all sequences, [rows, heads of one, D], in the order of a layout, and row outputs as [B, Hq, Sq]."""
    counts = sizes["B"], made.heads, sizes["Sq"], made.fold
    if x.dim() == 2:
        return x.unflatten(1, counts).permute(1, 2, 0, 4, 3).flatten(1, 3)
    return in_order(x.unflatten(0, counts).permute(0, 1, 4, 3, 2, 5).flatten(1, 3), order)


def _wrapped(
    functions: tuple[Any, ...], form: ListForm, made: _Sequences, listed: Tensor, lengths: tuple[int, int, int]
) -> tuple[Any, ...]:
    """The functions of true places, as functions of a sequence, a head of it, and positions in it."""
    query_mod, key_mod, value_mod, score_mod, mask_mod, row = functions
    heads, blocks, group, of_key, key_heads = made.heads, made.blocks, made.group, made.key_group, made.key_heads
    queries, keys, fold = form.queries, form.listed, made.fold
    q_len, kv_len, num_heads = lengths

    def entry(b: Any) -> Any:
        return b // (heads * blocks)

    def head(b: Any, h: Any, q: Any) -> Any:
        return (b // blocks) % heads * group + (h if fold == 1 else h * fold + q % fold)

    def query(b: Any, q: Any) -> Any:
        return (b % blocks * queries + (q if fold == 1 else q // fold)).clamp(max=q_len - 1)  # rows past the end are computed, too

    def key(b: Any, kv: Any) -> Any:
        return (listed[b, kv // keys] * keys + kv % keys).clamp(max=kv_len - 1)

    def with_sizes() -> Any:
        return frontend_sizes.given(q_len=q_len, kv_len=kv_len, num_heads=num_heads)

    def of_score(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        with with_sizes():
            return score_mod(score, entry(b), head(b, h, q), query(b, q), key(b, kv))

    def of_mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        with with_sizes():
            return mask_mod(entry(b), head(b, h, q), query(b, q), key(b, kv))

    def of_query(x: Any, b: Any, h: Any, q: Any, d: Any) -> Any:
        with with_sizes():
            return query_mod(x, entry(b), head(b, h, q), query(b, q), d)

    def of_keys(mod: Callable[..., Any]) -> Callable[..., Any]:
        def moded(x: Any, b: Any, h: Any, kv: Any, d: Any) -> Any:
            with with_sizes():
                return mod(x, entry(b), h if key_heads > 1 else (b // blocks) % heads // of_key, key(b, kv), d)

        return moded

    return (
        None if query_mod is None else of_query,
        None if key_mod is None else of_keys(key_mod),
        None if value_mod is None else of_keys(value_mod),
        None if score_mod is None else of_score,
        None if mask_mod is None else of_mask,
        row,
    )
