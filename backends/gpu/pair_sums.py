"""Matrix products of chunks of pairs, and the tensors of queries and of keys that they multiply and sum to."""

from collections.abc import Iterator, Sequence

import torch

from attn_mlir.backends.allocation import empty
from attn_mlir.backends.gpu.pair_chunks import PairChunk, PairSizes
from attn_mlir.backends.gpu.pair_products import STEP

BLOCK, LEAST_QUERIES, MOST_PARTS = (128, 256), 512, 8
"""Of a product, what a multiprocessor makes at a time; queries that are worth a sum of their own; such sums beside each other at most."""


class ChunkViews:
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


class ChunkKeys:
    """A tensor of keys by chunks; rows past the last one, up to a multiple of `STEP`, are 0."""

    def __init__(self, tensor: torch.Tensor) -> None:
        missing = -tensor.shape[2] % STEP
        padded = torch.nn.functional.pad(tensor, (0, 0, 0, missing)) if missing else tensor
        self._blocks = ChunkViews(padded if _merges(padded) else padded.contiguous())

    def of(self, chunk: PairChunk) -> torch.Tensor:
        """The rows of a chunk, as [key heads of all batch entries, keys, D]."""
        return self._blocks.of(chunk, chunk.j, chunk.columns)


class RowGroups:
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

    def of(self, parts: Sequence[ChunkViews], strides: Sequence[int], chunk: PairChunk) -> torch.Tensor:
        """A chunk's rows in such memory, whose chunks are so far apart."""
        rows = self._group * chunk.rows
        if chunk.rows == self.rows:
            return parts[0].of(chunk, 0, rows, chunk.i // self.rows * strides[0])
        return parts[1].of(chunk, 0, rows)


class ChunkQueries:
    """A tensor of queries by chunks, whose heads of a group lie together: copied once where they do not."""

    def __init__(self, tensor: torch.Tensor, sizes: PairSizes, found: Sequence[PairChunk]) -> None:
        self._group = sizes.heads // sizes.key_heads
        rows = found[0].rows if found else sizes.queries
        # One chunk has all rows of a head, those of the next one behind them.
        whole = rows == sizes.queries and tensor.stride(1) == tensor.shape[2] * tensor.stride(2)
        self._direct: ChunkViews | None = None
        if self._group == 1:
            self._direct = ChunkViews(tensor if _merges(tensor) else tensor.contiguous())
        elif whole:
            joined = tensor.view(sizes.batches, sizes.key_heads, self._group * rows, -1)
            self._direct = ChunkViews(joined if _merges(joined) else joined.contiguous())
        self._groups = RowGroups(sizes, rows)
        if self._direct is None:
            parts = self._groups.empty(tensor.shape[3], tensor.dtype, tensor.device)
            for source, target in self._groups.views(tensor, parts):
                target.copy_(source)
            self._parts, self._strides = [ChunkViews(part[0]) for part in parts if len(part)], [part.stride(0) for part in parts]
            if not self._groups.whole:
                self._parts.insert(0, self._parts[0])

    def of(self, chunk: PairChunk) -> torch.Tensor:
        """The rows of a chunk, as [key heads of all batch entries, queries of a group, D]."""
        if self._direct is not None:
            return self._direct.of(chunk, self._group * chunk.i, self._group * chunk.rows)
        return self._groups.of(self._parts, self._strides, chunk)


class ChunkQuerySums:
    """A result of queries, each of whose rows one chunk makes: written in place, or in f32 by groups and copied at the end."""

    def __init__(self, target: torch.Tensor, sizes: PairSizes, found: Sequence[PairChunk]) -> None:
        self._target, self._group = target, sizes.heads // sizes.key_heads
        rows = found[0].rows if found else sizes.queries
        plain = target.dtype == torch.float32
        self._in_place = plain and self._group == 1 and _merges(target)
        self._by_head = plain and not self._in_place and sizes.batches == sizes.key_heads == 1
        """Whether heads share one of keys, so that a product for each of them writes in place."""
        self._groups = RowGroups(sizes, rows)
        self._memory = () if self._in_place or self._by_head else self._groups.empty(target.shape[3], torch.float32, target.device)
        if sum(each.batches * each.heads * each.rows for each in found) < sizes.batches * sizes.key_heads * sizes.queries:
            for tensor in self._memory or (target,):
                tensor.zero_()
        self._blocks = [ChunkViews(part[0] if self._memory else part) for part in self._memory or (target,) if len(part)]
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


class ChunkKeySums:
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
            weights, terms = weights.view(count * parts, -1, chunk.columns), terms.reshape(count * parts, -1, terms.shape[-1])
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


def product_of(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
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
