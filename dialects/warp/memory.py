"""Shared memory: buffers with stages, the tiles in them, and ordinary reads and writes of fragments."""

from typing import Any

from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.dialects.verify import check
from attn_mlir.dialects.warp.dialect import Warp
from attn_mlir.dialects.warp.kinds import in_form, is_global, is_shared, row_bytes, swizzle_of
from attn_mlir.mlir import ext, ir

SWIZZLES = (0, 32, 64, 128)
CHUNKS = 32
"""Bytes of a row that a product takes at once: two of the chunks that a swizzle moves."""


class AllocOp(Warp.Operation, name="alloc"):
    """A buffer in shared memory: memref<stages x rows x columns> of tiles, or memref<stages x n> of numbers that roles exchange.

    Numbers are read and written by `memref.load` and `memref.store`. Rows of a swizzled buffer take whole swizzle atoms of so many bytes:
    a row of 16-bit elements may end within one, behind a multiple of 16 columns.
    """

    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        type_ = self.result.type
        if not check(self, is_shared(type_, 2, 3), f"makes a static memref of rank 2 or 3 in #warp.shared, got {type_}"):
            return False
        swizzle, row = swizzle_of(type_), row_bytes(type_)
        fits = swizzle in SWIZZLES and (swizzle == 0 or (type_.rank == 3 and row % CHUNKS == 0))
        return check(
            self, fits, f"is swizzled over 0, 32, 64 or 128 bytes in rows of a multiple of {CHUNKS} bytes, got {swizzle} for {row} bytes"
        )


class ViewOp(Warp.Operation, name="view", traits=[ext.Pure]):
    """A tile in a stage of a buffer, from `row` and `column` on."""

    buffer: ext.Operand[Any]
    stage: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    column: ext.Operand[ir.IndexType]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        buffer, tile = self.buffer.type, self.result.type
        fits = is_shared(buffer, 3) and is_shared(tile, 2) and all(n <= of for n, of in zip(tile.shape, buffer.shape[1:], strict=True))
        fits = fits and (buffer.memory_space, buffer.element_type) == (tile.memory_space, tile.element_type)
        return check(self, fits, f"is a part of a stage of {buffer}, got {tile}")


class RowsOfHeadsOp(Warp.Operation, name="rows_of_heads", traits=[ext.Pure]):
    """A tensor in global memory, [B, H, S, D] or [B, H, S], seen as [B, H / `heads`, S x `heads`, ...].

    Row r of pack h is row r / `heads` of head h x `heads` + r mod `heads`; `heads` divides H. Copies begin with a multiple of `heads`.
    """

    source: ext.Operand[Any]
    heads: ir.IntegerAttr
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        source, heads = self.source.type, self.heads.value
        fits = is_global(source, 3, 4) and self.result.type == source and heads > 1
        return check(self, fits, f"sees a memref [B, H, S, D] or [B, H, S] by rows of several heads, got {source} and {heads}")


class ConcatOp(Warp.Operation, name="concat", traits=[ext.Pure]):
    """A tile whose columns are those of one tile in shared memory, then those of another: operand b of a product, in two places."""

    first: ext.Operand[Any]
    second: ext.Operand[Any]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        types = [v.type for v in (self.first, self.second, self.result)]
        if not check(self, all(is_shared(t, 2) for t in types), f"puts tiles in shared memory side by side, got {types[0]} and {types[1]}"):
            return False
        (rows, m), (others, n), made = (list(t.shape) for t in types)
        fits = rows == others and made == [rows, m + n] and len({(t.element_type, t.memory_space) for t in types}) == 1
        return check(self, fits, f"has the columns of both, got {types[0]}, {types[1]} and {types[2]}")


class TransposeOp(Warp.Operation, name="transpose"):
    """A tile of 8-bit elements goes to another place in shared memory, transposed, by ordinary reads and writes of the warpgroup.

    Its rows become columns in the order in which products take 8-bit elements of registers, `layouts.column_at` of each sixteen. The warps
    share sixteen columns each in turn.
    """

    source: ext.Operand[Any]
    target: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        source, target = self.source.type, self.target.type
        fits = is_shared(source, 2) and is_shared(target, 2) and list(source.shape)[::-1] == list(target.shape)
        fits = fits and source.element_type == target.element_type and is_eight_bit(source.element_type)
        if not check(self, fits, f"moves 8-bit elements between tiles [m, n] and [n, m] in shared memory, got {source} and {target}"):
            return False
        whole = source.shape[0] % 32 == 0 and source.shape[1] % 16 == 0
        return check(self, whole, f"takes multiples of 32 rows and 16 columns at once, got {source}")


class WriteOp(Warp.Operation, name="write"):
    """A fragment goes to shared memory, by ordinary writes: its own element type, and as many rows and columns."""

    tile: ext.Operand[Any]
    target: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        return _checks_same(self, self.tile.type, self.target.type)


class ReadOp(Warp.Operation, name="read"):
    """A fragment from shared memory, by ordinary reads."""

    source: ext.Operand[Any]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return _checks_same(self, self.result.type, self.source.type)


class ReadTransposedOp(Warp.Operation, name="read_transposed"):
    """A fragment from shared memory, by ordinary reads that transpose: element (i, j) is that at row j and column i of the tile.

    Of elements of 16 bits, whose rows in shared memory are as long as one swizzle atom.
    """

    source: ext.Operand[Any]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return _checks_transposed(self, self.result.type, self.source.type)


class WriteTransposedOp(Warp.Operation, name="write_transposed"):
    """A fragment goes to shared memory, by ordinary writes that transpose: element (i, j) comes to row j and column i of the tile.

    Of elements of 16 bits, whose rows in shared memory are as long as one swizzle atom.
    """

    tile: ext.Operand[Any]
    target: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        return _checks_transposed(self, self.tile.type, self.target.type)


def _checks_transposed(op: ReadTransposedOp | WriteTransposedOp, tile: ir.Type, memory: ir.Type) -> bool:
    """A fragment of 16 bits and a tile in shared memory are each other's transposes, and rows of memory are one swizzle atom."""
    fits = in_form(tile, "tile") is not None and is_shared(memory, 2)
    fits = fits and (list(tile.shape)[::-1], tile.element_type) == (list(memory.shape), memory.element_type)
    if not check(op, fits, f"moves the transpose of a tile in shared memory, got {tile} and {memory}"):
        return False
    halves = tile.element_type.width == 16 and swizzle_of(memory) == memory.shape[1] * 2
    return check(op, halves, f"takes elements of 16 bits in rows of one swizzle atom, got {memory}")


def _checks_same(op: WriteOp | ReadOp, tile: ir.Type, memory: ir.Type) -> bool:
    """A fragment and a tile in shared memory have the same shape and elements."""
    fits = in_form(tile, "tile") is not None and is_shared(memory, 2)
    fits = fits and (list(tile.shape), tile.element_type) == (list(memory.shape), memory.element_type)
    return check(op, fits, f"moves a tile between registers and shared memory of its shape, got {tile} and {memory}")
