"""Maps over rows of keys that read a row in another order, as partners of channels are: vectors of columns with code of their own."""

import numpy as np

from attn_mlir.backends.cpu.lowering import emit, known
from attn_mlir.backends.cpu.lowering.context import Lowering, MemRef, RowTile, Rule
from attn_mlir.backends.cpu.lowering.gather import read_memory
from attn_mlir.mlir import ir

MOST = 16
"""Vectors of columns that are written out at most."""


def width_of(context: Lowering, columns: int, operations: list[ir.Operation], j: ir.Value) -> int:
    """The columns of a vector where a map is written out in vectors; 0 where it is not, since it reads rows in their order."""
    width = context.target.vector_bytes // context.score_bytes
    elsewhere = any(op.name == "tensor.extract" and op.operands[-1] != j for op in operations)
    return width if elsewhere and 1 <= columns // width <= MOST else 0


def lower_vectors(context: Lowering, op: ir.Operation, tile: RowTile, row: ir.Value, whole: int, width: int, scalar: Rule) -> None:
    """The first `whole` columns of a row; `scalar` lowers an op that reads no memory."""
    *operations, last = (view.operation for view in op.regions[0].blocks[0].operations)
    j = op.regions[0].blocks[0].arguments[1]
    lanes, context.lanes = context.lanes, width
    for column in range(0, whole, width):
        numbers = known.Indices({j: np.arange(column, column + width)})
        context.values[j] = emit.add(emit.splat(emit.index(column), width), emit.lane_numbers(width))
        for inner in operations:
            with inner.location:
                _lower(context, inner, numbers, scalar)
        value = emit.cast_float(emit.splat(context.scalar(last.operands[0]), width), context.score)
        offset = emit.add(emit.mul(emit.to_i64(row), tile.stride), emit.integer(column))
        emit.store(value, emit.element_pointer(tile.address, offset, context.score))
    context.lanes = lanes


def _lower(context: Lowering, op: ir.Operation, numbers: known.Indices, scalar: Rule) -> None:
    last = numbers.of(op.operands[-1]) if op.name in ("tensor.extract", "memref.load") else None
    if last is None or last.ndim == 0:
        numbers.note(op)
        scalar(context, op)
        return
    source, indices = context.get(op.operands[0]), [context.scalar(value) for value in list(op.operands)[1:]]
    if isinstance(source, MemRef):
        found = known.read(context, source, indices, last)
        context.values[op.results[0]] = read_memory(context, source, indices) if found is None else found
    elif isinstance(source, RowTile):
        start = emit.add(emit.mul(emit.to_i64(indices[0]), source.stride), emit.integer(int(last.min())))
        first = emit.element_pointer(source.address, start, context.score)
        value = known.ordered(first, context.score, last - last.min())
        context.values[op.results[0]] = emit.cast_float(value, ir.RankedTensorType(op.operands[0].type).element_type)
    else:
        scalar(context, op)
