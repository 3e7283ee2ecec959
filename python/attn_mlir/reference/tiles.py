"""Kernels in the `tile` dialect: every program of the grid, one after the other."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import block_of
from attn_mlir.reference.errors import EvaluationError, OutOfBoundsError
from attn_mlir.reference.interpreter import REDUCE, SHARED_RULES, BlockPlan, EvaluationFrame, FrameRule, identity_of
from attn_mlir.reference.scalar import Array

_MOST = 1 << 28
"""Elements of a tile, of which there are several in memory."""
_SHORT = 4096
"""Sides of tiles whose positions are kept."""


def run_kernel(func: ir.Operation, arguments: Sequence[Array], rounding: bool = False) -> list[Array]:
    """Runs `func` for every program id on `arguments`, and returns its outputs: those that it stores to."""
    block = func.regions[0].blocks[0]
    sizes = ir.DictAttr(func.attributes["tile.kernel"])
    over = _over(func, arguments)
    blocks, batch = _blocks(over.shape[2], sizes), over.shape[0]
    if "grid" in sizes and sizes["grid"].value == "chunks":
        blocks = sizes["blocks"].value
        batch = arguments[sizes["sequences"].value].shape[0] - 1 if "sequences" in sizes else batch
        batch *= -(-over.shape[2] // sizes["segment"].value) if "segment" in sizes else 1
    if "lengths" in sizes:
        items = _items(arguments[next(iter(ir.DenseI64ArrayAttr(sizes["lengths"])))], sizes["block_q"].value)
        arguments, blocks, batch = [*arguments, items], len(items), 1
    plans: dict[ir.Block, BlockPlan] = {}
    facts: dict[ir.Operation, Any] = {}
    for b, h, program in np.ndindex(batch, over.shape[1], blocks):
        ids = tuple(np.asarray(i) for i in (program, h, b))
        rules = {**RULES, "tile.program_id": _program_id(ids)}
        EvaluationFrame({}, rules, rounding=rounding, plans=plans, facts=facts).run(block, arguments)
    return [x for x, name in zip(arguments, block.arguments, strict=True) if _is_stored(name)]


def _blocks(length: int, sizes: ir.DictAttr) -> int:
    """How many blocks so many rows make, none of which has rows of two lists of keys."""
    block = sizes["block_q"].value
    each = sizes["list"].value if "list" in sizes else length
    return sum(-(-min(each, length - first) // block) for first in range(0, length, max(1, each)))


def _over(func: ir.Operation, arguments: Sequence[Array]) -> Array:
    """The argument over whose rows the grid runs. Raises EvaluationError where that is none, or blocks have no size."""
    sizes = ir.DictAttr(func.attributes["tile.kernel"])
    number = sizes["over"].value if "over" in sizes else 0
    needed = ("block_q", "blocks") if "grid" in sizes and sizes["grid"].value == "chunks" else ("block_q",)
    missing = next((name for name in needed if name not in sizes), None)
    if missing is not None:
        raise EvaluationError(f"`tile.kernel` of this function lacks `{missing}`", func.location)
    if number >= len(arguments) or arguments[number].ndim < 3:
        raise EvaluationError(f"the grid of this kernel runs over argument {number}, which is no tensor [B, H, S, ...]", func.location)
    return arguments[number]


def inputs_of(func: ir.Operation) -> int:
    """How many arguments come before the outputs."""
    return sum(not _is_stored(argument) for argument in func.regions[0].blocks[0].arguments) - lists_of(func)


def lists_of(func: ir.Operation) -> int:
    """How many lists of work a kernel takes after its outputs; see `passes.tiling.work`."""
    sizes = ir.DictAttr(func.attributes["tile.kernel"]) if "tile.kernel" in func.attributes else {}
    return int("lengths" in sizes) + int("lengths" in sizes and "grid" in sizes and sizes["grid"].value == "pairs")


def _items(lengths: Array, block: int) -> Array:
    """The list of work of a kernel over rows: the blocks of all sequences, in order."""
    items = [(n, begin, min(begin + block, int(size)), 0) for n, size in enumerate(lengths) for begin in range(0, int(size), block)]
    return np.array(items, np.int64).reshape(-1, 4)


def _is_stored(argument: ir.Value) -> bool:
    users = [(use.owner.operation, use.operand_number) for use in argument.uses]
    if any(user.name == "memref.subview" and _is_stored(user.results[0]) for user, _ in users):
        return True
    return any(user.name == "tile.store" and number == 1 for user, number in users)


def _program_id(ids: tuple[Array, ...]) -> FrameRule:
    return lambda frame, op, args: [ids[op.attributes["axis"].value]]


def _rows(op: ir.Operation, array: Array, place: Sequence[Array]) -> tuple[int, int, slice]:
    b, h, row, count = place
    sizes = array.shape[:3]
    inside = 0 <= b < sizes[0] and 0 <= h < sizes[1] and 0 <= row and 0 <= count and row + count <= sizes[2]
    if not inside:
        where = f"batch {b}, head {h}, rows [{row}, {row + count})"
        raise OutOfBoundsError(f"'{op.name}' accesses {where} of a memref of shape {list(array.shape)}", op.location)
    return int(b), int(h), slice(int(row), int(row + count))


def _load(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    source, *place = args
    return [_padded(op, source[_rows(op, source, place)])]


def _load_pages(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    source, table, b, h, row, count = args
    size, positions = source.shape[2], np.arange(int(row), int(row + count))
    if not (0 <= b < table.shape[0] and 0 <= h < source.shape[1] and row >= 0 and size and table.shape[1]):
        raise OutOfBoundsError(f"'{op.name}' reads sequence {b}, head {h}, from row {row} on of {list(source.shape)}", op.location)
    pages = table[int(b), np.minimum(positions // size, table.shape[1] - 1)].astype(np.int64)
    return [_padded(op, source[np.clip(pages, 0, len(source) - 1), int(h), positions % size])]


def _padded(op: ir.Operation, tile: Array) -> Array:
    """A tile of loaded rows; one of a static size repeats the last row."""
    type_ = ir.RankedTensorType(op.results[0].type)
    if type_.is_dynamic_dim(0):
        return tile.copy()
    missing = type_.shape[0] - len(tile)
    if missing < 0 or len(tile) == 0:
        raise OutOfBoundsError(f"'{op.name}' reads {len(tile)} rows into a tile of {type_.shape[0]}", op.location)
    return np.concatenate([tile, np.repeat(tile[-1:], missing, axis=0)])


def _gather(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    source, b, h, rows, count, first = args
    if first < 0 or count < 0 or first + count > len(rows):
        raise OutOfBoundsError(f"'tile.gather' reads numbers [{first}, {first + count}) of {len(rows)}", op.location)
    named = rows[int(first) : int(first + count)]
    if len(named) and (named.min() < 0 or named.max() >= source.shape[2]):
        raise OutOfBoundsError(f"'tile.gather' reads rows {named.min()} to {named.max()} of {source.shape[2]}", op.location)
    return [source[int(b), int(h), named.astype(np.int64)]]


def _load_window(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    source, rows, columns, *offsets = args
    most, count = ir.RankedTensorType(op.results[0].type).shape[0], int(columns)
    if not 0 < rows <= most or not 0 <= count <= _MOST // most:
        raise EvaluationError(f"'{op.name}' reads {rows} rows and {count} columns into a tile of {most} rows", op.location)
    i, j = np.minimum(np.arange(most), int(rows) - 1)[:, None], np.arange(count)
    steps = zip(ir.DenseI64ArrayAttr(op.attributes["row_steps"]), ir.DenseI64ArrayAttr(op.attributes["column_steps"]), strict=True)
    places = [int(offset) + i * row + j * column for offset, (row, column) in zip(offsets, steps, strict=True)]
    for place, size in zip(places, source.shape, strict=True):
        if place.size and (place.min() < 0 or place.max() >= size):
            where = f"{place.min()} to {place.max()} of a dimension of {size}"
            raise OutOfBoundsError(f"'{op.name}' reads elements {where}", op.location)
    return [np.broadcast_to(source[tuple(places)], (most, count))]


def _band(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    rows, columns = (int(extent) for extent in args)
    if rows < 0 or columns < 0 or max(rows, 1) * columns > _MOST:
        raise EvaluationError(f"'{op.name}' makes a tile of {rows} rows and {columns} columns", op.location)
    apart = np.arange(rows)[:, None] - np.arange(columns)
    (made,) = frame.run(block_of(op), [np.maximum(apart, 0), np.maximum(-apart, 0)])
    return [np.broadcast_to(made, apart.shape)]


def _store(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    tile, target, *place = args
    count = int(place[-1])
    if count > len(tile):
        raise OutOfBoundsError(f"'tile.store' writes {count} rows of a tile of {len(tile)}", op.location)
    target[_rows(op, target, place)] = tile[:count]
    return []


def _scatter_add(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    target, *extents = args
    shape = tuple(int(extent) for extent in extents)
    value, present, *places = (np.broadcast_to(x, shape) for x in frame.run(block_of(op), _positions.__wrapped__(shape)))
    places = [place[present].astype(np.int64) for place in places]
    for place, size in zip(places, target.shape, strict=True):
        if place.size and (place.min() < 0 or place.max() >= size):
            raise OutOfBoundsError(f"'{op.name}' adds to elements {place.min()} to {place.max()} of a dimension of {size}", op.location)
    np.add.at(target, tuple(places), value[present])
    return []


def _fill(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    return [np.full(ir.RankedTensorType(op.results[0].type).shape, args[0])]


def _product(op: ir.Operation, a: Array, b: Array) -> Array:
    right = b.T if op.attributes["transpose_b"].value else b
    a = a.T if "transpose_a" in op.attributes and op.attributes["transpose_a"].value else a
    if a.shape[1] != right.shape[0]:
        raise EvaluationError(f"'{op.name}' multiplies tiles of shapes {list(a.shape)} and {list(right.shape)}", op.location)
    return a @ right


def _dot(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    return [_product(op, *args)]


def _dot_add(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    c, a, b = args
    return [c + _product(op, a, b)]


def _dot_rescale(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    c, scale, a, b = args
    return [c * scale[:, None] + _product(op, a, b)]


def _cumsum(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    step = -1 if op.attributes["reverse"].value else 1
    return [np.cumsum(args[0][::step], axis=0)[::step]]


def _solve_unit(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    a, b = args
    part = np.triu(a, 1) if op.attributes["upper"].value else np.tril(a, -1)
    return [np.linalg.solve(np.eye(len(a)) + part, b)]


def _sums_of_decays(op: ir.Operation, decays: Array) -> tuple[Array, Array, Array]:
    """The log decays of a chunk from each position to each other one, [C, C, D], from the state before it to each, and to the one after."""
    reverse, size = op.attributes["reverse"].value, len(decays)
    # Sums from a step to another are added up one by one: differences of -inf would be NaN.
    between = np.full((size, *decays.shape), -np.inf, decays.dtype)
    for t in range(size):
        for s in range(size):
            first, last = (t, s) if reverse else (s, t)
            if first <= last:
                between[t, s] = decays[first + 1 : last + 1].sum(axis=0)
    output_decay = np.stack([decays[t + 1 :].sum(axis=0) if reverse else decays[: t + 1].sum(axis=0) for t in range(size)])
    input_decay = np.stack([decays[: s + 1].sum(axis=0) if reverse else decays[s + 1 :].sum(axis=0) for s in range(size)])
    return between, output_decay, input_decay


def _decay_channels(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    q, k, decays, count = args
    present = np.arange(len(k)) < count
    between, output_decay, input_decay = _sums_of_decays(op, decays)
    entering = np.where(present[:, None], k * np.exp(input_decay), 0)
    pairs = np.where(present, np.einsum("td,sd,tsd->ts", q, k, np.exp(between)), 0)
    return [q * np.exp(output_decay), entering, pairs, np.exp(decays.sum(axis=0))]


def _decay_values(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    scores, outside, v, decays, count = args
    v = np.where((np.arange(len(v)) < count)[:, None], v, 0).astype(decays.dtype)
    between, output_decay, input_decay = _sums_of_decays(op, decays)
    own = np.diag(scores)
    others = outside * np.exp(output_decay) + np.einsum("ts,sd,tsd->td", scores - np.diag(own), v, np.exp(between))
    return [others, others + own[:, None] * v, v * np.exp(input_decay), np.exp(decays.sum(axis=0))]


def _subview(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    source, *dynamic = args
    offsets, sizes, strides = (
        _mixed(op.attributes[f"static_{name}"], dynamic, ir.ShapedType.get_dynamic_size()) for name in ("offsets", "sizes", "strides")
    )
    part = source[tuple(slice(o, o + (n - 1) * s + 1, s) if n else slice(0, 0) for o, n, s in zip(offsets, sizes, strides, strict=True))]
    if list(part.shape) != sizes:
        raise OutOfBoundsError(f"'memref.subview' takes {sizes} at {offsets} of a memref of shape {list(source.shape)}", op.location)
    dropped = source.ndim - ir.MemRefType(op.results[0].type).rank
    return [part[(0,) * dropped]]


def _mixed(static: ir.Attribute, dynamic: list[Array], marker: int) -> list[int]:
    """Static numbers, and the next of `dynamic` for each marker."""
    return [int(dynamic.pop(0)) if number == marker else number for number in ir.DenseI64ArrayAttr(static)]


@dataclasses.dataclass(frozen=True)
class MapFacts:
    """What a `tile.map` says of itself, asked once for all of its runs."""

    block: ir.Block
    reductions: list[tuple[str, float]]
    """Kinds, and what each starts from."""
    types: list[ir.RankedTensorType]
    sizes: list[list[tuple[int, int]]]
    """Of each result, the dimensions that its type fixes, and their sizes."""

    @classmethod
    def of(cls, op: ir.Operation) -> "MapFacts":
        """Asks the op."""
        kinds = [kind.value for kind in op.attributes["reductions"]]
        types = [ir.RankedTensorType(result.type) for result in op.results]
        rows = types[len(types) - len(kinds) :]
        sizes = [[(i, t.shape[i]) for i in range(t.rank) if not t.is_dynamic_dim(i)] for t in types]
        return cls(block_of(op), [(kind, identity_of(kind, t.element_type)) for kind, t in zip(kinds, rows, strict=True)], types, sizes)


def _map(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    facts: MapFacts | None = frame.facts.get(op)
    if facts is None:
        facts = frame.facts[op] = MapFacts.of(op)
    shape = tuple(int(extent) for extent in args)
    if math.prod(max(n, 0) for n in shape) > _MOST:
        raise EvaluationError(f"'tile.map' makes a tile of {list(shape)}, which does not fit into memory", op.location)
    indices = _positions(shape) if max(shape, default=0) <= _SHORT else _positions.__wrapped__(shape)
    results = [x if np.shape(x) == shape else np.broadcast_to(x, shape) for x in frame.run(facts.block, indices)]
    tiles = len(results) - len(facts.reductions)
    for number, (kind, identity) in enumerate(facts.reductions, tiles):
        whole = np.ascontiguousarray(results[number], np.float64)
        results[number] = REDUCE[kind](whole, axis=-1, keepdims=True, initial=identity)[:, 0]
    for value, type_, sizes in zip(results, facts.types, facts.sizes, strict=True):
        if any(value.shape[i] != n for i, n in sizes):
            raise EvaluationError(f"'tile.map' makes a tile of shape {list(value.shape)} as {type_}", op.location)
    return results


@functools.lru_cache(maxsize=256)
def _positions(shape: tuple[int, ...]) -> list[Array]:
    """The numbers of rows, columns, ... of a tile, which nothing changes in place."""
    found = [np.arange(n).reshape([-1 if i == axis else 1 for i in range(len(shape))]) for axis, n in enumerate(shape)]
    for each in found:
        each.flags.writeable = False
    return found


def _for(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    begin, end, step, *carried = args
    if step <= 0:
        raise EvaluationError(f"'scf.for' steps by {step}", op.location)
    for i in range(int(begin), int(end), int(step)):
        carried = frame.run(block_of(op), [np.asarray(i), *carried])
    return carried


def _if(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    if args[0].ndim:
        raise EvaluationError("'scf.if' inside of 'tile.map' is not supported; use arith.select", op.location)
    region = op.regions[0 if args[0] else 1]
    return frame.run(region.blocks[0], []) if len(region.blocks) else []


RULES: dict[str, FrameRule] = {
    **SHARED_RULES,
    "memref.subview": _subview,
    "scf.for": _for,
    "scf.if": _if,
    "tile.band": _band,
    "tile.cumsum": _cumsum,
    "tile.solve_unit": _solve_unit,
    "tile.decay_channels": _decay_channels,
    "tile.decay_values": _decay_values,
    "tile.dot": _dot,
    "tile.dot_add": _dot_add,
    "tile.dot_rescale": _dot_rescale,
    "tile.fill": _fill,
    "tile.gather": _gather,
    "tile.load": _load,
    "tile.load_pages": _load_pages,
    "tile.load_window": _load_window,
    "tile.map": _map,
    "tile.scatter_add": _scatter_add,
    "tile.store": _store,
}
