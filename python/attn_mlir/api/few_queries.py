"""A few queries of each packed sequence on GPUs, as sequences of one query each, or as one query with more heads.

A kernel for several queries has rows of one head in a block, most of which would be empty, and reads all keys for each head. Single queries
have the heads of a group as rows, and see their keys in parts. Where groups leave blocks of these empty, too, the queries of a sequence
become heads beside those of their group, so that all rows of a sequence read its keys once.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from attn_mlir.api.kernel_choice import is_transformed, reads_inside, reads_pages
from attn_mlir.api.key_sequences import end_of, functions_of_queries, looks_at_scores_alone, mods_with_positions, of_elements
from attn_mlir.api.options import Options
from attn_mlir.api.varlen_inputs import problem_of
from attn_mlir.backends.graph_capture import is_captured
from attn_mlir.backends.kept import kept_by_sizes
from attn_mlir.backends.prepared import ListPlaces
from attn_mlir.backends.work import keep_work, say_checked
from attn_mlir.frontend import sizes as frontend_sizes
from attn_mlir.frontend.given import PAGES, SEQUENCES
from attn_mlir.runtime.call import Call, Problem
from attn_mlir.runtime.dispatch import needing_gradient, program_on
from attn_mlir.runtime.prepared_lists import limits_of_queries
from attn_mlir.runtime.varlen import read_sequences

MOST = 16
"""Queries of a sequence."""
_ROWS, _SINGLE_ROWS = 128, 64
"""Of blocks of kernels for several queries, and for single ones."""
LONG = 8192
"""Keys of the longest sequence from which on queries become heads: operations around the kernels take some 0.1 ms (an H200, 2026-11-28)."""
Tensor = torch.Tensor


class FewQueries(NamedTuple):
    """A call of single queries, and how its results, [1, positions, heads, ...] and [1, heads, positions], become those of q's rows."""

    call: Call
    whole: Callable[[Sequence[Tensor]], Sequence[Tensor]]


def single_queries(
    qkv: tuple[Tensor, Tensor, Tensor], problem: Problem, options: Options, sequences: Mapping[str, Tensor], largest: tuple[Any, Any]
) -> FewQueries | None:
    """The call whose sequences have a query each; None where the other kernels do it, or there are none."""
    target, (most, keys), sizes = options.target(problem), largest, problem.sizes
    group = sizes["Hq"] // max(1, sizes["Hkv"])
    if not (most and keys and pays(most, group, keys)) or options.invariant or problem.is_empty:
        return None
    if (
        not has_kernels(target, qkv[0])
        or any([x.element_size() == 1 for x in qkv])
        or needing_gradient(qkv)
        or not len(sequences["q_begins"])
    ):
        return None
    if is_transformed():
        return None
    own, end = [sequences[name] for name in SEQUENCES], end_of(options.functions[4])
    table, queries = sequences.get(PAGES), len(qkv[0])
    places = ListPlaces(own[0], own[1], own[2], own[3], table, 0, 1, (0, 0, 0), end)
    owner, limit = limits_of_queries(places, queries, keys)
    if not qkv[0].is_cuda:  # an emulated GPU's, whose offsets are looked at
        read_sequences([*own, *([] if table is None else [table])], sizes, table is not None)
    # Sequences with fewer queries than the longest one have as many rows as heads, but not as single ones.
    fewer = len(own[0]) * _folded(most, group) <= queries * _single(1, group)
    if folds(most, group) and keys >= LONG and fewer and not options.states:
        found = _as_heads(qkv, problem, options, sequences, (most, keys), owner)
        # Rows past the end are computed, too, whose places nothing looks at while a graph is captured.
        unseen = is_captured(qkv[0].device) and program_on(found.call).reads.from_data()
        return found if not unseen and _is_right(found.call, keys) else None
    if _single(most, group) >= _ROWS * group:  # as heads they would pay
        return None
    functions = (*options.functions[:4], None if end else options.functions[4], options.functions[5])
    if any([function is not None for function in functions[:5]]):
        functions = functions_of_queries(functions, sequences, owner, sizes["Hq"])
    given = {**_rows(queries, owner.device), "k_begins": say_checked(own[2][owner]), "k_lengths": limit}
    if table is not None:
        given[PAGES] = table.index_select(0, owner)
    named = {name: given[name] for name in (*SEQUENCES, *((PAGES,) if table is not None else ()))}
    call = options._replace(functions=functions, layout="bshd").call(
        problem, tuple([x.unsqueeze(0) if x.dim() == 3 else x for x in qkv]), given=named
    )
    return FewQueries(call, lambda results: results) if _is_right(call, keys) else None


def _is_right(call: Call, keys: int) -> bool:
    """Whether a call of single queries gives what is asked for."""
    alone = not needing_gradient(call.values) and looks_at_scores_alone(call.entry.traced.text)
    return alone and reads_inside(call, (1, keys))


