"""Runs kernels of derivatives whose heads are too wide for one: products and sums by matrix products of torch, weights by the kernel.

A chunk is some queries of some heads. Of it, torch makes the products q k^T and do v^T in f32, the kernel (`gpu.passes.materialize_pairs`)
the weights of all pairs in 16 bits, torch the sums over keys and over queries, in f32. Sums go where results are, without copies between,
as far as these lie so that a matrix product can write them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir.backends.allocation import empty_heads
from attn_mlir.backends.gpu import pair_chunks
from attn_mlir.backends.gpu.packed_pairs import PackedPairs, PackedPart
from attn_mlir.backends.gpu.pair_chunks import BYTES, PairChunk, PairSizes, chunks, range_of
from attn_mlir.backends.gpu.pair_products import STEP, PairsInMemory, PairStage
from attn_mlir.backends.gpu.pair_sums import ChunkKeys, ChunkKeySums, ChunkQueries, ChunkQuerySums, product_of
from attn_mlir.backends.program import ResultShapes

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


def run(kernel: PairKernel, operands: Sequence[Any], made: ResultShapes, layout: str, apart: bool = False) -> list[torch.Tensor]:
    """The results of a step on its operands; `apart`: of packed sequences each by itself, as what others are in a batch changes bits."""
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
    values = _row_values(kernel, sizes, query.device)
    most = max(1, pair_chunks.MOST_PAIRS * BYTES // max(BYTES, _bytes_of_pair(kernel)))
    if not described.sequences:
        keys = described.keys
        ranged = None if keys is None else lambda begin, end: range_of(keys, operands, sizes, begin, end)
        own = PairRun(kernel, operands, results, values)
        own.run(list(chunks(sizes, ranged, most)), dict(enumerate(operands)), dict(enumerate(results)))
        _make_rows(kernel, [*operands, *values], results, made)
        return results
    for each in described.sums:
        results[each.result].zero_()
    for part in PackedPairs(described, operands, sizes, most, apart).parts():
        own = PairRun(kernel, operands, results, values, part)
        targets = part.targets(results)
        own.run(part.chunks, part.operands, targets, fresh=part.places is not None)
        part.store(results, targets)
    _make_rows(kernel, [*operands, *(each[:, :, : sizes.queries] for each in values)], results, made)
    return results


def _row_values(kernel: PairKernel, sizes: PairSizes, device: torch.device) -> list[torch.Tensor]:
    """Values of rows before anything is reduced; of packed tensors there is one more row, for queries past the end of a sequence."""
    shape = sizes.batches, sizes.heads, sizes.queries + bool(kernel.described.sequences)
    kinds = [kind for stage in kernel.stages for kind in stage.reductions]
    return [torch.full(shape, _BEFORE[kind], dtype=torch.float32, device=device) for kind in kinds]


def _make_rows(kernel: PairKernel, taken: Sequence[Any], results: list[torch.Tensor], made: ResultShapes) -> None:
    """Makes the row outputs, from the values of all rows."""
    numbers, dtypes = kernel.described.rows, tuple(kernel.dtypes[""])
    if numbers:
        last = PairStage("", kernel.described.kept, (), len(numbers))
        own = ResultShapes(tuple(made.shapes[number] for number in numbers), dtypes, (False,) * len(dtypes))
        found = kernel.launch(last, [taken[number] for number in last.kept], own)
        for number, tensor in zip(numbers, found, strict=True):
            results[number] = tensor


class PairRun:
    """The chunks of tensors of some rows of each batch entry or, with `part`, of the sequences that it has."""

    def __init__(
        self,
        kernel: PairKernel,
        operands: Sequence[Any],
        results: list[torch.Tensor],
        values: Sequence[torch.Tensor],
        part: PackedPart | None = None,
    ) -> None:
        """`operands`, `results` and values of rows are those of the step."""
        self._kernel, self._described, self._part = kernel, kernel.described, part
        query, key = (operands[number] for number in self._described.products[0])
        self._sizes = (*query.shape[:3], *key.shape[1:3])
        self._values = values
        self._taken = [*operands, *values]
        self._order = [] if part is None else [part.order]
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
        queries = {number: ChunkQueries(operands[number], sizes, found) for number in by_query}
        keys = {number: ChunkKeys(operands[number]) for number in by_key}
        query_sums = {each.result: ChunkQuerySums(targets[each.result], sizes, found) for each in of_query}
        key_sums = {each.result: ChunkKeySums(targets[each.result], sizes, found, self._kernel.processors, fresh) for each in of_key}
        for chunk in found:
            rows = {number: each.of(chunk) for number, each in queries.items()}
            columns = {number: each.of(chunk) for number, each in keys.items()}
            products = [product_of(rows[q], columns[k].mT) for q, k in described.products]
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
        part, rows = self._part, slice(chunk.i, chunk.i + chunk.rows)
        for place, (kind, term) in enumerate(zip(self._kernel.stages[number].reductions, terms, strict=True)):
            of_rows = term.view(chunk.batches, -1, chunk.rows, chunk.columns)
            made = of_rows.sum(-1) if kind == "sum" else of_rows.amax(-1) if kind == "max" else of_rows.amin(-1)
            values = self._values[before + place]
            if part is None:
                values[chunk.b : chunk.b + chunk.batches, heads, rows] = made
            elif part.places is None:
                values[:, heads, part.first + chunk.i : part.first + chunk.i + chunk.rows] = made
            else:
                places = part.places[chunk.b : chunk.b + chunk.batches, rows]
                of_heads = torch.arange(heads.start, heads.stop, device=values.device)
                values[0].index_put_((of_heads[None, :, None], places[:, None]), made)


def _bytes_of_pair(kernel: PairKernel) -> int:
    """Memory that a pair takes: products, and what the stage with most makes."""
    sizes = [sum(dtype.itemsize for dtype in kernel.dtypes[stage.kernel][: stage.outputs]) for stage in kernel.stages]
    return 4 * len(kernel.described.products) + max(sizes)
