"""The lists of work of kernels on packed tensors: which sequence a program has, and which of its rows.

A program finds no sequence by itself: the driver lists the blocks of all sequences, once for each call. Lists are [items, 4] of i32, an
item's sequence, its first row and the one after its last, both counted in the sequence, and a slot. Items of "rows" and "elements" are
programs; "pairs" have groups of items, whose beginnings are in a second list. Kernels of parts of the keys (`attn.part_list`) have
[items, 6]: after the first entry of partial results the keys of a part, or how many parts there are.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from attn_mlir.mlir import arith, ir, memref
from attn_mlir.passes.regions import walk
from attn_mlir.passes.sequences import Packing, packing_of
from attn_mlir.passes.tiling.frame import argument_number, in_memory
from attn_mlir.passes.tiling.scalars import ScalarEmitter, constant_index

ITEMS, GROUPS = "work", "groups"
"""The names of the lists among a kernel's arguments."""
COLUMNS, PART_COLUMNS = 4, 6


def item_types(grouped: bool, columns: int = COLUMNS) -> list[tuple[str, ir.Type]]:
    """The lists that a kernel takes after its outputs."""
    i32, dynamic = ir.IntegerType.get_signless(32), ir.ShapedType.get_dynamic_size()
    items = ITEMS, in_memory(ir.RankedTensorType.get([dynamic, columns], i32))
    return [items, (GROUPS, in_memory(ir.RankedTensorType.get([dynamic], i32)))] if grouped else [items]


def lengths_of(op: ir.Operation) -> dict[str, ir.Attribute]:
    """The numbers of the arguments with `lengths` of the sequences over which the grid of an op's kernel runs, and of the others, and
    with their `begins`.
    """
    sides = ("key", "query") if op.name == "attn.pairs" else ("query", "key")
    found = [packing for side in sides if (packing := packing_of(op, side)) is not None]
    values = {"lengths": [each.lengths for each in found], "begins": [each.begins for each in found]}
    return {name: ir.DenseI64ArrayAttr.get([argument_number(value) for value in each]) for name, each in values.items()}


def ragged_numbers(numbers: Iterable[int]) -> ir.Attribute:
    """The arguments that a kernel takes as ragged views, each once."""
    return ir.DenseI64ArrayAttr.get(sorted(set(numbers)))


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
    """What an item of a list of parts has after its first entry."""
    first, last = (read(items, [number, constant_index(column)]) for column in range(COLUMNS, PART_COLUMNS))
    return first, last


def share_reads(block: ir.Block, op: ir.Operation) -> None:
    """Reads where an op's sequences lie once: a kernel's maps and bounds ask for the lengths that its program knows already.

    `block` is the kernel's; the lengths are inputs, which nothing writes.
    """
    numbers = {number for each in lengths_of(op).values() for number in ir.DenseI64ArrayAttr(each)}
    known: dict[tuple[ir.Value, ...], ir.Value] = {}
    for view in list(block.operations):
        for inner in (view.operation, *walk(view.operation)):
            if inner.name != "memref.load" or argument_number(inner.operands[0]) not in numbers or inner.operands[0].owner != block:
                continue
            place = tuple(inner.operands)
            if place in known:
                inner.results[0].replace_all_uses_with(known[place])
                inner.erase()
            elif inner == view.operation:
                known[place] = inner.results[0]


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


def span_of(packing: Packing | None, b: ir.Value, tensor: ir.Value, outer: ScalarEmitter, ragged: bool = False) -> Span:
    """Those of batch entry or sequence `b` in `tensor`; `outer` has what the function's values are in the kernel.

    Packed tensors that are `ragged` views have, for every row e, an entry whose last rows are those in front of e, so that the entry where
    a sequence ends has no rows after it: loads there give zeros, stores do nothing.
    """
    if packing is None:
        return Span(b, None, memref.DimOp(tensor, constant_index(2)).result)
    begins, lengths = outer.emit(packing.begins), outer.emit(packing.lengths)
    if packing.by_heads:
        return Span(read(begins, [b]), None, memref.DimOp(tensor, constant_index(2)).result)
    if ragged:
        first, length = read(begins, [b]), read(lengths, [b])
        rows = memref.DimOp(tensor, constant_index(2)).result
        return Span(arith.AddIOp(first, length).result, arith.SubIOp(rows, length).result, length)
    return Span(constant_index(0), read(begins, [b]), read(lengths, [b]))
