"""Runs kernels of derivatives whose heads are too wide for one: products and sums by matrix products of torch, weights by the kernel.

A chunk is some queries of some heads. Of it, torch makes the products q k^T and do v^T in f32, the kernel (`gpu.passes.materialize_pairs`)
the weights of all pairs in 16 bits, torch the sums over keys and over queries, in f32.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from attn_mlir.backends.allocation import empty_heads
from attn_mlir.backends.gpu.pair_products import KeyRange, PairsInMemory
from attn_mlir.backends.gpu.scalar_bounds import HEADS
from attn_mlir.backends.program import ResultShapes
from attn_mlir.errors import UnsupportedError

MOST_PAIRS = 1 << 25
"""Pairs of a chunk, at most: 12 bytes of memory for each, with two products and two weights."""
PARTS, FEWEST = 8, 256
"""Chunks of queries where these see few keys, and how many queries each has at least."""
BLOCK, LEAST_QUERIES = (128, 256), 512
"""Of a product, what a multiprocessor makes at a time; queries that are worth a sum of their own."""
STEP = 8
"""The first key of a chunk, and how many it has, are multiples of it: rows of 16 bits begin at multiples of 16 bytes."""
Launch = Callable[[list[Any], ResultShapes], list[torch.Tensor]]


@dataclass(frozen=True)
class PairChunk:
    """Batch entries [b, b + batches), key heads [h, h + heads), queries [i, i + rows), and keys [j, j + columns)."""

    b: int
    batches: int
    h: int
    heads: int
    i: int
    rows: int
    j: int
    columns: int


class PairSizes(NamedTuple):
    """Of q and k: batch entries, heads and rows of each."""

    batches: int
    heads: int
    queries: int
    key_heads: int
    keys: int


def chunks(sizes: PairSizes, ranged: Callable[[int, int], tuple[int, int]] | None = None, most: int = 0) -> Iterator[PairChunk]:
    """Chunks that have all pairs together, of at most so many (0: `MOST_PAIRS`), but for one query of a group, and the keys that they see.

    `ranged`: where the keys begin and end that queries see, from their own begin and end; None: all. Then there are chunks of fewer
    queries, so that less is multiplied in vain. The first key, and the number of keys, are multiples of `STEP`: the last ones may be past
    the end. Raises UnsupportedError where a group has more heads than a kernel counts.
    """
    group, most = sizes.heads // sizes.key_heads, most or MOST_PAIRS
    if group > HEADS:
        raise UnsupportedError(f"kernels for GPUs take up to {HEADS} heads of queries for one of keys, got {group}: compute on the CPU")
    rows = max(1, min(sizes.queries, most // (group * sizes.keys), HEADS // group))
    if ranged is not None:
        rows = min(rows, max(FEWEST, -(-sizes.queries // PARTS)))
    head = group * rows * sizes.keys
    heads = max(1, min(sizes.key_heads, most // head, HEADS // (group * rows)))
    batches = max(1, min(sizes.batches, most // (head * heads))) if heads == sizes.key_heads else 1
    for i in range(0, sizes.queries, rows):
        count = min(rows, sizes.queries - i)
        begin, end = (0, sizes.keys) if ranged is None else ranged(i, i + count)
        begin, end = max(0, begin) // STEP * STEP, min(sizes.keys, end)
        if end <= begin:
            continue
        for b in range(0, sizes.batches, batches):
            for h in range(0, sizes.key_heads, heads):
                entries, together = min(batches, sizes.batches - b), min(heads, sizes.key_heads - h)
                yield PairChunk(b, entries, h, together, i, count, begin, -(-(end - begin) // STEP) * STEP)


def run(
    described: PairsInMemory,
    dtypes: Sequence[torch.dtype],
    operands: Sequence[Any],
    made: ResultShapes,
    layout: str,
    launch: Launch,
    processors: int,
) -> list[torch.Tensor]:
    """The results of a step: `dtypes` are those of what the kernel makes, which `launch` runs, `processors` a GPU's multiprocessors."""
    query, key = (operands[number] for number in described.products[0])
    sizes = PairSizes(*query.shape[:3], *key.shape[1:3])
    group = sizes.heads // sizes.key_heads
    results: list[torch.Tensor] = []
    for number, shape in enumerate(made.shapes):
        order = layout if made.heads[number] else "bhsd"
        results.append(empty_heads(shape, made.dtypes[number], order, query.device).zero_())
    of_keys = {number for _, number in described.products}
    of_keys |= {term for each in described.sums if each.kind == "query" for term in each.terms}
    missing = -sizes.keys % STEP
    padded = {number: torch.nn.functional.pad(operands[number], (0, 0, 0, missing)) if missing else operands[number] for number in of_keys}
    kept = [operands[number] for number in described.kept]
    keys = described.keys
    for chunk in chunks(sizes, None if keys is None else lambda begin, end: range_of(keys, operands, sizes, begin, end)):
        of_queries = functools.cache(functools.partial(_queries_of, operands, chunk, group))
        shape = torch.Size([chunk.batches, chunk.heads * group * chunk.rows, chunk.columns])
        products = [_product(of_queries(q), _keys_of(padded[k], chunk).mT).view(shape) for q, k in described.products]
        own = ResultShapes(
            (*[shape] * described.weights, *(made.shapes[number] for number in described.scatters)), tuple(dtypes), (False,) * len(dtypes)
        )
        found = launch([*kept, *products, chunk.rows, chunk.i, chunk.j, chunk.h * group, chunk.b, *sizes], own)
        del products  # its memory is free for the sums, and for the next chunk
        for number, tensor in zip(described.scatters, found[described.weights :], strict=True):
            results[number] += tensor
        weights = [weight.view(-1, group * chunk.rows, chunk.columns) for weight in found[: described.weights]]
        del found
        for each in described.sums:
            for term, weight in zip(each.terms, each.weights, strict=True):
                if each.kind == "query":
                    _add_queries(results[each.result], chunk, group, _product(weights[weight], _keys_of(padded[term], chunk)))
                else:
                    _add_keys(results[each.result], chunk, _key_sum(weights[weight], of_queries(term), processors))
        del weights
    return results


