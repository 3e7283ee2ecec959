"""`shard` and `unshard`: from whole tensors to what each rank holds of a sequence, and back."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from attn_mlir.distributed.group import Ranks, ranks_of
from attn_mlir.distributed.placement import Placement, Ranges, held, placed, ranges_of
from attn_mlir.errors import ArgumentError


def shard(x: Tensor, mesh: DeviceMesh, dim: str | int | None = None, seq_dim: int = 2, placement: Placement = "contiguous") -> Tensor:
    """This rank's part of a tensor that every rank has whole: its ranges of dimension `seq_dim`, one after another.

    A replicated DTensor is taken by its local tensor. The gradient of the whole tensor is zero where other ranks hold it.
    """
    ranks = ranks_of(mesh, dim)
    if isinstance(x, DTensor):
        if not all(isinstance(each, Replicate) for each in x.placements):
            raise ArgumentError(f"shard takes a tensor that every rank has whole, got a DTensor of {x.placements}: use its redistribute()")
        x = x.to_local()
    ranges = ranges_of(placement, x.shape[seq_dim], ranks.count)[ranks.rank]
    return cut(x, ranges, seq_dim)


def cut(x: Tensor, ranges: Any, seq_dim: int) -> Tensor:
    """The ranges of a whole tensor's dimension, one after another."""
    if not ranges:
        return x.narrow(seq_dim, 0, 0)
    parts = [x.narrow(seq_dim, begin, end - begin) for begin, end in ranges]
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts, seq_dim)


def unshard(x: Tensor, mesh: DeviceMesh, dim: str | int | None = None, seq_dim: int = 2, placement: Placement = "contiguous") -> Tensor:
    """The whole tensor, on every rank, of what each rank holds of it. The gradient of a part is that of the rank's own copy."""
    ranks = ranks_of(mesh, dim)
    x = x.to_local() if isinstance(x, DTensor) else x
    seq_dim %= x.dim()
    lengths = [each[0] for each in ranks.all_gather("unshard", [x.shape[seq_dim]], x.device)]
    return _Unshard.apply(x, ranks, placed(placement, lengths, "x"), seq_dim)  # type: ignore[no-untyped-call]


class _Unshard(torch.autograd.Function):
    """Gathers; its gradient cuts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, ranges: Ranges, seq_dim: int) -> Tensor:
        ctx.ranges, ctx.seq_dim = ranges[ranks.rank], seq_dim
        return gathered(x, ranks, ranges, seq_dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return cut(grads[0], ctx.ranges, ctx.seq_dim), None, None, None


def gathered(x: Tensor, ranks: Ranks, ranges: Ranges, seq_dim: int) -> Tensor:
    """The whole tensor of every rank's part; parts of different lengths are padded on the way."""
    first = x.movedim(seq_dim, 0)
    lengths = [held(each) for each in ranges]
    longest = max(lengths)
    own = first.new_zeros((longest, *first.shape[1:]))
    own[: first.shape[0]] = first
    every = [torch.empty_like(own) for _ in lengths]
    dist.all_gather(every, own, group=ranks.group)
    return ordered([part[:length] for part, length in zip(every, lengths, strict=True)], ranges).movedim(0, seq_dim).contiguous()


def ordered(parts: list[Tensor], ranges: Ranges) -> Tensor:
    """The parts of all ranks in the order of positions, along dimension 0."""
    pieces = []
    for part, own in zip(parts, ranges, strict=True):
        begin = 0
        for at, end in own:
            pieces.append((at, part[begin : begin + end - at]))
            begin += end - at
    return torch.cat([piece for _, piece in sorted(pieces, key=lambda each: each[0])]) if pieces else parts[0]
