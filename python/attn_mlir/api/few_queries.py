"""A few queries of each packed sequence on GPUs, where they are fewer than the heads that share keys: as sequences of one query each.

A kernel for several queries has rows of one head in a block, most of which would be empty, and reads all keys for each head. Single queries
have the heads of a group as rows, and see their keys in parts.
"""

from collections.abc import Mapping
from typing import Any

import torch

from attn_mlir.api.kernel_choice import is_transformed, reads_pages
from attn_mlir.api.key_sequences import end_of, functions_of_queries, looks_at_scores_alone
from attn_mlir.api.options import Options
from attn_mlir.backends.kept import kept_by_sizes
from attn_mlir.backends.prepared import ListPlaces
from attn_mlir.backends.work import keep_work, say_checked
from attn_mlir.frontend.given import PAGES, SEQUENCES
from attn_mlir.runtime.call import Call, Problem
from attn_mlir.runtime.dispatch import needing_gradient
from attn_mlir.runtime.prepared_lists import limits_of_queries
from attn_mlir.runtime.varlen import read_sequences

MOST = 16
"""Queries of a sequence."""
_ROWS, _SINGLE_ROWS = 128, 64
"""Of blocks of kernels for several queries, and for single ones."""
Tensor = torch.Tensor


def single_queries(
    qkv: tuple[Tensor, Tensor, Tensor], problem: Problem, options: Options, sequences: Mapping[str, Tensor], largest: tuple[Any, Any]
) -> Call | None:
    """The call whose sequences have a query each, in the order of q's rows; None where the other kernels do it, or there are none."""
    target, (most, keys), sizes = options.target(problem), largest, problem.sizes
    if not (most and keys and pays(most, sizes["Hq"] // max(1, sizes["Hkv"]))) or options.invariant or problem.is_empty:
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
    if needing_gradient(call.values) or not looks_at_scores_alone(call.entry.traced.text):
        return None
    return call


def pays(queries: int, group: int) -> bool:
    """Whether blocks of single queries have fewer rows in all than one of several queries has for each head."""
    return 1 < queries <= MOST and queries * -(-group // _SINGLE_ROWS) * _SINGLE_ROWS < _ROWS * group


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