def _queries_of(operands: Sequence[Any], chunk: PairChunk, group: int, number: int) -> torch.Tensor:
    """The rows of an operand of queries that a chunk has, as [key heads of all batch entries, queries of a group, D]."""
    seen = _rows(operands[number], chunk, group)
    return seen.reshape(-1, group * chunk.rows, seen.shape[-1])


def _add_queries(tensor: torch.Tensor, chunk: PairChunk, group: int, rows: torch.Tensor) -> None:
    """Adds rows to those of a tensor of queries that a chunk has."""
    seen = _rows(tensor, chunk, group)
    seen += rows.view(seen.shape)


def _rows(tensor: torch.Tensor, chunk: PairChunk, group: int) -> torch.Tensor:
    heads = slice(chunk.h * group, (chunk.h + chunk.heads) * group)
    return tensor[chunk.b : chunk.b + chunk.batches, heads, chunk.i : chunk.i + chunk.rows]


def _keys_of(tensor: torch.Tensor, chunk: PairChunk) -> torch.Tensor:
    """The rows of a tensor of keys that a chunk has, as [key heads of all batch entries, keys, D]."""
    seen = tensor[chunk.b : chunk.b + chunk.batches, chunk.h : chunk.h + chunk.heads, chunk.j : chunk.j + chunk.columns]
    return seen.flatten(0, 1)


def _add_keys(tensor: torch.Tensor, chunk: PairChunk, rows: torch.Tensor) -> None:
    """Adds rows to those of a tensor of keys that a chunk has; those past the last key are left out."""
    seen = tensor[chunk.b : chunk.b + chunk.batches, chunk.h : chunk.h + chunk.heads, chunk.j : chunk.j + chunk.columns]
    seen += rows.view(chunk.batches, chunk.heads, chunk.columns, -1)[:, :, : seen.shape[2]]


def range_of(keys: KeyRange, operands: Sequence[Any] | Mapping[int, Any], sizes: PairSizes, begin: int, end: int) -> tuple[int, int]:
    """Where the keys begin and end that the queries [begin, end) see."""
    numbers, values = (begin, end, *sizes), list[int]()
    for step in keys.steps:
        match step.op, step.args:
            case "const", (value,):
                values.append(value)
            case "number", (number,):
                values.append(numbers[number])
            case "operand", (number,):
                values.append(int(operands[number]))
            case "dim", (number, axis):
                values.append(operands[number].shape[axis])
            case "sum", (constant, *terms):
                values.append(constant + sum(factor * values[n] for factor, n in zip(terms[::2], terms[1::2], strict=True)))
            case op, args:
                values.append(_RULES[op](*(values[number] for number in args)))
    return values[keys.begin], values[keys.end]


_RULES: dict[str, Any] = {
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0,  # what is divided by 0 is not selected
    "mod": lambda a, b: a % b if b else 0,
    "min": lambda *each: min(each),
    "max": lambda *each: max(each),
    "abs": abs,
    "select": lambda condition, a, b: a if condition else b,
    "ge0": lambda a: int(a >= 0),
    "eq0": lambda a: int(a == 0),
    "and": lambda *each: int(all(each)),
    "or": lambda *each: int(any(each)),
    "not": lambda a: int(not a),
}


def _key_sum(weights: torch.Tensor, rows: torch.Tensor, processors: int) -> torch.Tensor:
    """The sums over queries of weights [n, queries, keys] times rows [n, queries, D], as [n, keys, D].

    Where these are few blocks for so many multiprocessors, parts of the queries are summed beside each other, and then these sums.
    """
    (count, queries, keys), columns = weights.shape, rows.shape[-1]
    blocks, parts = count * -(-keys // BLOCK[0]) * -(-columns // BLOCK[1]), 1
    while blocks * parts < processors and queries % (2 * parts) == 0 and queries // (2 * parts) >= LEAST_QUERIES:
        parts *= 2
    if parts == 1:
        return _product(weights.mT, rows)
    made = _product(weights.reshape(count * parts, -1, keys).mT, rows.reshape(count * parts, -1, columns))
    return made.view(count, parts, keys, columns).sum(1)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a b in f32, of matrices [n, r, c] and [n, c, d] of 16 bits.

    torch before 2.8, and on the CPU, has no such product: factors are converted first, which gives the same but for the order of sums.
    """
    if a.is_cuda and _HAS_WIDE_RESULTS:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


_HAS_WIDE_RESULTS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)
