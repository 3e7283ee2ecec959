"""Two other ways to attend over ranks: all keys gathered on every rank, and heads exchanged for positions (Ulysses)."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attn_mlir.distributed.group import Ranks
from attn_mlir.distributed.placement import Ranges, held
from attn_mlir.distributed.sharding import cut, ordered
from attn_mlir.distributed.transfer import exchange

_HEAD = {"score_mod": 2, "mask_mod": 1, "row": 2, "query_mod": 2, "key_mod": 2, "value_mod": 2}
"""The number of the argument h in functions that take it."""


def gathered(ranks: Ranks, ranges: Ranges, x: Tensor) -> Tensor:
    """The whole of what each rank holds of [B, H, S, D], on every rank; the gradients of all add up in the order of the ranks."""
    return _Gathered.apply(ranks, ranges, x)  # type: ignore[no-untyped-call]


class _Gathered(torch.autograd.Function):
    """Sends the own part to all; its gradient sends each part back to where it lies."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, ranges: Ranges, x: Tensor) -> Tensor:
        ctx.ranks, ctx.ranges = ranks, ranges
        own = x.detach().contiguous()
        shapes = [(*x.shape[:2], held(each), x.shape[3]) for each in ranges]
        return _in_order(exchange(ranks, [own] * ranks.count, shapes), ranges)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, Tensor]:  # type: ignore[override]
        ranks, ranges = ctx.ranks, ctx.ranges
        parts = [cut(grads[0], each, 2).contiguous() for each in ranges]
        got = exchange(ranks, parts, [tuple(parts[ranks.rank].shape)] * ranks.count)
        total = got[0]
        for share in got[1:]:
            total = total + share
        return None, None, total


def replicated(ranks: Ranks, x: Tensor) -> Tensor:
    """A tensor that all ranks have: its gradient is the sum of theirs, on all of them."""
    return _Replicated.apply(ranks, x)  # type: ignore[no-untyped-call]


class _Replicated(torch.autograd.Function):
    """The tensor itself."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, x: Tensor) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        return None, ctx.ranks.all_summed(grads[0])


def heads_for_positions(ranks: Ranks, ranges: Ranges, x: Tensor) -> Tensor:
    """From this rank's positions of all heads to all positions of this rank's heads: [B, H, S_local, D] to [B, H / n, S, D]."""
    return _Turned.apply(ranks, ranges, x, True)  # type: ignore[no-untyped-call]


def positions_for_heads(ranks: Ranks, ranges: Ranges, x: Tensor) -> Tensor:
    """The inverse."""
    return _Turned.apply(ranks, ranges, x, False)  # type: ignore[no-untyped-call]


class _Turned(torch.autograd.Function):
    """An exchange of all ranks with all; its gradient is the inverse exchange."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, ranges: Ranges, x: Tensor, by_heads: bool) -> Tensor:
        ctx.ranks, ctx.ranges, ctx.by_heads = ranks, ranges, by_heads
        return _turned(ranks, ranges, x.detach(), by_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, Tensor, None]:  # type: ignore[override]
        return None, None, _turned(ctx.ranks, ctx.ranges, grads[0], not ctx.by_heads), None


def _turned(ranks: Ranks, ranges: Ranges, x: Tensor, by_heads: bool) -> Tensor:
    batch, heads, _, dim = x.shape
    if by_heads:
        parts = [part.contiguous() for part in x.chunk(ranks.count, 1)]
        shapes = [(batch, heads // ranks.count, held(each), dim) for each in ranges]
        return _in_order(exchange(ranks, parts, shapes), ranges)
    parts = [cut(x, each, 2).contiguous() for each in ranges]
    return torch.cat(exchange(ranks, parts, [tuple(parts[ranks.rank].shape)] * ranks.count), 1)


def _in_order(parts: Sequence[Tensor], ranges: Ranges) -> Tensor:
    return ordered([part.movedim(2, 0) for part in parts], ranges).movedim(0, 2).contiguous()


def with_heads(name: str, function: Callable[..., Any] | None, offset: int) -> Callable[..., Any] | None:
    """A function of an attention that sees heads `offset` further on: those of the whole attention."""
    if function is None or (count := len(inspect.signature(function).parameters)) <= _HEAD[name]:
        return function
    if name == "mask_mod":
        return lambda b, h, q_idx, kv_idx: function(b, h + offset, q_idx, kv_idx)
    if count == 4:
        return lambda x, b, h, position: function(x, b, h + offset, position)
    return lambda x, b, h, position, other: function(x, b, h + offset, position, other)
