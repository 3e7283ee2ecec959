"""Evaluates `attn.bounds` and `attn.block_mask` with numpy, over all blocks at once: for tests and inspection."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import block_of, find_all, piece

SKIP, PARTIAL, FULL = 0, 1, 2
Array = Any


class Classes(NamedTuple):
    """`bounds` is [B, H, q blocks, 4]; `grid` is [B, H, q blocks, kv blocks] of SKIP, PARTIAL or FULL; `steps` counts evaluated ops."""

    bounds: Array
    grid: Array
    steps: int


def classify(
    module: ir.Operation, captures: Sequence[Any], sq: int, skv: int, block_q: int, block_kv: int, batch: int = 1, heads: int = 1
) -> Classes:
    """What the first attention in `module`, after `attn-resolve-masks`, does with every block of positions."""
    blocks = _Blocks(module, captures, sq, skv, block_q, batch, heads)
    bounds = blocks.bounds()
    kv_begin = np.arange(0, skv, block_kv)
    kv_end = np.minimum(kv_begin + block_kv, skv)
    begin, full_begin, full_end, end = (bounds[..., i, None] for i in range(4))
    inside = (kv_begin < end) & (kv_end > begin)
    full = (kv_begin >= full_begin) & (kv_end <= full_end)
    grid = np.where(full, FULL, np.where(inside, PARTIAL, SKIP))
    found = piece(blocks.attention, "attn.block_mask")
    if found is not None:
        keys = (axis[..., None] for axis in blocks.axes)
        some, every = (np.broadcast_to(x, grid.shape) for x in blocks.run(found, [*keys, kv_begin, kv_end]))
        grid = np.where(grid == PARTIAL, np.where(~some, SKIP, np.where(every, FULL, PARTIAL)), grid)
    return Classes(bounds, grid, blocks.steps)


def block_bounds(
    module: ir.Operation, captures: Sequence[Any], sq: int, skv: int, block_q: int, batch: int = 1, heads: int = 1
) -> tuple[Array, int]:
    """The bounds of every block of rows, [B, H, q blocks, 4], and how many ops were evaluated for all of them."""
    blocks = _Blocks(module, captures, sq, skv, block_q, batch, heads)
    return blocks.bounds(), blocks.steps


class _Blocks:
    """All blocks of one attention, as numpy axes [B, H, q blocks]."""

    def __init__(self, module: ir.Operation, captures: Sequence[Any], sq: int, skv: int, block_q: int, batch: int, heads: int) -> None:
        self.attention = find_all(module, "attn.attention", "attn.online")[0]
        self.steps = 0
        q_begin = np.arange(0, sq, block_q)[None, None, :]
        self.axes = [np.arange(batch)[:, None, None], np.arange(heads)[None, :, None], q_begin, np.minimum(q_begin + block_q, sq)]
        self._values: dict[ir.Value, Any] = {}
        shapes = {self.attention.operands[0]: (batch, heads, sq), self.attention.operands[1]: (batch, heads, skv)}
        self._sizes = {**shapes, self.attention.operands[2]: (batch, heads, skv)}
        arguments = list(self.attention.block.arguments)[3:]
        for argument, capture in zip(arguments, captures, strict=True):
            self._values[argument] = np.asarray(capture)

    def bounds(self) -> Array:
        found = piece(self.attention, "attn.bounds")
        batch, heads, rows = (self.axes[i].size for i in range(3))
        if found is None:
            skv = self._sizes[self.attention.operands[1]][2]
            return np.broadcast_to(np.array([0, 0, skv, skv]), (batch, heads, rows, 4))
        values = self.run(found, self.axes)
        return np.stack([np.broadcast_to(v, (batch, heads, rows)) for v in values], axis=-1)

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
    """Least and greatest element per box, each distinct box once."""
    box = tuple(np.broadcast_arrays(*box))
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
