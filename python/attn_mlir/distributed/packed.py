"""Packed documents over ranks: a ring of those that the ranks' ranges cut, and kernels for packed sequences of those that they do not."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attn_mlir.api.options import Options
from attn_mlir.api.varlen_inputs import problem_of, sequences_of
from attn_mlir.distributed.group import Ranks
from attn_mlir.distributed.placement import Range, Ranges, held
from attn_mlir.distributed.strategies import replicated
from attn_mlir.distributed.whole import Asked
from attn_mlir.errors import ArgumentError
from attn_mlir.runtime.dispatch import dispatch
from attn_mlir.runtime.varlen import largest

_WHOLE, _CUT, _NONE = "whole", "cut", "none"


@dataclasses.dataclass(frozen=True)
class Part:
    """Positions that follow each other in a range of a rank, and in what they are."""

    places: Range
    """Where they are in the rank's shard."""
    positions: Range
    documents: Range
    """Of documents that the range has whole: the first one, and the one after the last. Of a cut one: itself, and the one after it."""
    kind: str
    """"whole", "cut", or "none" after the last document."""


Parts = tuple[Part, ...]


def offsets_of(cu_seqlens: Any, batch: int) -> tuple[int, ...]:
    """Where documents begin, and the last one ends. Raises ArgumentError."""
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dim() != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        given = f"a tensor of {cu_seqlens.dtype}, {list(cu_seqlens.shape)}" if isinstance(cu_seqlens, Tensor) else type(cu_seqlens).__name__
        raise ArgumentError(f"cu_seqlens must be an int32 tensor [documents + 1], the same on all ranks, got {given}")
    found = tuple(cu_seqlens.tolist())
    if len(found) < 2 or found[0] != 0 or any(a > b for a, b in itertools.pairwise(found)):
        raise ArgumentError(f"cu_seqlens must rise from 0 and have at least two elements, got {list(found[:8])}")
    if batch != 1:
        raise ArgumentError(f"with cu_seqlens all documents are in one sequence, of batch size 1, but the batch size is {batch}")
    return found


def parts_of(ranges: Sequence[Range], offsets: Sequence[int]) -> Parts:
    """The parts of a rank's ranges, in the order in which it holds them."""
    found, at = list[Part](), 0
    documents = [(n, begin, end) for n, (begin, end) in enumerate(itertools.pairwise(offsets)) if begin < end]
    for first, last in ranges:
        here = [(n, max(begin, first), min(end, last), begin, end) for n, begin, end in documents if begin < last and first < end]
        for n, begin, end, *borders in here:
            kind = _WHOLE if [begin, end] == borders else _CUT
            places = (at + begin - first, at + end - first)
            previous = found[-1] if found else None
            if kind == _WHOLE and previous is not None and previous.kind == kind and previous.positions[1] == begin:
                joined = Part((previous.places[0], places[1]), (previous.positions[0], end), (previous.documents[0], n + 1), kind)
                found[-1] = joined
            else:
                found.append(Part(places, (begin, end), (n, n + 1), kind))
        covered = max([end for _, _, end, *_ in here], default=first)
        if covered < last:
            found.append(Part((at + covered - first, at + last - first), (covered, last), (0, 0), _NONE))
        at += last - first
    return tuple(found)


@functools.lru_cache(maxsize=64)
def layout_of(ranges: Ranges, offsets: tuple[int, ...]) -> tuple[Parts, ...]:
    """The parts of all ranks."""
    return tuple(parts_of(each, offsets) for each in ranges)


def taken(x: Tensor, parts: Sequence[Part]) -> Tensor:
    """The positions of parts of a shard [B, H, S, D], one part after another."""
    pieces = [x[:, :, slice(*part.places)] for part in parts]
    if not pieces:
        return x[:, :, :0]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)


def whole_documents(
    call: Asked, ranks: Ranks, qkv: tuple[Tensor, Tensor, Tensor], parts: Sequence[Part], offsets: Sequence[int]
) -> list[Tensor]:
    """Each o, [1, H, T, Dv], and the row outputs, [1, H, T], of the documents that this rank has whole, in the order of their positions."""
    lengths = torch.zeros(len(offsets), dtype=torch.int32, device="cpu")
    for part in parts:
        for n in range(*part.documents):
            lengths[n + 1] = offsets[n + 1] - offsets[n]
    q, k, v = (taken(x, parts)[0].transpose(0, 1) for x in qkv)
    options = Options(call.functions, call.scale, "bshd", call.return_lse, call.return_states, call.device, call.deterministic)
    cut = lengths.cumsum(0, dtype=torch.int32).to(q.device)
    made = options.call(problem_of(q, k, v, False), [x.unsqueeze(0) for x in (q, k, v)], call.dropout, sequences_of(q, cut, None, None))
    values = [replicated(ranks, x) if isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled() else x for x in made.values[3:]]
    most = int(lengths.max())
    with largest(most, most):
        results = dispatch(made._replace(values=[*made.values[:3], *values]))
    return [x.transpose(1, 2) if x.dim() == 4 else x for x in results]


def joined(
    parts: Parts, whole: Sequence[Tensor] | None, cut: Sequence[Tensor] | None, like: Sequence[tuple[Tensor, float]]
) -> list[Tensor]:
    """The results of a shard, of those of its whole documents, by position, and those of its cut ones, in the order of the shard.

    `like` are results without positions, and what stands where no document is. All that is given has a part in the results, perhaps an
    empty one, so that all ranks have the same backward pass.
    """
    order = by_position(parts)
    begins = dict(zip((part.positions for part in order), itertools.accumulate([0, *map(_length, order)]), strict=False))
    every = []
    for number, (empty, nothing) in enumerate(like):
        pieces, at = [source[number][:, :, :0] for source in (whole, cut) if source is not None], 0
        for part in parts:
            length = _length(part)
            if part.kind == _CUT and cut is not None:
                pieces.append(cut[number][:, :, at : at + length])
                at += length
            elif part.kind == _WHOLE and whole is not None:
                pieces.append(whole[number][:, :, begins[part.positions] : begins[part.positions] + length])
            else:
                pieces.append(torch.full((*empty.shape[:2], length, *empty.shape[3:]), nothing, dtype=empty.dtype, device=empty.device))
        every.append(torch.cat(pieces, 2) if pieces else empty)
    return every


def by_position(parts: Parts) -> list[Part]:
    """The parts with whole documents, as they follow each other in the sequence."""
    return sorted((part for part in parts if part.kind == _WHOLE), key=lambda part: part.positions)


def cut_parts(parts: Parts) -> list[Part]:
    """The parts of cut documents, in the order of the shard."""
    return [part for part in parts if part.kind == _CUT]


def _length(part: Part) -> int:
    return held([part.places])
