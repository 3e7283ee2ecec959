"""The lists of work of kernels on packed tensors: which sequence a program has, and which of its rows.

A program finds no sequence by itself: the driver lists the blocks of all sequences, once for each call. Lists are [items, 4] of i32, an
item's sequence, its first row and the one behind its last, both counted in the sequence, and a slot. Items of "rows" and "elements" are
programs; "pairs" have groups of items, whose beginnings are in a second list. Kernels of parts of the keys (`attn.part_list`) have
[items, 6]: behind the first entry of partial results the keys of a part, or how many parts there are.
"""

from dataclasses import dataclass

from attn_mlir.mlir import arith, ir, memref
from attn_mlir.passes.sequences import Packing, packing_of
from attn_mlir.passes.tiling.frame import argument_number, in_memory
from attn_mlir.passes.tiling.scalars import ScalarEmitter, constant_index

ITEMS, GROUPS = "work", "groups"
"""The names of the lists among a kernel's arguments."""
COLUMNS, PART_COLUMNS = 4, 6


def item_types(grouped: bool, columns: int = COLUMNS) -> list[tuple[str, ir.Type]]:
    """The lists that a kernel takes behind its outputs."""
    i32, dynamic = ir.IntegerType.get_signless(32), ir.ShapedType.get_dynamic_size()
    items = ITEMS, in_memory(ir.RankedTensorType.get([dynamic, columns], i32))
    return [items, (GROUPS, in_memory(ir.RankedTensorType.get([dynamic], i32)))] if grouped else [items]


def lengths_of(op: ir.Operation) -> ir.Attribute:
    """The numbers of the arguments with the lengths of the sequences over which the grid of an op's kernel runs, and of the others."""
    sides = ("key", "query") if op.name == "attn.pairs" else ("query", "key")
    found = [packing_of(op, side) for side in sides]
    return ir.DenseI64ArrayAttr.get([argument_number(packing.lengths) for packing in found if packing is not None])


@dataclass(frozen=True)
class Item:
    """One item: its sequence b, rows [begin, end) of it, and the slot that sums over them are added to, or the first entry of its parts."""

    b: ir.Value
    begin: ir.Value
    end: ir.Value
    slot: ir.Value


def item_of(items: ir.Value, number: ir.Value) -> Item:
    """Reads an item of a list."""
    return Item(*(read(items, [number, constant_index(column)]) for column in range(COLUMNS)))


def part_of(items: ir.Value, number: ir.Value) -> tuple[ir.Value, ir.Value]:
    """What an item of a list of parts has behind its first entry."""
    first, last = (read(items, [number, constant_index(column)]) for column in range(COLUMNS, PART_COLUMNS))
    return first, last


def read(memory: ir.Value, indices: list[ir.Value]) -> ir.Value:
    """An integer in memory as an index."""
    return arith.IndexCastOp(ir.IndexType.get(), memref.LoadOp(memory, indices).result).result


@dataclass(frozen=True)
class Span:
    """Where the rows of one side lie, of a batch entry or of a sequence: batch entry, first row, and how many there are."""

    batch: ir.Value
    first: ir.Value | None
    length: ir.Value

    def row(self, position: ir.Value) -> ir.Value:
        """The row in memory of a position."""
        return position if self.first is None else arith.AddIOp(self.first, position).result


def span_of(packing: Packing | None, b: ir.Value, tensor: ir.Value, outer: ScalarEmitter) -> Span:
    """Those of batch entry or sequence `b` in `tensor`; `outer` has what the function's values are in the kernel."""
    if packing is None:
        return Span(b, None, memref.DimOp(tensor, constant_index(2)).result)
    begins, lengths = outer.emit(packing.begins), outer.emit(packing.lengths)
    if packing.by_heads:
        return Span(read(begins, [b]), None, memref.DimOp(tensor, constant_index(2)).result)
    return Span(constant_index(0), read(begins, [b]), read(lengths, [b]))
