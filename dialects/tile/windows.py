"""Tiles of captured tensors: windows along the rows and columns of a tile, and values along its diagonals; and what is added to them."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialects.tile.dialect import Tile
from attn_mlir.dialects.variadic import single_variadic
from attn_mlir.dialects.verify import check, entry_block, is_score_type, terminator
from attn_mlir.mlir import ext, ir


def _steps_fit(op: Any, memory: ir.Type) -> bool:
    """One offset, row step and column step for each dimension of a memref."""
    if not check(op, isinstance(memory, ir.MemRefType), f"has its window in a memref, got {memory}"):
        return False
    attributes, rank = op.operation.attributes, ir.MemRefType(memory).rank
    steps: list[Any] = [attributes[name] if name in attributes else None for name in ("row_steps", "column_steps")]
    whole = all(isinstance(step, ir.DenseI64ArrayAttr) for step in steps)
    if not check(op, whole, f"takes `row_steps` and `column_steps` as arrays of i64, got {steps[0]} and {steps[1]}"):
        return False
    lengths = [len(list(op.offsets)), *(len(step) for step in steps)]
    return check(op, lengths == [rank] * 3, f"takes an offset and two steps for each of {rank} dimensions, got {lengths}")


def _is_tile(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType) and type_.rank == 2 and not type_.is_dynamic_dim(0)


@single_variadic
class LoadWindowOp(Tile.Operation, name="load_window", traits=[ext.Pure]):
    """A window of a captured tensor as a tile: element (i, j) is `source[offsets + i * row_steps + j * column_steps]`.

    The tile has a static number of rows, of which those from `rows` on repeat row `rows` - 1, so that nothing out of bounds is read,
    and exactly `columns` columns. A step of 0 repeats along that direction.
    """

    source: ext.Operand[Any]
    rows: ext.Operand[ir.IndexType]
    columns: ext.Operand[ir.IndexType]
    offsets: Sequence[ext.Operand[ir.IndexType]]
    row_steps: Any
    column_steps: Any
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        source, result = self.source.type, self.result.type
        if not _steps_fit(self, source):
            return False
        if not check(self, _is_tile(result), f"makes a rank-2 tile with a static number of rows, got {result}"):
            return False
        return check(self, result.element_type == source.element_type, f"keeps the element type {source.element_type}, got {result}")


class BandOp(Tile.Operation, name="band", traits=[ext.Pure]):
    """A tile whose elements depend on i - j alone: element (i, j) is what the region yields for (max(0, i - j), max(0, j - i)).

    The region is computed once for each diagonal. It reads captured tensors by `memref.load`.
    """

    rows: ext.Operand[ir.IndexType]
    columns: ext.Operand[ir.IndexType]
    result: ext.Result[Any]
    body: ext.Region

    def verify_invariants(self) -> bool:
        return check(self, _is_tile(self.result.type), f"makes a rank-2 tile with a static number of rows, got {self.result.type}")

    def verify_region_invariants(self) -> bool:
        yielded = _yielded(self)
        element = ir.RankedTensorType(self.result.type).element_type
        return yielded is not None and check(
            self, yielded == [element], f"yields one {element}, got ({', '.join(str(type_) for type_ in yielded)})"
        )


@single_variadic
class AddWindowOp(Tile.Operation, name="add_window"):
    """Adds a tile to a window: `target[offsets + i * row_steps + j * column_steps] += tile[i, j]`, for i < `rows` and j < `columns`.

    Elements that meet are added column by column, and in a column by rows: in the same order in every run.
    """

    tile: ext.Operand[Any]
    target: ext.Operand[Any]
    rows: ext.Operand[ir.IndexType]
    columns: ext.Operand[ir.IndexType]
    offsets: Sequence[ext.Operand[ir.IndexType]]
    row_steps: Any
    column_steps: Any

    def verify_invariants(self) -> bool:
        return _steps_fit(self, self.target.type) and _adds(self, self.tile.type, self.target.type)


class AddBandOp(Tile.Operation, name="add_band"):
    """Adds the sum of each diagonal of a tile to one element: that whose indices the region yields for (max(0, i - j), max(0, j - i)).

    Sums are of the first `rows` rows and `columns` columns; a diagonal is summed column by column. Several may meet in one element.
    """

    tile: ext.Operand[Any]
    target: ext.Operand[Any]
    rows: ext.Operand[ir.IndexType]
    columns: ext.Operand[ir.IndexType]
    body: ext.Region

    def verify_invariants(self) -> bool:
        target = self.target.type
        return check(self, isinstance(target, ir.MemRefType), f"adds to a memref, got {target}") and _adds(self, self.tile.type, target)

    def verify_region_invariants(self) -> bool:
        yielded, rank = _yielded(self), ir.MemRefType(self.target.type).rank
        if yielded is None:
            return False
        fits = len(yielded) == rank and all(isinstance(type_, ir.IndexType) for type_ in yielded)
        return check(self, fits, f"yields {rank} indices, got ({', '.join(str(type_) for type_ in yielded)})")


def _adds(op: Any, tile: ir.Type, target: ir.Type) -> bool:
    if not check(op, _is_tile(tile), f"adds a rank-2 tile with a static number of rows, got {tile}"):
        return False
    fits = is_score_type(tile.element_type) and tile.element_type == target.element_type
    return check(op, fits, f"adds f32 or f64 to elements of that type, got {tile} and {target}")


def _yielded(op: Any) -> list[ir.Type] | None:
    """The types that the region yields, if it takes (i, j) and ends in `tile.yield`; None after an error."""
    block = entry_block(op)
    got = [argument.type for argument in block.arguments] if block is not None else []
    fits = len(got) == 2 and all(isinstance(type_, ir.IndexType) for type_ in got)
    if not check(op, fits, f"region takes 2 indices, got ({', '.join(map(str, got))})"):
        return None
    last = terminator(block) if block is not None else None
    if not check(op, last is not None and last.operation.name == "tile.yield", "ends in 'tile.yield'"):
        return None
    return [operand.type for operand in last.operation.operands] if last is not None else None