def _as_heads(
    qkv: tuple[Tensor, Tensor, Tensor],
    problem: Problem,
    options: Options,
    sequences: Mapping[str, Tensor],
    largest: tuple[int, int],
    owner: Tensor,
) -> FewQueries:
    """The call of one query of each sequence, whose heads are (key head, query, head of a group); `owner`: whose each row of q is."""
    (q, k, v), (most, keys), end = qkv, largest, end_of(options.functions[4])
    begins, q_lengths, k_begins, k_lengths = (sequences[name] for name in SEQUENCES)
    count, key_heads = len(begins), problem.sizes["Hkv"]
    rows = q.unflatten(1, (key_heads, -1))
    group, number = rows.shape[2], torch.arange(most, dtype=torch.int32, device=q.device)
    at = (begins[:, None] + number).clamp(0, len(q) - 1)  # rows of no query of the sequence are computed, too
    packed = rows.index_select(0, at.flatten()).unflatten(0, (count, most)).transpose(1, 2).flatten(1, 3)
    functions = _of_heads(options.functions, (q_lengths, k_lengths), (most, group, problem.sizes["Hq"]), end)
    seen = torch.where(q_lengths > 0, k_lengths.clamp(0, keys), 0)
    given = {**_rows(count, q.device), "k_begins": say_checked(k_begins.clone()), "k_lengths": seen}
    table = sequences.get(PAGES)
    named = {name: given[name] for name in SEQUENCES} | ({} if table is None else {PAGES: table})
    of_heads = problem_of(packed, k, v, problem.inputs.paged)
    inputs = tuple([x.unsqueeze(0) if x.dim() == 3 else x for x in (packed, k, v)])
    call = options._replace(functions=functions, layout="bshd").call(of_heads, inputs, given=named)
    return FewQueries(call, functools.partial(_in_rows, sequences=sequences, owner=owner, sizes=(key_heads, most, group)))


def _in_rows(results: Sequence[Tensor], sequences: Mapping[str, Tensor], owner: Tensor, sizes: tuple[int, int, int]) -> list[Tensor]:
    """Results of such heads as those of the rows of q, where rows of no sequence are 0, and logarithms of sums -inf."""
    place = torch.arange(len(owner), dtype=torch.int32, device=owner.device) - sequences["q_begins"][owner]
    there, place = (place >= 0) & (place < sequences["q_lengths"][owner]), place.clamp(0, sizes[1] - 1)
    found = []
    for x in results:
        if x.dim() == 4:
            row = x[0].unflatten(1, sizes)[owner, :, place].flatten(1, 2)
            found.append(torch.where(there[:, None, None], row, 0).unsqueeze(0))
        else:
            row = x[0].T.unflatten(1, sizes)[owner, :, place].flatten(1, 2)
            found.append(torch.where(there[:, None], row, -torch.inf).T.unsqueeze(0))
    return found


def _of_heads(
    functions: tuple[Any, ...], lengths: tuple[Tensor, Tensor], sizes: tuple[int, int, int], end: int
) -> tuple[Callable[..., Any] | None, ...]:
    """Functions of queries and heads, as those of such heads; `sizes`: queries, heads of a group, and all heads of queries."""
    (q_lengths, k_lengths), (most, group, num_heads) = lengths, sizes
    rows, shifts = most * group, k_lengths - q_lengths

    def placed(function: Callable[..., Any] | None, first: int, of_query: bool = True) -> Callable[..., Any] | None:
        """A function whose arguments from the `first` on are the entry, the head, and the query or the key."""
        if function is None:
            return None

        def of_head(*arguments: Any) -> Any:
            b, h, *rest = arguments[first:]
            if of_query:
                h, rest[0] = h // rows * group + h % group, h % rows // group
            with frontend_sizes.given(q_len=q_lengths[b], kv_len=k_lengths[b], num_heads=num_heads):
                return function(*arguments[:first], b, h, *rest)

        return of_head

    def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
        return h % rows // group + (shifts[b] if end > 1 else 0) >= j

    query_mod, key_mod, value_mod, score_mod, mask_mod, row = mods_with_positions(functions)
    mods = placed(query_mod, 1), placed(key_mod, 1, False), placed(value_mod, 1, False)
    return *map(of_elements, mods), placed(score_mod, 1), causal if end else placed(mask_mod, 0), row


def pays(queries: int, group: int, keys: int = 0) -> bool:
    """Whether blocks of single queries have fewer rows in all than one of several queries has for each head, of so many keys, 0: any."""
    if not 1 < queries <= MOST or group < 2:
        return False
    return min(_single(queries, group), _folded(queries, group) if not keys or keys >= LONG else 1 << 30) < _ROWS * group


def folds(queries: int, group: int) -> bool:
    """Whether queries are better heads of their sequence than sequences."""
    return _folded(queries, group) < _single(queries, group)


def _single(queries: int, group: int) -> int:
    """Rows of blocks of single queries."""
    return queries * -(-group // _SINGLE_ROWS) * _SINGLE_ROWS


def _folded(queries: int, group: int) -> int:
    """Rows of blocks of one query, whose heads are those of all."""
    return -(-queries * group // _SINGLE_ROWS) * _SINGLE_ROWS


def has_kernels(target: str, q: Tensor) -> bool:
    """Whether a device has the best kernels, of single queries that see keys in parts, too."""
    return target != "cpu" and reads_pages(target, q)


def _rows(count: int, device: torch.device) -> dict[str, Tensor]:
    """Where the queries of so many sequences of one are."""

    def make() -> dict[str, Tensor]:
        begins = torch.arange(count, dtype=torch.int32, device=device)
        found = {"q_begins": begins, "q_lengths": torch.ones_like(begins)}
        keep_work(found["q_lengths"])
        return found

    return kept_by_sizes(("single queries", count, device), make)
