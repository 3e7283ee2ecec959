"""Products with a tile that a map makes zero on one side of its diagonal: what is zero need not be multiplied."""

from attn_mlir.dialects.attn.rows import reached
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import maker
from attn_mlir.passes.simplification.folding import number

_LATER, _EARLIER = ("sgt", "sge"), ("slt", "sle")


def zeros_of(tile: ir.Value) -> str | None:
    """Where a square tile is zero: "above" its diagonal, "below", or None where that is unknown."""
    op = maker(tile, "tile.map")
    if op is None or len(op.results) != 1 or len(op.regions[0].blocks[0].arguments) != 2:
        return None
    shape = ir.RankedTensorType(tile.type).shape
    return _zeros_made_by(op) if shape[0] == shape[1] else None


def unread_of(tile: ir.Value) -> str | None:
    """Where nothing depends on the elements of a tile, as all maps that read it are zero there: "above" its diagonal, "below", or None."""
    sides = {_zeros_read_by(use.owner.operation) for use in tile.uses}
    return sides.pop() if len(sides) == 1 else None


def _zeros_read_by(reading: ir.Operation) -> str | None:
    """Where an element that a map reads, at its own indices, is not chosen."""
    op = reading.parent
    if reading.name != "tensor.extract" or op is None or op.name != "tile.map" or len(op.results) != 1:
        return None
    block = op.regions[0].blocks[0]
    if list(reading.operands)[1:] != list(block.arguments):
        return None
    side = _zeros_made_by(op)
    chosen = maker(block.operations[-1].operation.operands[0], "arith.select")
    return side if chosen is not None and chosen.operands[0] not in reached(block, reading.results[0]) else None


def _zeros_made_by(op: ir.Operation) -> str | None:
    """Where the only result of a map over rows and columns is zero."""
    block = op.regions[0].blocks[0]
    chosen = maker(block.operations[-1].operation.operands[0], "arith.select")
    if chosen is None or number(chosen.operands[2]) != 0.0:
        return None
    return next((side for side in (_side(each, block) for each in _conditions(chosen.operands[0])) if side is not None), None)


def _conditions(value: ir.Value) -> list[ir.Value]:
    """What must all hold for the value to be true."""
    op = maker(value, "arith.andi")
    return [value] if op is None else [each for operand in op.operands for each in _conditions(operand)]


def _side(condition: ir.Value, block: ir.Block) -> str | None:
    op = maker(condition, "arith.cmpi")
    if op is None:
        return None
    names = {getattr(arith.CmpIPredicate, name): name for name in (*_LATER, *_EARLIER)}
    name = names.get(arith.CmpIPredicate(ir.IntegerAttr(op.attributes["predicate"]).value))
    row, column = block.arguments
    if name is None or list(op.operands) not in ([row, column], [column, row]):
        return None
    return "above" if (name in _LATER) == (op.operands[0] == row) else "below"
