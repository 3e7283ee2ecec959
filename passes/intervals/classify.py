"""Evaluates bounds and `attn.block_mask` with numpy, over all blocks at once: for tests and inspection."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import block_of, find_all, piece

SKIP, PARTIAL, FULL = 0, 1, 2
_MANY = 256
"""Boxes of a vector from which on tables of its extrema are worth making."""
Array = Any


class Classes(NamedTuple):
    """`bounds` is [B, H, q blocks, 4]; `grid` is [B, H, q blocks, kv blocks] of SKIP, PARTIAL or FULL; `steps` counts evaluated ops.

    For an `attn.pairs`, bounds are of rows, for every block of keys: [B, H, kv blocks, 4], and `grid` has kv blocks before q blocks.
    """

    bounds: Array
    grid: Array
    steps: int


def classify(
    module: ir.Operation, captures: Sequence[Any], sq: int, skv: int, block_q: int, block_kv: int, *, batch: int = 1, heads: int = 1,
    rows: tuple[int, int] | None = None,
) -> Classes:  # fmt: skip
    """What the first attention or pairs in `module`, after `attn-resolve-masks`, does with every block of positions.

    `rows` are the first row of blocks and one past the last, where not all are wanted: of queries, for pairs of keys.
    """
    blocks = Blocks(module, captures, (sq, skv), (block_q, block_kv), batch, heads, rows=rows)
    bounds = blocks.bounds()
    size, block = (sq, block_q) if blocks.by_keys else (skv, block_kv)
    first = np.arange(0, size, block)
    last = np.minimum(first + block, size)
    begin, full_begin, full_end, end = (bounds[..., i, None] for i in range(4))
    inside = (first < end) & (last > begin) & (begin < end)
    full = (first >= full_begin) & (last <= full_end)
    grid = np.where(full, FULL, np.where(inside, PARTIAL, SKIP))
    found = piece(blocks.owner, "attn.block_mask")
    if found is not None:
        b, h, *bounded = (axis[..., None] for axis in blocks.axes)
        sides = [first, last, *bounded] if blocks.by_keys else [*bounded, first, last]
        some, every = (np.broadcast_to(x, grid.shape) for x in blocks.run(found, [b, h, *sides]))
        grid = np.where(grid == PARTIAL, np.where(~some, SKIP, np.where(every, FULL, PARTIAL)), grid)
    return Classes(bounds, grid, blocks.steps)


class Blocks:
    """All blocks of rows of an attention, or of keys of an `attn.pairs`, as numpy axes [B, H, blocks].

    `at`: one batch entry and one head, in place of all of them; `rows`: see `classify`.
    """

    def __init__(
        self,
        module: ir.Operation,
        captures: Sequence[Any],
        lengths: tuple[int, int],
        blocks: tuple[int, int],
        batch: int,
        heads: int,
        *,
        at: tuple[int, int] | None = None,
        rows: tuple[int, int] | None = None,
    ) -> None:
        self.owner = find_all(module, "attn.attention", "attn.online", "attn.pairs")[0]
        self.by_keys = self.owner.name == "attn.pairs"
        self.steps = 0
        size, block = lengths[self.by_keys], blocks[self.by_keys]
        begin = np.arange(0, size, block)[slice(*(rows or (None,)))][None, None, :]
        every = (np.arange(batch), np.arange(heads)) if at is None else (np.array([at[0]]), np.array([at[1]]))
        self.axes = [every[0][:, None, None], every[1][None, :, None], begin, np.minimum(begin + block, size)]
        self._values: dict[ir.Value, Any] = {}
        product = piece(self.owner, "attn.product") if self.by_keys else None
        query, key, *values = list((product or self.owner).operands)
        self._lengths = lengths
        self._sizes = {query: (batch, heads, lengths[0]), **dict.fromkeys((key, *values), (batch, heads, lengths[1]))}
        arguments = list(self.owner.block.arguments)[3:]
        for argument, capture in zip(arguments, captures, strict=True):
            self._values[argument] = np.asarray(capture)

    def bounds(self) -> Array:
        found = piece(self.owner, "attn.query_bounds" if self.by_keys else "attn.bounds")
        batch, heads, blocks = (self.axes[i].size for i in range(3))
        if found is None:
            size = self._lengths[not self.by_keys]
            return np.broadcast_to(np.array([0, 0, size, size]), (batch, heads, blocks, 4))
        values = self.run(found, self.axes)
        return np.stack([np.broadcast_to(v, (batch, heads, blocks)) for v in values], axis=-1)

    def run(self, piece_: ir.Operation, arguments: Sequence[Any]) -> list[Any]:
        block = block_of(piece_)
        self._values.update(zip(block.arguments, arguments, strict=True))
        *body, last = (op.operation for op in block.operations)
        for op in body:
            self._evaluate(op)
        return [self._value(v) for v in last.operands]

    def _value(self, value: ir.Value) -> Any:
        if value not in self._values:
            self._evaluate(value.owner.operation)
        return self._values[value]

    def _evaluate(self, op: ir.Operation) -> None:
        self.steps += 1
        if op.name == "arith.constant":
            self._values[op.results[0]] = np.asarray(ir.IntegerAttr(op.attributes["value"]).value)
            return
        if op.name == "tensor.dim" and op.operands[0] in self._sizes:
            self._values[op.results[0]] = np.asarray(self._sizes[op.operands[0]][int(self._value(op.operands[1]))])
            return
        results = _EVALUATE[op.name](op, *map(self._value, op.operands))
        for result, value in zip(op.results, results if isinstance(results, tuple) else (results,), strict=True):
            self._values[result] = value


_COMPARE = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)


def _compare(op: ir.Operation, a: Array, b: Array) -> Array:
    return _COMPARE[ir.IntegerAttr(op.attributes["predicate"]).value](a, b)


def _logic(of_bools: Callable[..., Array]) -> Callable[..., Array]:
    return lambda op, a, b: of_bools(np.asarray(a) != 0, np.asarray(b) != 0)


def _range(op: ir.Operation, source: Array, *box: Array) -> tuple[Array, Array]:
    """Least and greatest element per box, each distinct box once; of a vector, all at once."""
    box = tuple(np.broadcast_arrays(*box))
    if len(box) == 2 and box[0].size > _MANY:
        return _range_of_vector(source, *box)
    distinct, inverse = np.unique(np.stack([b.ravel() for b in box]), axis=1, return_inverse=True)
    rank = len(box) // 2
    if (
        (distinct[:rank] < 0).any()
        or (distinct[:rank] >= distinct[rank:]).any()
        or (distinct[rank:] > np.array(source.shape)[:, None]).any()
    ):
        raise IndexError("attn.range reads outside of its tensor, or an empty box")
    parts = [source[tuple(slice(*ends) for ends in zip(ends[:rank], ends[rank:], strict=True))] for ends in distinct.T]
    low, high = (np.array([f(part) for part in parts], dtype=np.int64) for f in (np.min, np.max))
    return low[inverse].reshape(box[0].shape), high[inverse].reshape(box[0].shape)


def _range_of_vector(source: Array, begin: Array, end: Array) -> tuple[Array, Array]:
    """The same by tables of the extrema of 2^k neighbours, of which two cover any box."""
    if (begin < 0).any() or (begin >= end).any() or (end > source.size).any():
        raise IndexError("attn.range reads outside of its tensor, or an empty box")
    power = np.frexp(end - begin)[1] - 1
    low, high = np.empty(begin.shape, np.int64), np.empty(begin.shape, np.int64)
    least = greatest = source.astype(np.int64)
    for k in range(int(power.max()) + 1):
        if k:
            half = 1 << (k - 1)
            least, greatest = np.minimum(least[:-half], least[half:]), np.maximum(greatest[:-half], greatest[half:])
        here = power == k
        if here.any():
            first, last = begin[here], end[here] - (1 << k)
            low[here], high[here] = np.minimum(least[first], least[last]), np.maximum(greatest[first], greatest[last])
    return low, high


_EVALUATE: dict[str, Callable[..., Any]] = {
    "arith.addi": lambda op, a, b: a + b,
    "arith.subi": lambda op, a, b: a - b,
    "arith.muli": lambda op, a, b: a * b,
    "arith.floordivsi": lambda op, a, b: a // b,
    "arith.minsi": lambda op, a, b: np.minimum(a, b),
    "arith.maxsi": lambda op, a, b: np.maximum(a, b),
    "arith.select": lambda op, c, a, b: np.where(c, a, b),
    "arith.cmpi": _compare,
    "arith.andi": _logic(np.logical_and),
    "arith.ori": _logic(np.logical_or),
    "arith.xori": _logic(np.logical_xor),
    "arith.index_cast": lambda op, a: a,
    "arith.extui": lambda op, a: np.asarray(a).astype(np.int64),
    "tensor.dim": lambda op, source, dimension: np.asarray(source.shape[int(dimension)]),
    "tensor.extract": lambda op, source, *indices: source[indices],
    "attn.range": _range,
}
