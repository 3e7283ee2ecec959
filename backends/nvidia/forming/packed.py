"""Tiles of a kernel's grid, and what differs where sequences are packed: a list of work, and views in which sequences end like tensors."""

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.forming.tiled import has_constant, is_rest
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir, memref
from attn_mlir.passes.regions import find_all, maker

_BEGIN, _END = 1, 2
"""Columns of an item of a list of work: its first row, and the one after its last."""
LONGEST_FIRST = {"reverse": 0}
"""In the schedule of kernels on packed sequences: lists of work have the items with the most work first."""


@dataclass(frozen=True)
class TileNumbers:
    """How many tiles a kernel has, of which so many are those of a head, and heads; the number of a tile counts in this order."""

    tiles: ir.Value
    blocks: ir.Value
    heads: ir.Value


@dataclass(frozen=True)
class Packed:
    """The list of work of a tiled function, its last argument, and its views (see `backends.gpu.packed`).

    An item's rows end where its block or its sequence does, and a sequence ends where its view does. So the count of a store is what exists
    of a block, as it is in tensors without sequences, and what is stored after it is out of bounds.
    """

    work: ir.Value
    views: frozenset[ir.Value]
    lengths: tuple[ir.Value, ...]
    """The arguments that hold the lengths of sequences, first those of the rows that are the programs'."""
    over: ir.Value
    """The tensor whose rows these are."""
    paged: tuple[ir.Value, ...] = ()
    """The arguments whose rows lie in pages, by `table`, another one."""
    table: ir.Value | None = None

    @staticmethod
    def of(function: ir.Operation) -> "Packed | None":
        """That of a tiled function on packed sequences."""
        facts = ir.DictAttr(function.attributes["tile.kernel"])
        if "lengths" not in facts:
            return None
        arguments = list(function.regions[0].blocks[0].arguments)
        numbers = ir.DenseI64ArrayAttr(facts["ragged"]) if "ragged" in facts else []
        lengths = tuple(arguments[n] for n in ir.DenseI64ArrayAttr(facts["lengths"]))
        over = arguments[ir.IntegerAttr(facts["over"]).value if "over" in facts else 0]
        paged = tuple(arguments[n] for n in ir.DenseI64ArrayAttr(facts["paged"])) if "paged" in facts else ()
        table = arguments[ir.IntegerAttr(facts["table"]).value] if paged else None
        return Packed(arguments[-1], frozenset(arguments[n] for n in numbers), lengths, over, paged, table)

    def is_rest(self, target: ir.Value, row: ir.Value, count: ir.Value, block: int) -> bool:
        """Whether `count` rows from `row` on are all that exist in a view of a block of an item, or none, as its sequence has none."""
        if target not in self.views:  # rows that are heads of a group: a tensor's, which are not packed, and end where it does
            present = maker(count, "arith.muli")
            some = maker(present.operands[1], "arith.minsi") if present is not None else None
            whole = present.operands[0] if present is not None and some is not None and has_constant(some.operands, 1) else count
            return self.over not in self.views and self._is_number(row, _BEGIN) and self._is_rest(row, whole, block)
        at = maker(row, "arith.addi")
        return at is not None and any(self._is_rest(each, count, block) for each in at.operands)

    def _is_rest(self, position: ir.Value, count: ir.Value, block: int) -> bool:
        whole = maker(count, "arith.subi")
        if whole is not None and self._is_number(whole.operands[0], _END):
            return whole.operands[1] == position and self._is_number(position, _BEGIN)
        return is_rest(position, count, block, lambda value: self._is_number(value, _END))

    def is_item(self, lower: ir.Value, upper: ir.Value) -> bool:
        """Whether rows from `lower` to `upper` are those of an item."""
        return self._is_number(lower, _BEGIN) and self._is_number(upper, _END)

    def length(self, function: ir.Operation, of_keys: bool = False) -> ir.Value:
        """How many rows the item's sequence has, of those that are the programs', or of the keys. Raises Refused."""
        lengths = self.lengths[-1 if of_keys else 0]
        for op in find_all(function, "arith.index_cast"):
            load = maker(op.operands[0], "memref.load")
            if load is not None and load.operands[0] == lengths:
                return op.results[0]
        raise Refused("the length of the sequence of an item is not read")

    def pages_of(self, source: ir.Value, known: Mapping[ir.Value, ir.Value]) -> tuple[ir.Value, ir.Value] | None:
        """The table of the pages that a tensor's rows lie in, and a tensor whose pages have the size of all; None where they lie in none.

        `known`: what stands for the function's values.
        """
        paged = [known[value] for value in self.paged]
        return (known[self.table], paged[0]) if self.table is not None and source in paged else None

    def _is_number(self, value: ir.Value, column: int) -> bool:
        """Whether a value is this number of the program's item."""
        cast = maker(value, "arith.index_cast")
        load = maker(cast.operands[0], "memref.load") if cast is not None else None
        if load is None or load.operands[0] != self.work:
            return False
        place = maker(load.operands[2], "arith.constant")
        item = maker(load.operands[1], "tile.program_id")
        return item is not None and place is not None and ir.IntegerAttr(place.attributes["value"]).value == column

    def position(self, row: ir.Value) -> ir.Value:
        """Of a row of a view, where it is in its sequence: what is added to how many rows the view has before it."""
        at = maker(row, "arith.addi")
        for shift, position in [tuple(at.operands), tuple(at.operands)[::-1]] if at is not None else []:
            before = maker(shift, "arith.subi")
            if before is not None and maker(before.operands[0], "memref.dim") is not None:
                return position
        raise Refused("a row of packed sequences is not counted from where its sequence begins")

    def grid(self, over: ir.Value, work: ir.Value) -> TileNumbers:
        """A tile for each item, of which the last row of the list tells how many there are, and head."""
        zero, one = build.index(0), build.index(1)
        heads = memref.DimOp(over, one).result
        last = arith.SubIOp(memref.DimOp(work, zero).result, one).result
        with build.named("items"):
            items = arith.IndexCastOp(ir.IndexType.get(), memref.LoadOp(work, [last, zero]).result).result
        with build.named("tiles"):
            return TileNumbers(arith.MulIOp(heads, items).result, items, heads)


def dense_grid(over: ir.Value, block: int) -> TileNumbers:
    """A tile for each block of rows of each head and batch entry of a tensor."""
    heads, rows = (memref.DimOp(over, build.index(n)).result for n in (1, 2))
    of_batch = arith.MulIOp(memref.DimOp(over, build.index(0)).result, heads).result
    with build.named("blocks"):
        blocks = arith.CeilDivSIOp(rows, build.index(block)).result
    with build.named("tiles"):
        return TileNumbers(arith.MulIOp(of_batch, blocks).result, blocks, heads)
