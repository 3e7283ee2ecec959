"""Blocks of queries with lists of keys as sequences: where their rows lie, which functions they see, and their results in the whole."""

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from attn_mlir.api.makers import MADE
from attn_mlir.api.masks import causal
from attn_mlir.api.rows import softmax
from attn_mlir.backends.kept import kept_by_sizes
from attn_mlir.backends.prepared import ListShapes, PreparedLists, WantedLists
from attn_mlir.backends.work import keep_work
from attn_mlir.dialects import loaded
from attn_mlir.frontend import sizes as frontend_sizes
from attn_mlir.frontend.program import with_positions
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk
from attn_mlir.runtime.call import Problem
from attn_mlir.runtime.key_lists import ListForm

BLOCK_ROWS = 128
"""Rows of a kernel's block, which queries of several heads that share a list fill where a list has fewer."""
Tensor = torch.Tensor
_MOST = 256


@dataclass(frozen=True)
class SequenceForm:
    """Sequences of (batch entry, head of the lists, block of queries), in this order: how many heads and blocks there are."""

    batch: int
    heads: int
    blocks: int
    queries: int
    """Of all blocks."""
    group: int
    """Query heads of one head here."""
    fold: int
    """How many of these are rows of a sequence, side by side: each query is so many rows, and kernels see group / fold heads."""
    key_group: int
    """Heads here of one key head."""
    key_heads: int
    """Key heads that a sequence sees."""
    all_key_heads: int

    @property
    def apart(self) -> int:
        """Heads of one key head that kernels see. Query head h of a head here is (key head, row, one of these)."""
        return self.group // self.fold // self.key_heads


def sequences_of_lists(problem: Problem, form: ListForm, heads: int, whole: bool, options: tuple[bool, bool]) -> SequenceForm:
    """The sequences of lists of so many `heads`; where they are `whole`, one head has all heads of keys.

    `options`: whether single queries are decoded, and whether each head has rows of its own, as dropout needs them.
    """
    return _sequences_of(tuple([problem.sizes[name] for name in ("B", "Hq", "Hkv", "Sq")]), form.queries, heads, whole, options)


