"""`key_index=` of `attention_varlen`: each query of packed sequences lists positions, or blocks of them, of its own sequence.

Each query becomes a sequence of its own, whose keys are the rows that it lists, as pages of one row or of more: in packed tensors or in a
cache in pages, whose table the lists go through. So kernels of single queries load what is listed, and nothing else. Where there are none,
and where something needs a gradient, a mask reads a table of all blocks.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir.api.eight_bit import refuse_eight_bit
from attn_mlir.api.inputs import check_device
from attn_mlir.api.kernel_choice import is_transformed, reads_inside, reads_pages
from attn_mlir.api.key_pages import PAGE_ROWS, PagedCall, has_gathers
from attn_mlir.api.key_sequences import (
    SequenceForm,
    end_of,
    functions_of_queries,
    looks_at_scores_alone,
    packed_rows,
    places_of,
    sequences_of_lists,
    wrapped,
)
from attn_mlir.api.options import Options
from attn_mlir.api.varlen_inputs import problem_of
from attn_mlir.backends import backend_for
from attn_mlir.backends.prepared import ListPlaces, ListShapes, WantedLists
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.frontend.entry import Entry
from attn_mlir.frontend.given import PAGES, SEQUENCES
from attn_mlir.performance import told
from attn_mlir.runtime.call import Problem
from attn_mlir.runtime.checked import is_checked
from attn_mlir.runtime.dispatch import needing_gradient
from attn_mlir.runtime.key_lists import form_of
from attn_mlir.runtime.prepared_lists import limits_of_queries, prepare
from attn_mlir.runtime.varlen import read_sequences, reads_offsets

Tensor = torch.Tensor


@dataclass(frozen=True)
class SequenceLists:
    """Lists of queries, [queries, 1 or heads of k or of q, entries], of blocks of `keys` positions of their sequences."""

    index: Tensor
    keys: int
    sequences: Mapping[str, Tensor]
    """What programs on packed sequences take, see `varlen_inputs.sequences_of`."""
    page: int
    """Positions of a page of `sequences`, 0 where keys are packed."""
    most: int
    """Keys of the longest sequence."""

    @property
    def blocks(self) -> int:
        """Of the longest sequence."""
        return -(-self.most // self.keys)

    def places(self, rows: int = 1, steps: tuple[int, int, int] = (0, 0, 0), end: int = 0) -> ListPlaces:
        """Where lists lead."""
        own = [self.sequences[name] for name in SEQUENCES]
        return ListPlaces(own[0], own[1], own[2], own[3], self.sequences.get(PAGES), self.page, rows, steps, end)

    def check(self) -> None:
        """Waits for the device, and refuses numbers of no block of their sequence. Raises ArgumentError."""
        if not self.index.numel() or not len(self.sequences["q_begins"]):
            return
        owner, keys = limits_of_queries(self.places(), len(self.index), self.most)
        blocks, (begins, lengths) = (keys + (self.keys - 1)) // self.keys, [self.sequences[name][owner] for name in SEQUENCES[:2]]
        inside = torch.arange(len(self.index), device=begins.device) < begins + lengths  # what others list is not read
        wrong = ((self.index < -1) | (self.index >= blocks[:, None, None])) & inside[:, None, None]
        if bool(wrong.any()):
            t, h, n = (int(x) for x in wrong.nonzero()[0])
            raise ArgumentError(
                f"key_index[{t}, {h}, {n}] is {int(self.index[t, h, n])}, but the sequence of query {t} has {int(blocks[t])} blocks of "
                f"{self.keys} keys: give numbers below that, or -1 for no block"
            )
        if is_checked():
            numbers = self.index.sort(-1).values
            twice = (numbers[..., 1:] == numbers[..., :-1]) & (numbers[..., 1:] >= 0)
            if bool(twice.any()):
                t, h, n = (int(x) for x in twice.nonzero()[0])
                raise ArgumentError(f"key_index[{t}, {h}] lists block {int(numbers[t, h, n])} twice (ATTN_MLIR_CHECK=1)")

    def mask(self, group: int, mask_mod: Callable[..., Any] | None) -> Callable[..., Any]:
        """The lists as a mask that reads a table of all blocks; `group` query heads share a list."""
        index, keys, begins = self.index, self.keys, self.sequences["q_begins"]
        outside = (index < 0) | (index >= self.blocks)
        table = torch.zeros((*index.shape[:2], self.blocks + 1), dtype=torch.bool, device=index.device)
        table.scatter_(2, torch.where(outside, self.blocks, index).long(), True)
        table, last = table[..., : max(1, self.blocks)].contiguous(), max(0, len(index) - 1)

        def listed(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            present = table[(begins[b] + q_idx).clamp(0, last), h // group, kv_idx // keys]
            return present if mask_mod is None else present & mask_mod(b, h, q_idx, kv_idx)

        return listed


def check_lists(index: Any, block: Any, q: Tensor, kv_heads: int) -> int:
    """How many keys a block has. Raises ArgumentError naming what is wrong."""
    if index is None:
        raise ArgumentError("key_block is for key_index, which says which blocks each query sees: pass both")
    if block is None:
        raise ArgumentError("key_index needs key_block=(1, keys), how many keys a block has that it counts in")
    if not (isinstance(block, (tuple, list)) and len(block) == 2 and all([type(n) is int and 1 <= n <= 1 << 20 for n in block])):
        raise ArgumentError(f"key_block must be two positive integers, queries and keys of a block, got {block!r}")
    if block[0] != 1:
        raise UnsupportedError(
            f"key_block={tuple(block)!r}: in attention_varlen each query has a list of its own, (1, keys): repeat the lists of blocks of "
            "queries for each of them, or call attention for each sequence"
        )
    if not isinstance(index, Tensor) or index.dtype != torch.int32:
        given = f"a tensor of {index.dtype}: use key_index.to(torch.int32)" if isinstance(index, Tensor) else type(index).__name__
        raise ArgumentError(f"key_index must be an int32 tensor, got {given}")
    wanted = f"[queries, 1 or heads of k or of q, entries], here [{len(q)}, 1, {kv_heads} or {q.shape[1]}, ...]"
    if index.layout != torch.strided or index.dim() != 3 or len(index) != len(q) or index.shape[1] not in (1, kv_heads, q.shape[1]):
        raise ArgumentError(f"key_index must be {wanted}, got shape {list(index.shape)}")
    check_device("key_index", index, q.device)
    return block[1]


def attention_varlen_listed(
    qkv: tuple[Tensor, Tensor, Tensor],
    problem: Problem,
    options: Options,
    given: tuple[Any, Any],
    sequences: Mapping[str, Tensor],
    largest: tuple[int | None, int | None],
    *,
    drops: bool,
    by_mask: Callable[[Callable[..., Any]], Any],
) -> tuple[list[Tensor], Entry] | tuple[Any]:
    """o and values of rows, [1, queries, heads, ...] and [1, heads, queries], with the trace that they are of; or what `by_mask` gives.

    `given`: key_index and key_block. `by_mask` gives the result of the call with a mask_mod that reads lists from a table, for where there
    is another way, or something needs a gradient.
    """
    refuse_eight_bit(qkv, "key_index")
    (q, k, _), page = qkv, qkv[1].shape[1] if problem.inputs.paged else 0
    keys = check_lists(*given, q, problem.sizes["Hkv"])
    index, target, longest = given[0].detach(), options.target(problem), largest[1]
    room = sequences[PAGES].shape[1] * page if page else len(k)
    checks = q.device.type == "cpu" or reads_offsets(*largest)
    if checks:
        named = [sequences[name] for name in (*SEQUENCES, *((PAGES,) if page else ()))]
        longest = int(read_sequences(named, problem.sizes, bool(page))[1].max(initial=0))
    lists = SequenceLists(index, keys, sequences, page, max(0, min(longest or 0, room)))
    if checks:
        lists.check()
    found = None
    if not (drops or is_transformed() or needing_gradient(qkv)) and (target == "cpu" or reads_pages(target, index)):
        found = paged_rows(qkv, problem, options, lists, target)
    if found is not None and not needing_gradient(found.call.values) and reads_inside(found.call, found.most):
        return [x.transpose(0, 1) if x.dim() == 4 else x.permute(2, 1, 0) for x in found.attended()], found.call.entry
    if target != "cpu":
        told("key_index of attention_varlen is read as a mask of all keys here", "docs/key-lists.md")
    group = problem.sizes["Hq"] // max(1, index.shape[1])
    return (by_mask(lists.mask(group, options.functions[4])),)


def paged_rows(
    qkv: tuple[Tensor, Tensor, Tensor], problem: Problem, options: Options, lists: SequenceLists, target: str
) -> PagedCall | None:
    """The call of kernels that read what is listed as pages; None where there are none."""
    (q, k, v), index, sizes = qkv, lists.index, problem.sizes
    queries, heads, count = index.shape
    if not index.numel() or not lists.most or problem.is_empty or not len(lists.sequences["q_begins"]) or not k.numel() or not v.numel():
        return None
    rows = math.gcd(lists.keys, lists.page) if lists.page else 1  # of a page that kernels see
    small = target != "cpu" and rows % PAGE_ROWS != 0
    if small and backend_name(target) != "nvidia":
        return None
    one = dataclasses.replace(problem, sizes={**sizes, "B": queries, "Sq": 1})
    made = sequences_of_lists(one, form_of(1, lists.keys), heads, heads == 1, (True, False))
    k_pages, v_pages, steps = page_views(k, v, lists.page, rows, made)
    end = end_of(options.functions[4])
    places = lists.places(rows, steps, end)
    whole = (1, 1, queries) if heads == 1 else (queries, heads, 1)
    shapes = ListShapes(*whole, count, lists.blocks, lists.keys, lists.most, 1, 1, None, 1, made.key_group, 0)
    moded = any([f is not None for f in options.functions[:4]]) or (options.functions[4] is not None and not end)
    ordered = index.transpose(0, 1)[None] if heads == 1 else index[:, :, None]
    wanted = WantedLists(moded and lists.keys == 1, moded and lists.keys > 1, later=not moded)
    prepared = prepare(ordered, shapes, wanted, target, places, (k_pages, v_pages))
    functions = (*options.functions[:4], None if end else options.functions[4], options.functions[5])
    if moded:
        owner, _ = limits_of_queries(places, queries, lists.most)
        functions = functions_of_queries(functions, lists.sequences, owner, sizes["Hq"])
    functions = wrapped(functions, shapes, made, prepared)
    asked = Options(functions, options.scale, "bshd", options.lse, options.states, options.device, False, options.splits, options.invariant)
    packed = packed_rows(q.unsqueeze(2), made)
    values = {**places_of(made, 1, index.device), "k_lengths": prepared.used, PAGES: prepared.pages}
    call = asked.call(
        problem_of(packed, k_pages, v_pages, True),
        (packed.unsqueeze(0), k_pages, v_pages),
        given={name: values[name] for name in (*SEQUENCES, PAGES)},
    )
    text = call.entry.traced.text
    if not looks_at_scores_alone(text) or (small and not has_gathers(text, target)):
        return None
    return PagedCall(call, (1, count * lists.keys), made, prepared, index, shapes, False, "bshd")


def backend_name(target: str) -> str:
    """That of the backend of a device."""
    backend = backend_for(target)
    return "" if backend is None else backend.name


def page_views(k: Tensor, v: Tensor, page: int, rows: int, made: SequenceForm) -> tuple[Tensor, Tensor, tuple[int, int, int]]:
    """k and v as pages of `rows` rows, and how many pages on the next page of a cache, the next row, and the next head begin.

    Pages overlap: each begins where a row may begin, so that any strides are those of such a view.
    """
    views = []
    for x in (k, v):
        x = x if x.stride(-1) == 1 and all(n > 0 for n, size in zip(x.stride(), x.shape, strict=True) if size > 1) else x.contiguous()
        views.append(_page_view(x, page, rows, made.key_heads == 1))
    if views[0][1] != views[1][1]:
        told("k and v of other strides are copied at every call with key_index: keep both in one order", "docs/key-lists.md")
        views = [_page_view(x.contiguous(), page, rows, made.key_heads == 1) for x in (k, v)]
    return views[0][0], views[1][0], views[0][1]


def _page_view(x: Tensor, page: int, rows: int, single: bool) -> tuple[Tensor, tuple[int, int, int]]:
    """[positions, H, D] or [pages, size, H, D] as [places, rows, H or 1, D], and its steps in places."""
    *_, heads, columns = x.shape
    of_page, of_row = (x.stride(0), x.stride(1)) if page else (0, x.stride(0))
    of_head = x.stride(-2) if single and heads > 1 else 0
    ends = (x.shape[0] - 1 if page else 0, (x.shape[1] if page else x.shape[0]) // rows - 1, heads - 1 if single else 0)
    steps = of_page if ends[0] else 0, of_row * rows if ends[1] else 0, of_head
    unit = math.gcd(*steps) or max(1, of_row)
    places = 1 + sum(n * step for n, step in zip(ends, steps, strict=True)) // unit
    shape = (places, rows, 1 if single else heads, columns)
    view = x.as_strided(shape, (unit, of_row, x.stride(-2), 1), x.storage_offset())
    return view, (steps[0] // unit, steps[1] // unit, steps[2] // unit)
