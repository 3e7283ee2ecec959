"""Lets blocks of rows end where the rows end, so that the first one is short instead of the last."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.facts import said
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.dialects.numbers import number
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker

_MOST = 1 << 30
"""More rows than there are: a bound that is told, so that printers count in 32 bits."""
_ROWS = 64
"""Of a warpgroup: blocks move by whole ones, so that each of them has all of its rows or none."""
_STORES = ("warp.store",)
_OTHERS = ("warp.atomic_add", "warp.store_async", "warp.add_async", "memref.store")


@dataclass(frozen=True)
class AlignTiles(Pass):
    """Moves the blocks of rows of a kernel's tiles back by what its last block lacks, in whole warpgroups: all but the first end later
    than before by nothing, and begin earlier. Under a mask by which later rows see more keys, the block that is short is then the one
    that sees fewest, instead of the one that sees most.

    The first block begins with the first row and computes those of the next one, too, but stores none of them: the row that its stores
    begin with is then past the end.

    A kernel stays as it is, with the reason in `warp.refused`, where `warp.schedule` does not have `align` = "end" (or the option `always`
    is given), blocks have the rows of one warpgroup, tiles are not numbered as `warp-assign-layouts` does, or results leave otherwise.
    """

    name = "warp-align-tiles"
    always: bool = False

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, self._align)
        return True

    def _align(self, kernel: ir.Operation) -> None:
        if not self.always and said(kernel, "align", "start") != "end":
            raise Refused("the schedule has blocks that begin with the rows")
        roles = find_all(kernel, "warp.role")
        if len(roles) != 1 or find_all(kernel, *_OTHERS):
            raise Refused("a kernel of several roles, or with results that are not stored, stays")
        blocks, block = _block(roles[0])
        size = number(roles[0], "warpgroups") * _ROWS
        counted = maker(blocks, "arith.ceildivsi")
        if counted is None or not _is(counted.operands[1], size) or size == _ROWS:
            raise Refused("blocks of rows are those of one warpgroup, or are not counted as they are taken")
        begins = [op for use in block.uses if (op := use.owner.operation).name == "arith.muli" and _is(op.operands[1], size)]
        if len(list(block.uses)) != len(begins) or not begins:
            raise Refused("the number of a block is used for more than its first row")
        _move(begins, counted, size)


def _block(role: ir.Operation) -> tuple[ir.Value, ir.Value]:
    """How many blocks of rows there are, and the number of a tile's. Raises Refused."""
    for loop in find_all(role, "scf.for"):
        if maker(loop.operands[0], "warp.block_id") is None:
            continue
        tile = loop.regions[0].blocks[0].arguments[0]
        found = next((use.owner.operation for use in tile.uses if use.owner.operation.name == "arith.remsi"), None)
        if found is not None:
            return found.operands[1], found.results[0]
    raise Refused("no loop takes tiles from its thread block's number on")


def _is(value: ir.Value, wanted: int) -> bool:
    made = maker(value, "arith.constant")
    return made is not None and ir.IntegerAttr(made.attributes["value"]).value == wanted


def _move(begins: list[ir.Operation], counted: ir.Operation, size: int) -> None:
    """Moves first rows and ends, and lets stores of rows behind a block's end store nothing."""
    rows = counted.operands[0]
    with counted.location, ir.InsertionPoint.after(counted):
        lacking = arith.SubIOp(arith.MulIOp(counted.results[0], build.index(size)).result, rows).result
        shift = arith.MulIOp(arith.DivUIOp(lacking, build.index(_ROWS)).result, build.index(_ROWS)).result
    for begin in begins:
        uses = [(use.owner.operation, use.operand_number) for use in begin.results[0].uses]
        with begin.location, ir.InsertionPoint.after(begin):
            moved = arith.SubIOp(begin.results[0], shift).result
            first = _bounded(moved)
            end = _bounded(arith.AddIOp(moved, build.index(size)).result)
        for op, operand in uses:
            if op.name == "arith.addi" and _is(op.operands[1 - operand], size):
                op.results[0].replace_all_uses_with(end)
                op.erase()
            else:
                op.operands[operand] = first
        for place in [use.owner.operation for use in first.uses]:
            stores = [use.owner.operation for result in place.results for use in result.uses if use.owner.operation.name in _STORES]
            for store in stores:
                with store.location, ir.InsertionPoint(store):
                    row = store.operands[4]
                    own = arith.CmpIOp(arith.CmpIPredicate.slt, row, end).result
                    store.operands[4] = arith.SelectOp(own, row, rows).result


def _bounded(value: ir.Value) -> ir.Value:
    return arith.MaxSIOp(arith.MinSIOp(value, build.index(_MOST)).result, build.index(0)).result