@functools.lru_cache(_MOST)
def _sequences_of(sizes: tuple[int, ...], queries: int, given: int, whole: bool, options: tuple[bool, bool]) -> SequenceForm:
    (batch, q_heads, kv_heads, length), (decoded, apart) = sizes, options
    heads, key_heads = (1, kv_heads) if whole else (max(given, kv_heads), 1)
    group, rows = q_heads // heads, min(queries, length)
    fold = 1 if apart else fold_of(rows, group // key_heads, decoded)
    key_group = 1 if whole else heads // kv_heads
    return SequenceForm(batch, heads, -(-length // queries), length, group, fold, key_group, key_heads, kv_heads)


def shapes_of(made: SequenceForm, index: Tensor, form: ListForm, kv_len: int, shift: int | None) -> ListShapes:
    """What sizes say of lists; `shift`: that of `causal_shift`."""
    blocks = -(-kv_len // form.listed)
    per_head = made.heads // index.shape[1], made.key_group, made.all_key_heads // made.key_heads
    batch, heads, lists, count = index.shape
    return ListShapes(batch, heads, lists, count, blocks, form.listed, kv_len, form.queries, made.queries, shift, *per_head)


def wanted_of(functions: tuple[Any, ...], shapes: ListShapes, drops: bool, inverse: bool) -> WantedLists:
    """What is read of lists where these functions see true positions."""
    moded = any([f is not None for f in functions[:4]]) or (functions[4] is not None and shapes.shift is None)
    seen = shapes.shift is not None and min(shapes.queries, shapes.q_len) > 1
    return WantedLists(moded and shapes.keys == 1, drops or (moded and shapes.keys > 1), seen, inverse)


def fold_of(rows: int, group: int, decoded: bool) -> int:
    """How many heads of a group, a divisor of it, fill a block with `rows` queries of each. Decoding packs those of single queries."""
    return 1 if rows == 1 and decoded else max(n for n in range(1, group + 1) if group % n == 0 and (n == 1 or n * rows <= BLOCK_ROWS))


class Rearranged(NamedTuple):
    """A view of a tensor with more dimensions, `size` and `stride`, what shape it is flattened to, and whether it is copied before."""

    size: torch.Size
    stride: tuple[int, ...]
    shape: torch.Size
    copied: bool

    def of(self, x: Tensor) -> Tensor:
        """That of a tensor of the shape and strides that it was made for: as few operations as there can be."""
        found = x.as_strided(self.size, self.stride)
        return (dense(found) if self.copied else found).reshape(self.shape)


def packed_rows(x: Tensor, made: SequenceForm) -> Tensor:
    """[B, Hq, Sq, D] as the rows of all sequences, [rows, heads of one, D], a view where strides allow."""
    return _packing(x.shape, x.stride(), made).of(x)


@functools.lru_cache(_MOST)
def _packing(shape: torch.Size, stride: tuple[int, ...], made: SequenceForm) -> Rearranged:
    """See `packed_rows`."""
    x = torch.empty_strided(shape, stride, device="meta")
    x = x.unflatten(1, (made.heads, made.key_heads, made.fold, made.apart)).permute(0, 1, 5, 3, 2, 4, 6)
    groups = [[dim for dim in group if x.shape[dim] > 1] for group in ((0, 1, 2, 3), (4, 5))]
    copied = any(x.stride(a) != x.shape[b] * x.stride(b) for dims in groups for a, b in itertools.pairwise(dims))
    return Rearranged(x.shape, x.stride(), x.contiguous().flatten(4, 5).flatten(0, 3).shape, copied)


def dense(x: Tensor) -> Tensor:
    """`x` without gaps in memory; a copy moves words of 8 bytes where rows have such."""
    if x.is_contiguous():
        return x
    words = 8 // x.element_size()
    if x.stride(-1) != 1 or any(n % words for n in (x.shape[-1], x.storage_offset(), *x.stride()[:-1])):
        return x.contiguous()
    return x.view(torch.int64).contiguous().view(x.dtype)


def mask_of_seen(seen: Tensor | None, fold: int) -> Callable[..., Any] | None:
    """A causal mask by how many keys of its list each query sees; single queries have no other keys."""
    if seen is None:
        return None

    def mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return kv < seen[b, q if fold == 1 else q // fold]

    return mask


def causal_shift(mask: Any, sizes: Mapping[str, Any]) -> int | None:
    """Of `masks.causal`, query i sees the keys up to i and so many more; None for other masks.

    Lists are in order, so that a query sees the first keys of its list, and no function has to tell.
    """
    make, args, kwargs = getattr(mask, MADE, (None, (), {}))
    if make is not causal or hasattr(mask, "__wrapped__"):  # functools.wraps gives its attributes to another function
        return None
    return sizes["Skv"] - sizes["Sq"] if (*args, *kwargs.values()) == ("bottom_right",) else 0


def end_of(mask: Any) -> int:
    """See `ListPlaces.end`; 0 for masks that are asked."""
    shift = causal_shift(mask, {"Skv": 1, "Sq": 0})
    return 0 if shift is None else 1 + shift


def ready_made_shift(functions: tuple[Any, ...], sizes: Mapping[str, Any]) -> tuple[int | None] | None:
    """`causal_shift` of functions that are all ready made and capture nothing, in a tuple; None of others."""
    for function in functions[:4]:
        if function is not None:
            return None
    if functions[5] is not softmax:
        return None
    shift = None if functions[4] is None else causal_shift(functions[4], sizes)
    return None if shift is None and functions[4] is not None else (shift,)


def places_of(made: SequenceForm, queries: int, device: torch.device) -> dict[str, Tensor]:
    """Where the queries of sequences are."""

    def make() -> dict[str, Tensor]:
        own = torch.arange(0, made.queries, queries, device=device)
        lengths = (made.queries - own).clamp(max=queries).repeat(made.batch * made.heads) * made.fold
        places = {"q_begins": lengths.cumsum(0) - lengths, "q_lengths": lengths, "k_begins": torch.zeros_like(lengths)}
        found = {name: value.to(torch.int32) for name, value in places.items()}
        keep_work(found["q_lengths"])
        return found

    return kept_by_sizes((made, queries, device), make)


@functools.lru_cache(256)
def looks_at_scores_alone(text: str) -> bool:
    """Whether the row of a program does not ask which batch entry, head or query it is, nor for lengths, which are those of a sequence."""
    with loaded():
        module = ir.Module.parse(text)
        for row in find_all(module.operation, "attn.row"):
            places = [value for value in row.regions[0].blocks[0].arguments if isinstance(value.type, ir.IndexType)]
            if any(list(value.uses) for value in places) or any(op.name == "tensor.dim" for op in walk(row)):
                return False
    return True


def in_whole(x: Tensor, made: SequenceForm, order: str) -> Tensor:
    """o of all sequences, [rows, heads of one, D], in the order of a layout, and row outputs as [B, Hq, Sq]."""
    return _unpacking(x.shape, x.stride(), made, order).of(x)


@functools.lru_cache(_MOST)
def _unpacking(shape: torch.Size, stride: tuple[int, ...], made: SequenceForm, order: str) -> Rearranged:
    """See `in_whole`."""
    rows, heads = (made.batch, made.heads, made.queries, made.fold), (made.key_heads, made.apart)
    x = torch.empty_strided(shape, stride, device="meta")
    if x.dim() == 2:
        view, first = x.unflatten(1, rows).unflatten(0, heads).permute(2, 3, 0, 5, 1, 4), 1
    else:
        apart = x.unflatten(1, heads).unflatten(0, rows)
        orders = {"bhsd": ((0, 1, 4, 3, 5, 2, 6), 1), "bshd": ((0, 2, 1, 4, 3, 5, 6), 2), "sbhd": ((2, 0, 1, 4, 3, 5, 6), 2)}
        permuted, first = orders[order]
        view = apart.permute(permuted)
    whole = view.contiguous().flatten(first, first + 3)
    return Rearranged(view.shape, view.stride(), whole.shape, x.dim() > 2)


def wrapped(
    functions: tuple[Any, ...], shapes: ListShapes, made: SequenceForm, lists: PreparedLists, first: int | None = None
) -> tuple[Any, ...]:
    """The functions of true places, as functions of a sequence, of those from the `first`, a head of it, and positions in it."""
    query_mod, key_mod, value_mod, score_mod, mask_mod, row = mods_with_positions(functions)
    heads, blocks, group, of_key, key_heads = made.heads, made.blocks, made.group, made.key_group, made.key_heads
    queries, keys, fold, apart, kv_len = shapes.queries, shapes.keys, made.fold, made.apart, shapes.kv_len
    q_len, num_heads, listed, seen = made.queries, heads * group, lists.listed if keys == 1 else lists.shifts, lists.seen

    def at(b: Any) -> Any:
        return b if first is None else b + first

    def entry(b: Any) -> Any:
        return at(b) // (heads * blocks)

    def head(b: Any, h: Any, q: Any) -> Any:
        own = h if key_heads == 1 or fold == 1 else h // apart * (fold * apart) + h % apart
        return (at(b) // blocks) % heads * group + (own if fold == 1 else own + q % fold * apart)

    def query(b: Any, q: Any) -> Any:
        return (at(b) % blocks * queries + (q if fold == 1 else q // fold)).clamp(max=q_len - 1)  # rows past the end are computed, too

    def key(b: Any, kv: Any) -> Any:
        assert listed is not None
        return listed[b, kv] if keys == 1 else (kv + listed[b, kv // keys]).clamp(0, kv_len - 1)  # blocks that are none are somewhere else

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
                return mod(x, entry(b), h if key_heads > 1 else (at(b) // blocks) % heads // of_key, key(b, kv), d)

        return moded

    return (
        None if query_mod is None else of_query,
        None if key_mod is None else of_keys(key_mod),
        None if value_mod is None else of_keys(value_mod),
        None if score_mod is None else of_score,
        None if mask_mod is None else of_mask if shapes.shift is None else mask_of_seen(seen, fold),
        row,
    )


def mods_with_positions(functions: tuple[Any, ...]) -> tuple[Any, ...]:
    """The functions, where mods of q, k and v take positions, too. Raises TraceError for those that take something else."""
    roles = ("query_mod", "key_mod", "value_mod")
    return *(None if mod is None else with_positions(role, mod) for role, mod in zip(roles, functions, strict=False)), *functions[3:]


def of_elements(mod: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """A function of any arguments as a mod of q, k or v: without names they could be taken for one."""
    if mod is None:
        return None
    return lambda x, b, h, at, d: mod(x, b, h, at, d)


def functions_of_queries(functions: tuple[Any, ...], sequences: Mapping[str, Tensor], owner: Tensor, num_heads: int) -> tuple[Any, ...]:
    """Functions of sequences, as functions of queries, each of which is an entry of a batch: query n is in sequence `owner[n]`."""
    begins, q_lengths, k_lengths = (sequences[name] for name in ("q_begins", "q_lengths", "k_lengths"))
    last = max(0, len(q_lengths) - 1)

    def placed(function: Callable[..., Any] | None, first: int, with_query: bool) -> Callable[..., Any] | None:
        """A function whose arguments from the `first` on are the entry, the head, perhaps the query, and others."""
        if function is None:
            return None

        def of_query(*arguments: Any) -> Any:
            entry = arguments[first]
            b = owner[entry].clamp(0, last)
            with frontend_sizes.given(q_len=q_lengths[b], kv_len=k_lengths[b], num_heads=num_heads):
                rest = list(arguments[first + 1 :])
                if with_query:
                    rest[1] = (entry - begins[b]).minimum(q_lengths[b] - 1).clamp(min=0)  # rows of no sequence are computed, too
                return function(*arguments[:first], b, *rest)

        return of_query

    query_mod, key_mod, value_mod, score_mod, mask_mod, row = mods_with_positions(functions)
    mods = placed(query_mod, 1, True), placed(key_mod, 1, False), placed(value_mod, 1, False)
    return *map(of_elements, mods), placed(score_mod, 1, True), placed(mask_mod, 0, True), row
