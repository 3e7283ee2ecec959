"""A few queries of `attention` with many keys on GPUs: sequences of one query each, whose keys are a page, seen in parts."""

from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir import driver
from attn_mlir.api.few_queries import has_kernels, pays
from attn_mlir.api.inputs import check_inputs
from attn_mlir.api.kernel_choice import is_transformed
from attn_mlir.api.options import Options
from attn_mlir.api.varlen import attention_varlen
from attn_mlir.api.varlen_inputs import problem_of
from attn_mlir.backends.kept import kept_by_sizes
from attn_mlir.frontend.entry import Entry
from attn_mlir.frontend.given import PAGES, SEQUENCES
from attn_mlir.runtime.dispatch import needing_gradient
from attn_mlir.runtime.orders import heads_first, in_order, input_order, output_order

LEAST_PAIRS, WIDE = 1 << 25, 256
"""Fewer pairs of a query of a head and a key take less time than a call with parts takes more on the host, but for wider heads."""
_PAGE = 16
"""Positions of a page are a multiple of so many on GPUs that copy no single rows."""
Tensor = torch.Tensor


def of_long_caches(qkv: tuple[Any, Any, Any], options: Options) -> tuple[Any] | None:
    """What `attention` returns, as the only element; None where other kernels do it."""
    q, k, v = qkv
    if not all([type(x) in (Tensor, torch.nn.Parameter) and x.dim() == 4 and x.element_size() > 1 for x in qkv]):
        return None
    problem = check_inputs(q, k, v, options.layout)
    order, sizes, target = input_order(problem.layout), problem.sizes, options.target(problem)
    queries, keys = sizes["Sq"], sizes["Skv"]
    wide = problem.inputs.value_dim > WIDE
    few = queries == 1 or ((wide or options.splits) and pays(queries, sizes["Hq"] // max(1, sizes["Hkv"])))
    long = wide or options.splits or sizes["B"] * sizes["Hq"] * queries * keys >= LEAST_PAIRS
    if not (few and long) or problem.is_empty or needing_gradient(qkv) or is_transformed() or not has_kernels(target, q):
        return None
    q, k, v = (heads_first(x, order).transpose(1, 2) for x in qkv)
    entry, scan, factor = options._replace(layout="bshd").find(problem_of(q.flatten(0, 1), k, v, True).inputs, problem.device)
    places = _places(len(q), queries, keys, q.device)
    captured = entry.captures(scan, factor, dict.fromkeys((*SEQUENCES, PAGES), places["keys"]))
    if needing_gradient(captured) or not _sees_parts(entry, target, keys):
        return None
    functions = dict(zip(("query_mod", "key_mod", "value_mod", "score_mod", "mask_mod", "row"), options.functions, strict=True))
    found = attention_varlen(
        q.flatten(0, 1),
        k,
        v,
        places["queries"],
        seqused_k=places["keys"],
        block_table=places["pages"],
        max_q=queries,
        max_k=keys,
        scale=options.scale,
        return_lse=options.lse,
        return_states=options.states,
        num_splits=options.splits,
        device=options.device,
        **functions,
    )
    return (_whole(found, len(q), queries, output_order(problem.layout)),)


def _sees_parts(entry: Entry, target: str, keys: int) -> bool:
    """Whether a device has kernels that see the keys of single queries in parts, of a row such as this one."""
    made: Any = driver.compile_derivative(entry.traced.text, target, "", [])
    seen = getattr(made, "sees_parts", None)
    return seen is not None and seen(keys % _PAGE != 0)


def _places(count: int, queries: int, keys: int, device: torch.device) -> dict[str, Tensor]:
    """Offsets, lengths and the table of entries of a batch, each of which is a page."""

    def make() -> dict[str, Tensor]:
        entries = torch.arange(count + 1, dtype=torch.int32, device=device)
        return {"queries": entries * queries, "keys": torch.full_like(entries[1:], keys), "pages": entries[:-1, None].contiguous()}

    return kept_by_sizes(("a page each", count, queries, keys, device), make)


def _whole(found: Any, count: int, queries: int, order: str) -> Any:
    """Results of packed queries in the order of a layout, and values of rows as [B, Hq, Sq]."""
    if isinstance(found, dict):
        return {name: _whole(value, count, queries, order) for name, value in found.items()}
    if isinstance(found, Sequence):
        return tuple([_whole(each, count, queries, order) for each in found])
    if found.dim() == 2:
        whole = found.unflatten(1, (count, queries)).transpose(0, 1)
    else:
        whole = in_order(found.unflatten(0, (count, queries)).transpose(1, 2), order)
    return whole.reshape(-1).view(whole.shape)
