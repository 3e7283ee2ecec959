"""Attention of one rank's queries to the keys of all ranks, forward and backward: the next keys are on their way while kernels run."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from attn_mlir.distributed.cut_program import BackwardPart, CutProgram
from attn_mlir.distributed.group import Ranks
from attn_mlir.distributed.placement import Range, held
from attn_mlir.distributed.plan import KernelRun, Message, RingSteps, in_halves
from attn_mlir.distributed.transfer import Transfer, mark, packed, post, stream_after, unpacked
from attn_mlir.runtime.row_values import score_of

Partial = tuple[list[Tensor], list[Tensor]]


class PlacedSum:
    """A sum of tensors that are made piece by piece: of rows, where they have places, or of whole tensors."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.total: Tensor | None = None

    def add(self, share: Tensor, place: Range | None) -> None:
        """Adds a share at these places of dimension 2; None: everywhere."""
        if place is not None and self.total is None and place != (0, self.length):
            self.whole((*share.shape[:2], self.length, *share.shape[3:]), share)
        if self.total is None:
            self.total = share
        else:
            (self.total if place is None else self.total[:, :, slice(*place)]).add_(share)

    def whole(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """The sum; zeros where nothing was added."""
        if self.total is None:
            dtype = score_of(like)
            self.total = torch.zeros(tuple(shape), dtype=dtype, device=like.device)
        return self.total


@dataclasses.dataclass(frozen=True)
class RingAttention:
    """A ring attention on this rank: its programs, the ranks, what is exchanged, and which positions it holds."""

    program: CutProgram
    ranks: Ranks
    steps: RingSteps
    queries: tuple[Range, ...]
    confirm: Callable[[], None]
    """Waits for what the other ranks tell of the call, and raises where they do not agree."""
    documents: tuple[int, ...] = ()
    """Where packed documents begin, and the last one ends; none: one sequence."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, captures: Sequence[Any]) -> list[Tensor]:
        """Each o in the type of q, the row outputs, and what the backward reads, of all queries of this rank."""
        program = self.program
        partials: dict[Range, Partial] = {}
        self.confirm()
        for message, keys, values in self._arriving(k, v):
            for work in message.work:
                moved = self._moved(captures, work.query[0], work.keys[0], work.rows)
                made = program.partial(*self._of(work, q, keys, values), moved)
                outer, piece = program.shapes(q, k, v, moved), self._piece(work)
                if piece not in partials and piece == work.rows:
                    partials[piece] = made
                    continue
                if piece not in partials:
                    whole = program.empty(q[:, :, slice(*piece)], outer, v.shape[3])
                    partials[piece] = (whole[0], [x.contiguous() for x in whole[1]])
                self._merge(outer, partials, piece, work, made)
        return self._ended(partials, q, k, v, captures)

    def _piece(self, work: KernelRun) -> Range:
        """The places of the range of queries that some work is on."""
        begin = 0
        for first, last in self.queries:
            if begin <= work.rows[0] < begin + last - first:
                return begin, begin + last - first
            begin += last - first
        return begin, begin

    def _merge(self, outer: list[Any], partials: dict[Range, Partial], piece: Range, work: KernelRun, made: Partial) -> None:
        """Merges a partial result into that of a range of queries, of some of its rows."""
        if piece == work.rows:
            partials[piece] = self.program.merge(outer, partials[piece], made)
            return
        rows = slice(work.rows[0] - piece[0], work.rows[1] - piece[0])
        accumulators, states = partials[piece]
        states = [x.contiguous() for x in states]
        _, merged = self.program.merge(outer, ([x[:, :, rows] for x in accumulators], [x[:, :, rows] for x in states]), made)
        for state, x in zip(states, merged, strict=True):
            state[:, :, rows] = x
        partials[piece] = (accumulators, states)

    def _ended(self, partials: dict[Range, Partial], q: Tensor, k: Tensor, v: Tensor, captures: Sequence[Any]) -> list[Tensor]:
        every = []
        weights = [torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device) for _ in range(self.program.traced.weights)]
        begin = 0
        for query in self.queries or ((0, 0),):
            piece = (begin, begin + query[1] - query[0])
            begin = piece[1]
            rows = q[:, :, slice(*piece)]
            outer = self.program.shapes(rows, k, v, self._moved(captures, query[0], 0, piece))
            partial = partials.pop(piece, None) or self.program.empty(rows, outer, v.shape[3])
            every.append(self.program.finalize(outer, partial, [o[:, :, slice(*piece)] for o in weights]))
        if len(every) == 1:
            return [*weights, *(x.contiguous() for x in every[0])]
        return [*weights, *(torch.cat(parts, 2) for parts in zip(*every, strict=True))]

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, captures: Sequence[Any], finals: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """The gradients of the program's inputs, in the order of `wrt`: those of captured tensors are this rank's share."""
        names = self.program.wrt.split("+")
        keys = [number for number, name in enumerate(names) if name in ("k", "v")]
        whole = [*finals, *grads, *self._sums(q, k, v, captures, finals, grads)]
        found = {number: PlacedSum(k.shape[2] if number in keys else q.shape[2]) for number in range(len(names))}
        self._once(found, q, k, v, captures, whole)
        first, last = in_halves(self.steps.received[0].work)
        own = {number: found[number] for number in keys}
        returning: Transfer | None = None
        for step, (message, key, value) in enumerate(self._arriving(k, v)):
            shares = {number: PlacedSum(message.length) for number in keys} if step else own
            self._pairs(message.work if step else first, (q, key, value), captures, whole, {**found, **shares})
            if returning is not None:
                self._add(step - 1, returning, found, keys, (k, v))
            returning = self._return(step, shares, (k, v)) if step and keys else None
        self._pairs(last, (q, k, v), captures, whole, found)  # while gradients are on their way back
        if returning is not None:
            self._add(self.ranks.count - 1, returning, found, keys, (k, v))
        shards = {"q": q, "k": k, "v": v}
        return [found[n].whole(shards[name].shape, q) if name in shards else found[n].total for n, name in enumerate(names)]

    def _pairs(
        self,
        work: Sequence[KernelRun],
        qkv: tuple[Tensor, Tensor, Tensor],
        captures: Sequence[Any],
        whole: Sequence[Tensor],
        into: dict[int, PlacedSum],
    ) -> None:
        """Adds what pairs of queries and keys contribute to gradients."""
        names = self.program.wrt.split("+")
        for each in work:
            made = self._run(self.program.pairs, each, qkv, captures, whole)
            for number, gradient in zip(self.program.pairs.results, made, strict=True):
                places = {"q": each.rows, "k": each.columns, "v": each.columns, **dict.fromkeys(self.program.of_rows, each.rows)}
                into[number].add(gradient, places.get(names[number]))

    def _arriving(self, k: Tensor, v: Tensor) -> Iterator[tuple[Message, Tensor, Tensor]]:
        """The messages of all steps with their keys and values; the next one is on its way while one is looked at.

        Kernels of attention leave no room on a GPU for those that send. Therefore the first message is posted before any kernel, and
        the next ones after the kernels of the step before the last one: three messages are in memory then.
        """
        count = self.ranks.count
        before = mark(k.device)
        coming = self._post(1, k, v, before) if count > 1 else None
        yield self.steps.received[0], k, v
        for step in range(1, count):
            now = mark(k.device)
            arrived, coming = coming, self._post(step + 1, k, v, before) if step + 1 < count else None
            before = now
            flat = arrived.wait() if arrived is not None else None
            message = self.steps.received[step]
            shapes = [(*x.shape[:2], message.length, x.shape[3]) for x in (k, v)]
            key, value = unpacked(flat, shapes) if flat is not None else [x[:, :, :0] for x in (k, v)]
            yield message, key, value

    def _post(self, step: int, k: Tensor, v: Tensor, after: Any) -> Transfer:
        """Posts the exchange of one step, which begins after a mark."""
        rank, count = self.ranks.rank, self.ranks.count
        length = self.steps.received[step].length
        size = sum(length * x.shape[0] * x.shape[1] * x.shape[3] for x in (k, v))
        with stream_after(after, k.device) as stream:
            sent = packed((k, v), self.steps.sent[step].places)
            return post(self.ranks, sent, (rank + step) % count, size, (rank - step) % count, k, stream)

    def _return(self, step: int, shares: dict[int, PlacedSum], kv: tuple[Tensor, Tensor]) -> Transfer:
        """Sends the gradients of keys and values of a step to the rank that holds these, and receives those of its own."""
        rank, count = self.ranks.rank, self.ranks.count
        own = [kv[self._which(number)] for number in shares]
        length, sending = held(self.steps.sent[step].places), self.steps.received[step].length
        size = sum(length * x.shape[0] * x.shape[1] * x.shape[3] for x in own)
        parts = [share.whole((*x.shape[:2], sending, x.shape[3]), x) for share, x in zip(shares.values(), own, strict=True)]
        sent = torch.cat([x.reshape(-1) for x in parts])
        return post(self.ranks, sent, (rank - step) % count, size, (rank + step) % count, sent)

    def _which(self, number: int) -> int:
        """0 for the gradient of k, 1 for that of v."""
        return ("k", "v").index(self.program.wrt.split("+")[number])

    def _add(self, step: int, returning: Transfer, found: dict[int, PlacedSum], keys: list[int], kv: tuple[Tensor, Tensor]) -> None:
        """Adds what other ranks computed of the own keys and values in one step: always in the order of steps."""
        flat = returning.wait()
        if flat is None:
            return
        places = self.steps.sent[step].places
        own = [kv[self._which(number)] for number in keys]
        shapes = [(*x.shape[:2], held(places), x.shape[3]) for x in own]
        for number, x, share in zip(keys, own, unpacked(flat, shapes), strict=True):
            at = 0
            found[number].whole(x.shape, x)
            for begin, end in places:
                found[number].add(share[:, :, at : at + end - begin], (begin, end))
                at += end - begin

    def _sums(
        self, q: Tensor, k: Tensor, v: Tensor, captures: Sequence[Any], finals: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> list[Tensor]:
        """What the backward pass sums over keys before it goes over pairs: one more time round for each stage."""
        sums: list[Tensor] = []
        for part in self.program.sums:
            totals: list[Tensor] | None = None
            for message, key, value in self._arriving(k, v):
                for work in message.work:
                    made = self._run(part, work, (q, key, value), captures, [*finals, *grads, *sums])
                    if totals is None:
                        totals = [x.new_zeros((*x.shape[:2], q.shape[2], *x.shape[3:])) for x in made]
                    for total, x in zip(totals, made, strict=True):
                        total[:, :, slice(*work.rows)] += x
            rows = (*q.shape[:3],)
            sums += totals if totals is not None else [torch.zeros(rows, device=q.device) for _ in part.results]
        return sums

    def _once(self, found: dict[int, PlacedSum], q: Tensor, k: Tensor, v: Tensor, captures: Sequence[Any], whole: Sequence[Tensor]) -> None:
        """Adds the summands of gradients that do not depend on keys."""
        part = self.program.rows
        if part is None or not held(self.queries):
            return
        names, of_rows = self.program.wrt.split("+"), {"q", *self.program.of_rows}
        begin = 0
        for query in self.queries:
            rows = (begin, begin + query[1] - query[0])
            begin = rows[1]
            work = KernelRun(query, rows, (0, 0), (0, min(1, k.shape[2])))
            for number, gradient in zip(part.results, self._run(part, work, (q, k, v), captures, whole), strict=True):
                found[number].add(gradient, rows if names[number] in of_rows else None)

    def _run(
        self, part: BackwardPart, work: KernelRun, qkv: tuple[Tensor, Tensor, Tensor], captures: Sequence[Any], whole: Sequence[Tensor]
    ) -> list[Tensor]:
        """A part of the backward pass on the rows and keys of some work; `whole` are its arguments of all rows."""
        moved = self._moved(captures, work.query[0], work.keys[0], work.rows)
        of_rows = [x[:, :, slice(*work.rows)] for x in whole]
        return part.program.run([*self._of(work, *qkv), *moved, *of_rows], "bhsd")

    def _moved(self, captures: Sequence[Any], q_offset: int, kv_offset: int, rows: Range) -> list[Any]:
        return self.program.moved(captures, q_offset, kv_offset, slice(*rows), self.documents)

    @staticmethod
    def _of(work: KernelRun, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        columns = slice(*work.columns)
        return q[:, :, slice(*work.rows)], k[:, :, columns], v[:, :, columns]
