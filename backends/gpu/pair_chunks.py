"""Chunks of queries and keys whose pairs go through memory together, and which keys queries see."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from attn_mlir.backends.gpu.pair_products import STEP, KeyRange
from attn_mlir.backends.gpu.scalar_bounds import HEADS
from attn_mlir.errors import UnsupportedError

MOST_PAIRS = 1 << 25
"""Pairs of a chunk, at most."""
LEAST = 4
"""A chunk of few keys has that part of the most pairs at least: a launch for fewer takes the host longer than the GPU."""
BYTES = 12
"""Memory of a pair with two products in f32 and two weights in 16 bits: where pairs take more, a chunk has fewer."""
PARTS, FEWEST = 8, 256
"""Chunks of queries where these see few keys, and how many queries each has at least."""


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
        worth = most // LEAST // (sizes.batches * sizes.heads * sizes.keys)
        rows = min(rows, max(FEWEST, worth, -(-sizes.queries // PARTS)))
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


def range_of(
    keys: KeyRange, operands: Sequence[Any] | Mapping[int, Any], sizes: PairSizes, begin: int, end: int, sequence: int = 0
) -> tuple[int, int]:
    """Where the keys begin and end that the queries [begin, end) see, of packed tensors in a sequence: the host has their lengths."""
    numbers, values = (begin, end, *sizes, sequence), list[int]()
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
            case "element", (number, place):
                values.append(int(operands[number][values[place]]))
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
