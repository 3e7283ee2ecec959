"""Attention over ranks by kernels for whole sequences of keys: all keys on every rank, or all positions of some heads."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attn_mlir.api.dropout import NONE, Dropout
from attn_mlir.api.eight_bit import refuse_eight_bit
from attn_mlir.api.inputs import check_inputs
from attn_mlir.api.options import Options
from attn_mlir.distributed.group import Ranks
from attn_mlir.distributed.placement import Ranges
from attn_mlir.distributed.strategies import gathered, heads_for_positions, positions_for_heads, replicated, with_heads
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.given import POSITION
from attn_mlir.runtime import call as calls
from attn_mlir.runtime.dispatch import dispatch

_ROLES = ("query_mod", "key_mod", "value_mod", "score_mod", "mask_mod", "row")


@dataclasses.dataclass(frozen=True)
class Asked:
    """The functions and options of a call, as `attention` takes them."""

    functions: tuple[Any, ...]
    scale: float | None
    return_lse: bool
    return_states: bool
    deterministic: bool
    device: str | None
    strategy: str = "auto"
    dropout: Dropout = NONE
    """With integers for a seed, the same on all ranks."""


@dataclasses.dataclass(frozen=True)
class ShardLayout:
    """Which positions of queries and of keys the ranks hold."""

    queries: Ranges
    keys: Ranges

    @property
    def totals(self) -> dict[str, int]:
        """How long the whole sequences are."""
        return {
            name: sum(e - b for each in ranges for b, e in each) for name, ranges in (("q_total", self.queries), ("kv_total", self.keys))
        }


def by_gathering(call: Asked, ranks: Ranks, layout: ShardLayout, qkv: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
    """o and the row outputs of this rank's queries, whose kernels see all keys."""
    q = qkv[0]
    k, v = (gathered(ranks, layout.keys, x) for x in qkv[1:])
    found = _found(call, call.functions, ranks, (q, k, v), {"q_offset": 0, "kv_offset": 0, **layout.totals})
    every, begin = [], 0
    for first, last in layout.queries[ranks.rank] or ((0, 0),):
        rows = q[:, :, begin : begin + last - first]
        begin += last - first
        every.append(_attend(call, found, (rows, k, v), first))
    return every[0] if len(every) == 1 else [torch.cat(parts, 2) for parts in zip(*every, strict=True)]


def by_heads(call: Asked, ranks: Ranks, layout: ShardLayout, qkv: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
    """The same, of some heads of all queries, which are exchanged for all heads of some."""
    heads = [x.shape[1] for x in qkv[:2]]
    if any(count % ranks.count for count in heads):
        raise ArgumentError(
            f'strategy="ulysses" gives each of {ranks.count} ranks as many heads, but q has {heads[0]} and k has {heads[1]}: use "ring"'
        )
    if layout.totals["q_total"] == 0 or layout.totals["kv_total"] == 0:
        raise UnsupportedError('strategy="ulysses" takes sequences that are not empty: use "ring"')
    if call.dropout.form is not None:
        raise UnsupportedError('strategy="ulysses" has no dropout, whose bits depend on the number of a head among all: use "ring"')
    places = (layout.queries, layout.keys, layout.keys)
    turned = [heads_for_positions(ranks, ranges, x) for ranges, x in zip(places, qkv, strict=True)]
    own = [ranks.rank * count // ranks.count for count in heads]
    offsets = {"key_mod": own[1], "value_mod": own[1]}
    functions = tuple(with_heads(role, function, offsets.get(role, own[0])) for role, function in zip(_ROLES, call.functions, strict=True))
    whole = (turned[0], turned[1], turned[2])
    results = _attend(call, _found(call, functions, ranks, whole, None), whole)
    wide = [x if x.dim() == 4 else x.unsqueeze(-1) for x in results]
    back = [positions_for_heads(ranks, layout.queries, x) for x in wide]
    return [x if made.dim() == 4 else x.squeeze(-1) for x, made in zip(back, results, strict=True)]


def _found(
    call: Asked,
    functions: Sequence[Callable[..., Any] | None],
    ranks: Ranks,
    qkv: tuple[Tensor, Tensor, Tensor],
    places: Mapping[str, int] | None,
) -> tuple[Entry, list[Any]]:
    """The traced program and its captured values, whose gradients are summed over ranks; `places`: positions of parts."""
    refuse_eight_bit(qkv, "attention over several processes")
    problem = check_inputs(*qkv, "bhsd")
    inputs = dataclasses.replace(problem.inputs, parts=places is not None)
    options = Options(tuple(functions), call.scale, lse=call.return_lse, states=call.return_states)
    entry, scan, factor = options.find(inputs, problem.device, call.dropout.form)
    captures = entry.captures(scan, factor, {**(places or {}), **call.dropout.values})
    needed = torch.is_grad_enabled()
    return entry, [replicated(ranks, x) if needed and isinstance(x, Tensor) and x.requires_grad else x for x in captures]


def _attend(call: Asked, found: tuple[Entry, list[Any]], qkv: tuple[Tensor, Tensor, Tensor], q_offset: int = 0) -> list[Tensor]:
    """Each o and the row outputs of queries that begin at this position."""
    entry, captures = found
    problem = check_inputs(*qkv, "bhsd")
    own = [q_offset if c.source == (POSITION, "q_offset") else x for c, x in zip(entry.traced.captures, captures, strict=True)]
    target = call.device or problem.device_type
    return list(dispatch(calls.Call(entry, problem, (*qkv, *own), "bhsd", target, call.deterministic)))
