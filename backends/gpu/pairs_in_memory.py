"""Runs kernels of derivatives whose heads are too wide for one: products and sums by matrix products of torch, weights by the kernel.

A chunk is some queries of some heads. Of it, torch makes the products q k^T and do v^T in f32, the kernel (`gpu.passes.materialize_pairs`)
the weights of all pairs in 16 bits, torch the sums over keys and over queries, in f32.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir.backends.allocation import empty_heads
from attn_mlir.backends.gpu.pair_products import PairsInMemory
from attn_mlir.backends.gpu.scalar_bounds import HEADS
from attn_mlir.backends.program import ResultShapes
from attn_mlir.errors import UnsupportedError

MOST_PAIRS = 1 << 25
"""Pairs of a chunk, at most: 12 bytes of memory for each, with two products and two weights."""
Launch = Callable[[list[Any], ResultShapes], list[torch.Tensor]]


@dataclass(frozen=True)
class Chunk:
    """Batch entries [b, b + batches), key heads [h, h + heads), queries [i, i + rows)."""

    b: int
    batches: int
    h: int
    heads: int
    i: int
    rows: int


def chunks(batches: int, heads: int, group: int, queries: int, keys: int, most: int = MOST_PAIRS) -> Iterator[Chunk]:
    """Chunks of at most so many pairs, but for one query of a key head's group, of some queries of one head, or of whole heads.

    Raises UnsupportedError where a group has more heads than a kernel counts.
    """
    if group > HEADS:
        raise UnsupportedError(f"kernels for GPUs take up to {HEADS} heads of queries for one of keys, got {group}: compute on the CPU")
    rows = max(1, min(queries, most // (group * keys), HEADS // group))
    head = group * queries * keys
    together = max(1, min(heads, most // head, HEADS // (group * queries))) if rows == queries else 1
    entries = max(1, min(batches, most // (head * heads))) if together == heads and rows == queries else 1
    for b in range(0, batches, entries):
        for h in range(0, heads, together):
            for i in range(0, queries, rows):
                yield Chunk(b, min(entries, batches - b), h, min(together, heads - h), i, min(rows, queries - i))


def run(
    described: PairsInMemory, dtypes: Sequence[torch.dtype], operands: Sequence[Any], made: ResultShapes, layout: str, launch: Launch
) -> list[torch.Tensor]:
    """The results of a step: `dtypes` are those of what the kernel makes, which `launch` runs."""
    query, key = (operands[number] for number in described.products[0])
    (batches, heads, queries), (key_heads, keys) = query.shape[:3], key.shape[1:3]
    group = heads // key_heads
    results: list[Any] = [None] * len(made.shapes)
    for each in described.sums:
        order = layout if made.heads[each.result] else "bhsd"
        results[each.result] = empty_heads(made.shapes[each.result], made.dtypes[each.result], order, query.device).zero_()
    for chunk in chunks(batches, key_heads, group, queries, keys):
        of_queries, of_keys = _Queries(chunk, group), _Keys(chunk)
        products = [_product(of_queries.of(operands[q]), of_keys.of(operands[k]).mT) for q, k in described.products]
        numbers = [chunk.rows, chunk.i, chunk.h * group, chunk.b, batches, heads, queries, key_heads, keys]
        shape = torch.Size([chunk.batches, chunk.heads * group * chunk.rows, keys])
        scattered = [made.shapes[number] for number in described.scatters]
        own = ResultShapes((*[shape] * described.weights, *scattered), tuple(dtypes), (False,) * len(dtypes))
        kernel = [*(operands[number] for number in described.kept), *(product.view(shape) for product in products), *numbers]
        found = launch(kernel, own)
        weights = [weight.view(-1, group * chunk.rows, keys) for weight in found[: described.weights]]
        for number, tensor in zip(described.scatters, found[described.weights :], strict=True):
            results[number] = tensor if results[number] is None else results[number].add_(tensor)
        for each in described.sums:
            for term, weight in zip(each.terms, each.weights, strict=True):
                if each.kind == "query":
                    of_queries.add(results[each.result], _product(weights[weight], of_keys.of(operands[term])))
                else:
                    of_keys.add(results[each.result], _product(weights[weight].mT, of_queries.of(operands[term])))
    return results


class _Queries:
    """Tensors of queries as [key heads of all batch entries, queries of a group, D], those of a chunk."""

    def __init__(self, chunk: Chunk, group: int) -> None:
        self._batches, self._rows = slice(chunk.b, chunk.b + chunk.batches), slice(chunk.i, chunk.i + chunk.rows)
        self._heads = slice(chunk.h * group, (chunk.h + chunk.heads) * group)
        self._group = group * chunk.rows

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its rows."""
        return self._seen(tensor).reshape(-1, self._group, tensor.shape[-1])

    def add(self, tensor: torch.Tensor, rows: torch.Tensor) -> None:
        """Adds rows to it."""
        seen = self._seen(tensor)
        seen += rows.view(seen.shape)

    def _seen(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor[self._batches, self._heads, self._rows]


class _Keys:
    """Tensors of keys as [key heads of all batch entries, keys, D], those of a chunk."""

    def __init__(self, chunk: Chunk) -> None:
        self._batches, self._heads = slice(chunk.b, chunk.b + chunk.batches), slice(chunk.h, chunk.h + chunk.heads)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its rows."""
        return tensor[self._batches, self._heads].flatten(0, 1)

    def add(self, tensor: torch.Tensor, rows: torch.Tensor) -> None:
        """Adds rows to it."""
        seen = tensor[self._batches, self._heads]
        seen += rows.view(seen.shape)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a b in f32, of matrices [n, r, c] and [n, c, d] of 16 bits.

    torch before 2.8, and on the CPU, has no such product: factors are converted first, which gives the same but for the order of sums.
    """
    if a.is_cuda and _HAS_WIDE_RESULTS:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


_HAS_WIDE_RESULTS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)
