"""Programs of the grid, and the traffic between global memory and tiles."""

from typing import Any

from attn_mlir.dialects.elements import bits_of
from attn_mlir.dialects.tile.dialect import Tile
from attn_mlir.dialects.verify import check
from attn_mlir.mlir import ext, ir

AXES = ("block", "head", "batch")


class ProgramIdOp(Tile.Operation, name="program_id", traits=[ext.Pure]):
    """Position of this program in the grid: axis 0 is the block of rows, 1 the head, 2 the batch.

    In a kernel over pairs, blocks are chunks of keys and heads are key heads.
    """

    axis: ir.IntegerAttr
    result: ext.Result[ir.IndexType[()]] = ext.infer_result()

    def verify_invariants(self) -> bool:
        return check(self, 0 <= self.axis.value < len(AXES), f"has axes 0 to {len(AXES) - 1} ({', '.join(AXES)}), got {self.axis.value}")


class LoadOp(Tile.Operation, name="load"):
    """Rows [row, row + count) of `source[b, h]` as a tile.

    `source` is [B, H, S, D]. A tile with a dynamic number of rows, tensor<?xD>, has exactly `count` rows; in a tile
    with a static number of rows, those past `count` repeat the last one, so that nothing out of bounds is read.
    Floats become those of the tile where it has a wider type.
    """

    source: ext.Operand[Any]
    b: ext.Operand[ir.IndexType]
    h: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    count: ext.Operand[ir.IndexType]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return _verify_load(self)


class LoadPagesOp(Tile.Operation, name="load_pages"):
    """Rows [row, row + count) of sequence b, which lie in pages, as a tile: row i is row i % size of `source[table[b, i / size], h]`.

    `source` is [pages, H, size, D], `table` [sequences, pages] of i32. Entries below 0 or beyond the pages that there are stand for the
    first and the last one, columns beyond the table for its last, so that nothing outside of `source` is read. The tile is as that of
    `tile.load`.
    """

    source: ext.Operand[Any]
    table: ext.Operand[Any]
    b: ext.Operand[ir.IndexType]
    h: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    count: ext.Operand[ir.IndexType]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        table = self.table.type
        fits = isinstance(table, ir.MemRefType) and table.rank == 2 and isinstance(table.element_type, ir.IntegerType)
        return check(self, fits, f"reads a table of integers [sequences, pages], got {table}") and _verify_load(self)


def _verify_load(op: Any) -> bool:
    """The rules for where rows are read, and the tile that they make."""
    source, result = op.source.type, op.result.type
    if not check(op, isinstance(source, ir.MemRefType) and source.rank == 4, f"reads a rank-4 memref [B, H, S, D], got {source}"):
        return False
    if not check(op, isinstance(result, ir.RankedTensorType) and result.rank == 2, f"makes a rank-2 tile, got {result}"):
        return False
    if not check(op, result.shape[1] == source.shape[3], f"keeps the head dimension {source.shape[3]}, got {result}"):
        return False
    return check(op, _is_kept(result, source), f"keeps the element type {source.element_type}, or widens it, got {result}")


def _is_kept(result: ir.Type, source: ir.Type) -> bool:
    """Whether a tile has the elements of memory, or wider ones."""
    return result.element_type == source.element_type or _is_narrower(source.element_type, result.element_type)


class GatherOp(Tile.Operation, name="gather"):
    """Rows of `source[b, h]` as a tile: row j is that which `rows`[first + j] names, for j < `count`.

    `source` is [B, H, S, D], `rows` a memref of i32 whose numbers are rows of it. The tile has exactly `count` rows.
    """

    source: ext.Operand[Any]
    b: ext.Operand[ir.IndexType]
    h: ext.Operand[ir.IndexType]
    rows: ext.Operand[Any]
    count: ext.Operand[ir.IndexType]
    first: ext.Operand[ir.IndexType]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        source, rows, result = self.source.type, self.rows.type, self.result.type
        if not check(self, isinstance(source, ir.MemRefType) and source.rank == 4, f"reads a rank-4 memref [B, H, S, D], got {source}"):
            return False
        fits = isinstance(rows, ir.MemRefType) and rows.rank == 1 and str(rows.element_type) == "i32"
        if not check(self, fits, f"takes `rows` as a rank-1 memref of i32, got {rows}"):
            return False
        shaped = isinstance(result, ir.RankedTensorType) and result.rank == 2 and result.is_dynamic_dim(0)
        if not check(self, shaped, f"makes a rank-2 tile with as many rows as are named, got {result}"):
            return False
        same = result.shape[1] == source.shape[3] and _is_kept(result, source)
        return check(self, same, f"keeps the rows of {source}, got {result}")


class StoreOp(Tile.Operation, name="store"):
    """Writes the first `count` rows of a tile to rows [row, row + count) of `target[b, h]`.

    A rank-2 tile goes to [B, H, S, D], a rank-1 tile (one value a row) to [B, H, S]. Floats are rounded to a narrower type of the target.
    """

    tile: ext.Operand[Any]
    target: ext.Operand[Any]
    b: ext.Operand[ir.IndexType]
    h: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    count: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        tile, target = self.tile.type, self.target.type
        if not check(self, isinstance(tile, ir.RankedTensorType) and tile.rank in (1, 2), f"writes a tile of rank 1 or 2, got {tile}"):
            return False
        rank = tile.rank + 2
        if not check(self, isinstance(target, ir.MemRefType) and target.rank == rank, f"writes to a memref of rank {rank}, got {target}"):
            return False
        if not check(self, tile.rank == 1 or tile.shape[1] == target.shape[3], f"keeps the head dimension {target.shape[-1]}, got {tile}"):
            return False
        same = tile.element_type == target.element_type or _is_narrower(target.element_type, tile.element_type)
        return check(self, same, f"keeps the element type {target.element_type}, got {tile}")


def _is_narrower(type_: ir.Type, other: ir.Type) -> bool:
    return 0 < bits_of(type_) < bits_of(other)
