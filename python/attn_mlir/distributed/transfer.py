"""Tensors on their way between ranks: posted in rounds that are the same on all ranks, received while something else is computed."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attn_mlir.distributed.group import Ranks
from attn_mlir.distributed.placement import Range, held

_COUNTED = {"bytes": 0, "messages": 0}


def traffic() -> dict[str, int]:
    """How many bytes and messages with keys, values and their gradients this process has sent between ranks so far."""
    return dict(_COUNTED)


@dataclasses.dataclass
class Transfer:
    """What was posted: `wait` gives what is received, on the current stream."""

    works: list[Any]
    received: Tensor | None
    kept: list[Tensor]
    """What is sent, which must live until then."""
    stream: Any = None
    """The CUDA stream on which it was posted, where that is another one."""

    def wait(self) -> Tensor | None:
        """What was received; None where there is nothing."""
        for work in self.works:
            work.wait()
        if self.stream is not None:
            with torch.cuda.stream(self.stream):  # its allocator reuses what was sent after this
                for work in self.works:
                    work.wait()
            current = torch.cuda.current_stream(self.stream.device)
            current.wait_stream(self.stream)
            if self.received is not None:
                self.received.record_stream(current)
        self.works, self.kept = [], []
        return self.received


def mark(device: torch.device) -> Any:
    """The end of all that the current CUDA stream has to do by now; None on CPUs."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


@contextlib.contextmanager
def stream_after(event: Any, device: torch.device) -> Iterator[Any]:
    """Gives a CUDA stream, made the current one, that waits for a `mark` and not for what was queued later; None on CPUs."""
    if event is None:
        yield None
        return
    stream = _stream(device)
    stream.wait_event(event)
    with torch.cuda.stream(stream):
        yield stream


@functools.cache
def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)


def post(ranks: Ranks, sent: Tensor | None, to: int, size: int, source: int, like: Tensor, stream: Any = None) -> Transfer:
    """Sends a flat tensor to one rank of the group, and receives one of `size` elements, of `like`'s type, from another one.

    stream: the current CUDA stream, where it is not the one that uses what is received.
    """
    received = torch.empty(size, dtype=like.dtype, device=like.device) if size else None
    operations = []
    if sent is not None and sent.numel():
        _COUNTED["bytes"] += sent.numel() * sent.element_size()
        _COUNTED["messages"] += 1
        operations.append(dist.P2POp(dist.isend, sent, group=ranks.group, group_peer=to))
    if received is not None:
        operations.append(dist.P2POp(dist.irecv, received, group=ranks.group, group_peer=source))
    works = dist.batch_isend_irecv(operations) if operations else []
    return Transfer(works, received, [] if sent is None else [sent], stream)


def packed(tensors: Sequence[Tensor], places: Sequence[Range]) -> Tensor | None:
    """These positions of tensors [B, H, S, D] as one flat tensor; None where there are none."""
    if not places:
        return None
    shapes = [(*x.shape[:2], held(places), x.shape[3]) for x in tensors]
    flat = torch.empty(sum(torch.Size(shape).numel() for shape in shapes), dtype=tensors[0].dtype, device=tensors[0].device)
    for x, part in zip(tensors, unpacked(flat, shapes), strict=True):
        at = 0
        for begin, end in places:
            part[:, :, at : at + end - begin] = x[:, :, begin:end]
            at += end - begin
    return flat


def unpacked(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """The inverse, as views."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [part.view(tuple(shape)) for part, shape in zip(flat.split(sizes), shapes, strict=True)]


def exchange(ranks: Ranks, parts: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """What each rank has for this one, of these shapes, where this one has `parts` for them: contiguous tensors of one type."""
    received = [torch.empty(tuple(shape), dtype=parts[0].dtype, device=parts[0].device) for shape in shapes]
    operations = []
    for distance in range(1, ranks.count):
        to, source = (ranks.rank + distance) % ranks.count, (ranks.rank - distance) % ranks.count
        if parts[to].numel():
            _COUNTED["bytes"] += parts[to].numel() * parts[to].element_size()
            _COUNTED["messages"] += 1
            operations.append(dist.P2POp(dist.isend, parts[to], group=ranks.group, group_peer=to))
        if received[source].numel():
            operations.append(dist.P2POp(dist.irecv, received[source], group=ranks.group, group_peer=source))
    for work in dist.batch_isend_irecv(operations) if operations else []:
        work.wait()
    received[ranks.rank].copy_(parts[ranks.rank])
    return received
