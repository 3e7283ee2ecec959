"""Pieces that multiply rows: verifiers and passes ask for them."""

from attn_mlir.dialects.regions import maker, walk
from attn_mlir.mlir import ir


def multiplies_rows(mod: ir.Operation) -> bool:
    """Whether a mod of q, k or v multiplies each row by one number: x times, or divided by, what depends on neither x nor the channel."""
    block = mod.regions[0].blocks[0]
    x, *_, channel = block.arguments
    of_x, of_channel = reached(block, x), reached(block, channel)
    value = block.operations[-1].operation.operands[0]
    while value != x:
        op = maker(value, "arith.mulf", "arith.divf", "arith.negf")
        if op is None or value not in of_x:
            return False
        others = [operand for operand in op.operands if operand not in of_x]
        if len(others) != len(list(op.operands)) - 1 or any(other in of_channel for other in others):
            return False
        value = next(operand for operand in op.operands if operand in of_x)
        if op.name == "arith.divf" and value != op.operands[0]:
            return False
    return True


def reached(block: ir.Block, source: ir.Value) -> set[ir.Value]:
    """A value of a block, an argument say, and the values of the block that are computed from it."""
    found = {source}
    for op in [view.operation for view in block.operations]:
        if any(operand in found for each in (op, *walk(op)) for operand in each.operands):
            found.update(op.results)
    return found
