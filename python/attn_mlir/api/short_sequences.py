"""Short packed sequences on GPUs, several of which fill a block of queries: one attention whose mask knows where each sequence's keys lie.

A kernel for packed sequences has a block of 128 rows for each sequence and head, however short it is. The mask says of each query where its
keys begin and end, so that a block sees those of its sequences alone; a causal mask is a part of these ends.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from attn_mlir.api.few_queries import has_kernels
from attn_mlir.api.kernel_choice import is_transformed, reads_inside
from attn_mlir.api.key_sequences import end_of, looks_at_scores_alone, mods_with_positions
from attn_mlir.api.options import Options
from attn_mlir.backends.graph_capture import is_captured
from attn_mlir.backends.prepared import ListPlaces
from attn_mlir.frontend import sizes as frontend_sizes
from attn_mlir.frontend.given import SEQUENCES
from attn_mlir.runtime.call import Call, Problem
from attn_mlir.runtime.dispatch import needing_gradient, program_on
from attn_mlir.runtime.prepared_lists import limits_of_queries

MOST_QUERIES, MOST_KEYS = 64, 1024
"""Of a sequence."""
_ROWS = 128
"""Of a block of queries."""
LEAST = 1 << 14
"""Queries of heads in all, a block of which for each multiprocessor keeps a GPU busy."""
Tensor = torch.Tensor


def side_by_side(
    qkv: tuple[Tensor, Tensor, Tensor], problem: Problem, options: Options, sequences: Mapping[str, Tensor], largest: tuple[Any, Any]
) -> Call | None:
    """The call that has all sequences in one; None where the kernels for sequences do it, or there are none."""
    (q, k, _), (queries, keys) = qkv, largest
    own = [sequences[name] for name in SEQUENCES]
    short = queries and keys and queries <= MOST_QUERIES and keys <= MOST_KEYS and 2 * q.shape[0] <= _ROWS * own[0].shape[0]
    few = q.shape[0] * problem.sizes["Hq"] < LEAST
    if not short or few or options.invariant or options.splits or problem.is_empty or problem.inputs.paged:
        return None
    if not has_kernels(options.target(problem), q) or needing_gradient(qkv) or is_transformed():
        return None
    end = end_of(options.functions[4])
    owner, limit = limits_of_queries(ListPlaces(own[0], own[1], own[2], own[3], None, 0, 1, (0, 0, 0), end), len(q), keys)
    first = own[2][owner]
    last = first + limit
    owner_of_key = _owners_of_keys(own[2], len(k))
    functions = _of_all(options.functions, (own, owner, owner_of_key), (first, last), end)
    inputs = dataclasses.replace(problem.inputs, packed=False)
    whole = dataclasses.replace(problem, inputs=inputs)
    call = options._replace(functions=functions, layout="bshd").call(whole, tuple([x.unsqueeze(0) for x in qkv]))
    if needing_gradient(call.values) or not looks_at_scores_alone(call.entry.traced.text):
        return None
    # Functions see other sequences' keys at positions that there are not, and nothing is looked at while a graph is captured.
    made = {id(x) for x in (*own, owner, owner_of_key, first, last)}
    known = [number for number, x in enumerate(call.values[3:]) if id(x) in made]
    unseen = is_captured(q.device) and program_on(call).reads.from_data(known)
    return call if not unseen and reads_inside(call, None) else None


def _owners_of_keys(begins: Tensor, count: int) -> Tensor:
    """The sequence of each key."""
    key = torch.arange(count, dtype=torch.int32, device=begins.device)
    return (torch.searchsorted(begins, key, right=True, out_int32=True) - 1).clamp(min=0)


def _of_all(
    functions: tuple[Any, ...], owners: tuple[list[Tensor], Tensor, Tensor], ends: tuple[Tensor, Tensor], end: int
) -> tuple[Any, ...]:
    """Functions of sequences, as functions of rows of all of them."""
    query_mod, key_mod, value_mod, score_mod, mask_mod, row = mods_with_positions(functions)
    (begins, q_lengths, k_begins, k_lengths), owner, owner_of_key = owners
    (first, last), most = ends, len(begins) - 1

    def sized(b: Any) -> Any:
        return frontend_sizes.given(q_len=q_lengths[b], kv_len=k_lengths[b])

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        there = (j >= first[i]) & (j < last[i])
        if mask_mod is None or end:
            return there
        entry = owner[i].clamp(0, most)
        with sized(entry):
            return there & mask_mod(entry, h, i - begins[entry], j - k_begins[entry])

    def of_score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        entry = owner[i].clamp(0, most)
        with sized(entry):
            return score_mod(s, entry, h, i - begins[entry], j - k_begins[entry])

    def of_rows(mod: Callable[..., Any], owned: Tensor, begin: Tensor) -> Callable[..., Any]:
        def moded(x: Any, b: Any, h: Any, at: Any, d: Any) -> Any:
            entry = owned[at].clamp(0, most)
            with sized(entry):
                return mod(x, entry, h, at - begin[entry], d)

        return moded

    return (
        None if query_mod is None else of_rows(query_mod, owner, begins),
        None if key_mod is None else of_rows(key_mod, owner_of_key, k_begins),
        None if value_mod is None else of_rows(value_mod, owner_of_key, k_begins),
        None if score_mod is None else of_score,
        mask,
        row,
    )
