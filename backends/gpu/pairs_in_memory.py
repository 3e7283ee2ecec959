"""Runs kernels of derivatives whose heads are too wide for one: products and sums by matrix products of torch, weights by the kernel.

A chunk is some queries of some heads. Of it, torch makes the products q k^T and do v^T in f32, the kernel (`gpu.passes.materialize_pairs`)
the weights of all pairs in 16 bits, torch the sums over keys and over queries, in f32. Sums go where results are, without copies between,
as far as these lie so that a matrix product can write them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir.backends.allocation import empty, empty_heads
from attn_mlir.backends.gpu import pair_chunks
from attn_mlir.backends.gpu.packed_pairs import PackedPairs
from attn_mlir.backends.gpu.pair_chunks import BYTES, PairChunk, PairSizes, chunks, range_of
from attn_mlir.backends.gpu.pair_products import STEP, PairsInMemory, PairStage
from attn_mlir.backends.program import ResultShapes

BLOCK, LEAST_QUERIES, MOST_PARTS = (128, 256), 512, 8
"""Of a product, what a multiprocessor makes at a time; queries that are worth a sum of their own; such sums beside each other at most."""
Launch = Callable[[PairStage, list[Any], ResultShapes], list[torch.Tensor]]
_BEFORE = {"sum": 0.0, "max": torch.finfo(torch.float32).min, "min": torch.finfo(torch.float32).max}
"""Reductions over no keys."""


@dataclass(frozen=True)
class PairKernel:
    """What multiplies, what runs kernels, and a GPU's multiprocessors; `dtypes` are those of what the kernels make, by their names."""

    described: PairsInMemory
    dtypes: Mapping[str, Sequence[torch.dtype]]
    launch: Launch
    processors: int

    @property
    def stages(self) -> tuple[PairStage, ...]:
        """What sees a chunk's products, one after the other."""
        described = self.described
        return described.stages or (PairStage("", described.kept, (), described.weights),)


