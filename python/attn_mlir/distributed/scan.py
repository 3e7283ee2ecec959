"""The scan of states over ranks: what state each rank's segment begins with, in rounds that double the distance."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from attn_mlir.distributed.group import Ranks
from attn_mlir.distributed.transfer import post


def states_before(ranks: Ranks, transition: Tensor, state: Tensor, start: Tensor) -> Tensor:
    """The state before each rank's segment, of which S -> transition S + state is the effect: what those of lower ranks make of `start`.

    state and start are [..., K, V]. transition is [..., K, 1], what each row of a state is multiplied with, or, of segments that erase,
    the matrix [..., K, K]. Every rank makes the call, forward and backward; the gradient of start is rank 0's.
    """
    return _Before.apply(ranks, transition, state, start)  # type: ignore[no-untyped-call]


def applied(transition: Tensor, x: Tensor) -> Tensor:
    """A transition after what x is, a state or another transition."""
    return transition * x if transition.shape[-1] == 1 else transition @ x


def scanned(ranks: Ranks, transition: Tensor, state: Tensor, direction: int) -> Tensor:
    """Of the effects of all ranks before this one (after it, where direction is -1), one after another on 0."""
    place = ranks.rank if direction > 0 else ranks.count - 1 - ranks.rank
    a, s = transition, state
    distance = 1
    while distance < ranks.count:
        got = _shifted(ranks, torch.cat([a, s], -1), distance * direction, place >= distance, place + distance < ranks.count)
        if got is not None:
            s = applied(a, got[..., a.shape[-1] :]) + s
            a = applied(a, got[..., : a.shape[-1]])
        distance *= 2
    before = _shifted(ranks, s, direction, place >= 1, place + 1 < ranks.count)
    return torch.zeros_like(state) if before is None else before


def _shifted(ranks: Ranks, own: Tensor, by: int, receives: bool, sends: bool) -> Tensor | None:
    """What the rank so far before this one holds, which sends its own to that far after it."""
    flat = own.contiguous().reshape(-1)
    to, source = (ranks.rank + by) % ranks.count, (ranks.rank - by) % ranks.count
    got = post(ranks, flat if sends else None, to, flat.numel() if receives else 0, source, flat).wait()
    return None if got is None else got.view(own.shape)


class _Before(torch.autograd.Function):
    """The scan; its gradient is the same scan from the last rank to the first, by the transposed transitions."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, transition: Tensor, state: Tensor, start: Tensor) -> Tensor:
        first = ranks.rank == 0
        before = scanned(ranks, transition.detach(), (applied(transition, start) + state if first else state).detach(), 1)
        before = start.detach().clone() if first else before
        ctx.ranks = ranks
        ctx.save_for_backward(transition, before)
        return before

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:  # type: ignore[override]
        transition, before = ctx.saved_tensors
        is_matrix = transition.shape[-1] > 1
        back = transition.mT if is_matrix else transition
        given = grads[0].to(before.dtype)
        after = scanned(ctx.ranks, back, given, -1)  # the gradient of the state after this rank's segment
        start = applied(back, after) + given if ctx.ranks.rank == 0 else torch.zeros_like(before)
        return None, after @ before.mT if is_matrix else (after * before).sum(-1, keepdim=True), after, start


def from_last(ranks: Ranks, value: Tensor) -> Tensor:
    """What the last rank holds, on all ranks; the gradients of all add up there."""
    return _FromLast.apply(ranks, value)  # type: ignore[no-untyped-call]


class _FromLast(torch.autograd.Function):
    """A broadcast, whose gradient is a sum in the order of the ranks."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, value: Tensor) -> Tensor:
        ctx.ranks = ranks
        made = value.detach().clone().contiguous()
        dist.broadcast(made, group=ranks.group, group_src=ranks.count - 1)
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        total = ctx.ranks.all_summed(grads[0])
        return None, total if ctx.ranks.rank == ctx.ranks.count - 1 else torch.zeros_like(total)