def run(kernel: PairKernel, operands: Sequence[Any], made: ResultShapes, layout: str) -> list[torch.Tensor]:
    """The results of a step on its operands."""
    described = kernel.described
    query, key = (operands[number] for number in described.products[0])
    results: list[torch.Tensor] = []
    for number, shape in enumerate(made.shapes):
        order = layout if made.heads[number] else "bhsd"
        results.append(empty_heads(shape, made.dtypes[number], order, query.device))
    for number in described.scatters:
        results[number].zero_()
    sizes = PairSizes(*query.shape[:3], *key.shape[1:3])
    for each in described.sums:
        if not each.terms:
            results[each.result].zero_()
    if not described.sequences:
        keys = described.keys
        ranged = None if keys is None else lambda begin, end: range_of(keys, operands, sizes, begin, end)
        most = max(1, pair_chunks.MOST_PAIRS * BYTES // max(BYTES, _bytes_of_pair(kernel)))
        own = PairRun(kernel, operands, results, (*sizes,))
        own.run(list(chunks(sizes, ranged, most)), dict(enumerate(operands)), dict(enumerate(results)))
        own.end(made)
        return results
    for each in described.sums:
        results[each.result].zero_()
    for part in PackedPairs(described, operands, sizes).parts():
        own = PairRun(kernel, operands, results, (*sizes,), part.order)
        targets = part.targets(results)
        own.run(part.chunks, part.operands, targets, fresh=part.apart)
        part.store(results, targets)
    return results


class PairRun:
    """The chunks of tensors of some rows of each batch entry or, with `order`, of the sequences that it numbers."""

    def __init__(
        self,
        kernel: PairKernel,
        operands: Sequence[Any],
        results: list[torch.Tensor],
        sizes: Sequence[int],
        order: torch.Tensor | None = None,
    ) -> None:
        """`operands` and `results` are those of the step, `sizes` what its kernel takes as those of the tensors."""
        self._kernel, self._described, self._sizes = kernel, kernel.described, sizes
        self._results = results
        batches, heads, queries, *_ = sizes
        kinds = [kind for stage in kernel.stages for kind in stage.reductions]
        device = operands[self._described.products[0][0]].device
        self._rows = [torch.full((batches, heads, queries), _BEFORE[kind], dtype=torch.float32, device=device) for kind in kinds]
        """Values of rows."""
        self._taken = [*operands, *self._rows]
        self._order = [] if order is None else [order]
        self._scattered = {number: results[number] for number in self._described.scatters}

    def run(self, found: Sequence[PairChunk], operands: Mapping[int, Any], targets: Mapping[int, torch.Tensor], fresh: bool = True) -> None:
        """Computes chunks: sums are written to `targets`, where these are not `fresh` those of keys added; scattered weights to results.

        `operands` are tensors [n, H, rows, D] of queries and of keys, as many batch entries or sequences and rows as chunks are of.
        """
        described = self._described
        query, key = (operands[number] for number in described.products[0])
        sizes = PairSizes(*query.shape[:3], *key.shape[1:3])
        group = sizes.heads // sizes.key_heads
        of_query = [each for each in described.sums if each.kind == "query"]
        of_key = [each for each in described.sums if each.kind == "key"]
        by_query = {q for q, _ in described.products} | {term for each in of_key for term in each.terms}
        by_key = {k for _, k in described.products} | {term for each in of_query for term in each.terms}
        queries = {number: _QueryRows(operands[number], sizes, found) for number in by_query}
        keys = {number: _Keys(operands[number]) for number in by_key}
        query_sums = {each.result: _QuerySums(targets[each.result], sizes, found) for each in of_query}
        key_sums = {each.result: _KeySums(targets[each.result], sizes, found, self._kernel.processors, fresh) for each in of_key}
        for chunk in found:
            rows = {number: each.of(chunk) for number, each in queries.items()}
            columns = {number: each.of(chunk) for number, each in keys.items()}
            products = [_product(rows[q], columns[k].mT) for q, k in described.products]
            weights = list[torch.Tensor]()
            for number, stage in enumerate(self._kernel.stages):
                found_here = self._launch(stage, chunk, products, group)
                if stage.reductions:
                    self._reduce(number, chunk, found_here, group)
                else:
                    weights = [weight.view(-1, group * chunk.rows, chunk.columns) for weight in found_here]
                del found_here
            del products  # its memory is free for the next chunk
            for each in described.sums:
                for first, (term, weight) in enumerate(zip(each.terms, each.weights, strict=True)):
                    if each.kind == "query":
                        query_sums[each.result].add(chunk, weights[weight], columns[term], not first)
                    else:
                        key_sums[each.result].add(chunk, weights[weight], rows[term])
        for result in (*query_sums.values(), *key_sums.values()):
            result.end()

    def _launch(self, stage: PairStage, chunk: PairChunk, products: Sequence[torch.Tensor], group: int) -> list[torch.Tensor]:
        """What a stage makes of a chunk's pairs, as [batch entries, queries of all heads, keys / 8, 8]."""
        shape = torch.Size([chunk.batches, chunk.heads * group * chunk.rows, chunk.columns // STEP, STEP])
        scattered, dtypes = [tensor.shape for tensor in self._scattered.values()], tuple(self._kernel.dtypes[stage.kernel])
        own = ResultShapes((*[shape] * stage.outputs, *scattered), dtypes, (False,) * len(dtypes))
        numbers = (chunk.rows, chunk.i, chunk.j, chunk.h * group, chunk.b, *self._sizes)
        kept = [self._taken[number] for number in stage.kept]
        found = self._kernel.launch(stage, [*kept, *[each.view(shape) for each in products], *self._order, *numbers], own)
        for result, tensor in zip(self._scattered.values(), found[stage.outputs :], strict=True):
            result += tensor
        return found[: stage.outputs]

    def _reduce(self, number: int, chunk: PairChunk, terms: Sequence[torch.Tensor], group: int) -> None:
        """Reduces the terms of stage `number` to values of a chunk's rows."""
        before = sum(len(stage.reductions) for stage in self._kernel.stages[:number])
        heads = slice(chunk.h * group, (chunk.h + chunk.heads) * group)
        for place, (kind, term) in enumerate(zip(self._kernel.stages[number].reductions, terms, strict=True)):
            values = self._rows[before + place][chunk.b : chunk.b + chunk.batches, heads, chunk.i : chunk.i + chunk.rows]
            of_rows = term.view(*values.shape, chunk.columns)
            values.copy_(of_rows.sum(-1) if kind == "sum" else of_rows.amax(-1) if kind == "max" else of_rows.amin(-1))

    def end(self, made: ResultShapes) -> None:
        """Makes the row outputs, from the values of all rows."""
        numbers = self._described.rows
        if numbers:
            last = PairStage("", self._described.kept, (), len(numbers))
            dtypes = tuple(self._kernel.dtypes[""])
            own = ResultShapes(tuple(made.shapes[number] for number in numbers), dtypes, (False,) * len(dtypes))
            found = self._kernel.launch(last, [self._taken[number] for number in last.kept], own)
            for number, tensor in zip(numbers, found, strict=True):
                self._results[number] = tensor


def _bytes_of_pair(kernel: PairKernel) -> int:
    """Memory that a pair takes: products, and what the stage with most makes."""
    sizes = [sum(dtype.itemsize for dtype in kernel.dtypes[stage.kernel][: stage.outputs]) for stage in kernel.stages]
    return 4 * len(kernel.described.products) + max(sizes)


class _Blocks:
    """A tensor [n, key heads, ..., rows, D] by chunks: each is one view, as views of views take a host longer than a launch."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """The first two dimensions must be one of memory, or have one entry (`_merges`), but for chunks of one of either."""
        self._tensor, self._offset = tensor, tensor.storage_offset()
        (self._entry, self._head, *_, self._row, self._column), self._columns = tensor.stride(), tensor.shape[-1]
        self._step = self._entry if tensor.shape[1] == 1 else self._head

    def of(self, chunk: PairChunk, first: int, rows: int, before: int = 0) -> torch.Tensor:
        """Rows [first, first + rows) of a chunk's heads as [heads of all entries, rows, D], from element `before` of the memory on."""
        offset = self._offset + before + chunk.b * self._entry + chunk.h * self._head + first * self._row
        size = (chunk.batches * chunk.heads, rows, self._columns)
        return self._tensor.as_strided(size, (self._step, self._row, self._column), offset)


def _merges(tensor: torch.Tensor) -> bool:
    """Whether the first two dimensions of a tensor are one of memory, or would be with one entry of either."""
    return tensor.shape[0] == 1 or tensor.shape[1] == 1 or tensor.stride(0) == tensor.shape[1] * tensor.stride(1)


class _Keys:
    """A tensor of keys by chunks; rows past the last one, up to a multiple of `STEP`, are 0."""

    def __init__(self, tensor: torch.Tensor) -> None:
        missing = -tensor.shape[2] % STEP
        padded = torch.nn.functional.pad(tensor, (0, 0, 0, missing)) if missing else tensor
        self._blocks = _Blocks(padded if _merges(padded) else padded.contiguous())

    def of(self, chunk: PairChunk) -> torch.Tensor:
        """The rows of a chunk, as [key heads of all batch entries, keys, D]."""
        return self._blocks.of(chunk, chunk.j, chunk.columns)


class _Groups:
    """Memory [chunks of rows, n, key heads, group rows, D] of tensors of queries, heads of a group together, and of what is left."""

    def __init__(self, sizes: PairSizes, rows: int) -> None:
        self._sizes, self.rows, self._group = sizes, rows, sizes.heads // sizes.key_heads
        self.whole, self.last = divmod(sizes.queries, rows)

    def empty(self, columns: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """New memory of both."""
        sizes, found = self._sizes, []
        for count, rows in ((self.whole, self.rows), (1, self.last)):
            found.append(empty((count, sizes.batches, sizes.key_heads, self._group * rows, columns), dtype=dtype, device=device))
        return found[0], found[1]

    def views(self, tensor: torch.Tensor, parts: tuple[torch.Tensor, torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Of a tensor [n, heads, rows, D] and such memory, views of the same rows: [n, key heads, group, chunks, rows, D]."""
        end = self.whole * self.rows
        by_group = tensor.unflatten(1, (-1, self._group))
        if end:
            own = parts[0].unflatten(3, (self._group, self.rows)).permute(1, 2, 3, 0, 4, 5)
            yield by_group[:, :, :, :end].unflatten(3, (-1, self.rows)), own
        if self.last:
            yield by_group[:, :, :, end:], parts[1][0].unflatten(2, (self._group, self.last))

    def of(self, parts: Sequence[_Blocks], strides: Sequence[int], chunk: PairChunk) -> torch.Tensor:
        """A chunk's rows in such memory, whose chunks are so far apart."""
        rows = self._group * chunk.rows
        if chunk.rows == self.rows:
            return parts[0].of(chunk, 0, rows, chunk.i // self.rows * strides[0])
        return parts[1].of(chunk, 0, rows)


class _QueryRows:
    """A tensor of queries by chunks, whose heads of a group lie together: copied once where they do not."""

    def __init__(self, tensor: torch.Tensor, sizes: PairSizes, found: Sequence[PairChunk]) -> None:
        self._group = sizes.heads // sizes.key_heads
        rows = found[0].rows if found else sizes.queries
        # One chunk has all rows of a head, those of the next one behind them.
        whole = rows == sizes.queries and tensor.stride(1) == tensor.shape[2] * tensor.stride(2)
        self._direct: _Blocks | None = None
        if self._group == 1:
            self._direct = _Blocks(tensor if _merges(tensor) else tensor.contiguous())
        elif whole:
            joined = tensor.view(sizes.batches, sizes.key_heads, self._group * rows, -1)
            self._direct = _Blocks(joined if _merges(joined) else joined.contiguous())
        self._groups = _Groups(sizes, rows)
        if self._direct is None:
            parts = self._groups.empty(tensor.shape[3], tensor.dtype, tensor.device)
            for source, target in self._groups.views(tensor, parts):
                target.copy_(source)
            self._parts, self._strides = [_Blocks(part[0]) for part in parts if len(part)], [part.stride(0) for part in parts]
            if not self._groups.whole:
                self._parts.insert(0, self._parts[0])

    def of(self, chunk: PairChunk) -> torch.Tensor:
        """The rows of a chunk, as [key heads of all batch entries, queries of a group, D]."""
        if self._direct is not None:
            return self._direct.of(chunk, self._group * chunk.i, self._group * chunk.rows)
        return self._groups.of(self._parts, self._strides, chunk)


class _QuerySums:
    """A result of queries, each of whose rows one chunk makes: written in place, or in f32 by groups and copied at the end."""

    def __init__(self, target: torch.Tensor, sizes: PairSizes, found: Sequence[PairChunk]) -> None:
        self._target, self._group = target, sizes.heads // sizes.key_heads
        rows = found[0].rows if found else sizes.queries
        plain = target.dtype == torch.float32
        self._in_place = plain and self._group == 1 and _merges(target)
        self._by_head = plain and not self._in_place and sizes.batches == sizes.key_heads == 1
        """Whether heads share one of keys, so that a product for each of them writes in place."""
        self._groups = _Groups(sizes, rows)
        self._memory = () if self._in_place or self._by_head else self._groups.empty(target.shape[3], torch.float32, target.device)
        if sum(each.batches * each.heads * each.rows for each in found) < sizes.batches * sizes.key_heads * sizes.queries:
            for tensor in self._memory or (target,):
                tensor.zero_()
        self._blocks = [_Blocks(part[0] if self._memory else part) for part in self._memory or (target,) if len(part)]
        if self._memory and not self._groups.whole:
            self._blocks.insert(0, self._blocks[0])
        self._strides = [part.stride(0) for part in self._memory]

    def add(self, chunk: PairChunk, weights: torch.Tensor, terms: torch.Tensor, first: bool) -> None:
        """Adds weights times terms to a chunk's rows; `first`: they have none yet."""
        if self._by_head:
            memory = self._target[0, :, chunk.i : chunk.i + chunk.rows]
            _add_product(memory, weights.view(self._group, chunk.rows, -1), terms.expand(self._group, -1, -1), first)
        elif self._in_place:
            _add_product(self._blocks[0].of(chunk, chunk.i, chunk.rows), weights, terms, first)
        else:
            _add_product(self._groups.of(self._blocks, self._strides, chunk), weights, terms, first)

    def end(self) -> None:
        """Leaves the sums in the result."""
        if self._memory:
            for target, source in self._groups.views(self._target, (self._memory[0], self._memory[1])):
                target.copy_(source)


class _KeySums:
    """A result of keys, to which every chunk adds: in place or, where parts of a chunk's queries are summed beside each other, in slots."""

    def __init__(self, target: torch.Tensor, sizes: PairSizes, found: Sequence[PairChunk], processors: int, fresh: bool) -> None:
        """`fresh`: whether the result has no sums yet."""
        self._target, self._sizes, self._processors, self._fresh = target, sizes, processors, fresh
        self._group = sizes.heads // sizes.key_heads
        ends: dict[int, int] = {}
        for chunk in found:
            parts = self._parts(chunk)
            ends[parts] = max(ends.get(parts, 0), chunk.j + chunk.columns)
        self._in_place = 1 in ends and _merges(target) and sizes.keys % STEP == 0
        self._slots: dict[int, torch.Tensor] = {}
        if self._in_place:
            self._slots[1] = (target.zero_() if fresh else target).unsqueeze(2)
        for parts, end in ends.items():
            if parts not in self._slots:
                shape = (sizes.batches, sizes.key_heads, parts, end, target.shape[-1])
                self._slots[parts] = torch.zeros(shape, dtype=torch.float32, device=target.device)

    def _parts(self, chunk: PairChunk) -> int:
        """How many parts of a chunk's queries are summed beside each other: more where sums are few blocks for a GPU."""
        blocks = chunk.batches * chunk.heads * -(-chunk.columns // BLOCK[0]) * -(-self._target.shape[-1] // BLOCK[1])
        queries, parts = self._group * chunk.rows, 1
        while (
            parts < MOST_PARTS
            and blocks * parts < self._processors
            and queries % (2 * parts) == 0
            and queries // (2 * parts) >= LEAST_QUERIES
        ):
            parts *= 2
        return parts

    def add(self, chunk: PairChunk, weights: torch.Tensor, terms: torch.Tensor) -> None:
        """Adds weights times terms to the rows of keys that a chunk sees."""
        parts = self._parts(chunk)
        slots, count = self._slots[parts], chunk.batches * chunk.heads
        entry, head, slot, row, column = slots.stride()
        step = slot if parts > 1 else entry if slots.shape[1] == 1 else head
        offset = slots.storage_offset() + chunk.b * entry + chunk.h * head + chunk.j * row
        memory = slots.as_strided((count * parts, chunk.columns, slots.shape[-1]), (step, row, column), offset)
        if parts > 1:
            weights, terms = weights.view(count * parts, -1, chunk.columns), terms.view(count * parts, -1, terms.shape[-1])
        _add_product(memory, weights.mT, terms, False)

    def end(self) -> None:
        """Leaves the sums in the result."""
        target, keys = self._target, self._sizes.keys
        if self._fresh and not self._in_place:
            (slots, *more) = self._slots.values() or (None,)
            if slots is not None and not more and slots.shape[3] >= keys:
                seen = slots[:, :, :, :keys]
                target.copy_(seen[:, :, 0] if seen.shape[2] == 1 else seen.sum(2))
                return
            target.zero_()
        for parts, slots in self._slots.items():
            if parts > 1 or not self._in_place:
                end = min(slots.shape[3], keys)
                target[:, :, :end] += slots[:, :, 0, :end] if parts == 1 else slots[:, :, :, :end].sum(2)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a b in f32, of matrices [n, r, c] and [n, c, d] of 16 bits.

    torch before 2.8, and on the CPU, has no such product: factors are converted first, which gives the same but for the order of sums.
    """
    if a.is_cuda and _HAS_WIDE_RESULTS:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


def _add_product(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor, first: bool) -> None:
    """Adds a b to sums in f32, [n, r, d] of any strides between matrices and rows; `first`: in place of what is there."""
    beta = 0 if first else 1
    if a.is_cuda and _HAS_WIDE_RESULTS:
        torch.baddbmm(sums, a, b, torch.float32, beta=beta, out=sums)
    else:
        torch.baddbmm(sums, a.float(), b.float(), beta=beta, out=sums)


_HAS_WIDE_RESULTS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)
