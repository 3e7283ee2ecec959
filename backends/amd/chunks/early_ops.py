"""Which ops of a loop can be done before their turn."""

from attn_mlir.backends.gpu.structure import is_row, is_tile, maker, operations
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import walk


def only_sums(op: ir.Operation, block: ir.Block) -> bool:
    """Whether an op is a map that makes sums along rows alone, of tiles from outside of a block."""
    if op.name != "tile.map" or not all(is_row(result.type) for result in op.results) or len(list(op.operands)) != 2:
        return False
    tiles = [read.operands[0] for read in walk(op) if read.name == "tensor.extract"]
    return not any(isinstance(tile.owner, ir.Block) or tile.owner.operation.block == block for tile in tiles)


def loaded_ahead(block: ir.Block) -> list[ir.Operation]:
    """Loads, and maps of what is in global memory, that depend on nothing an iteration of the loop computes: they are made one ahead.

    Not sums along rows: their parts lie in shared memory, not in registers that could wait for their iteration.
    """
    found: list[ir.Operation] = []
    for op in operations(block):
        if op.name == "tile.load":
            values = list(op.operands)
        elif op.name == "tile.map" and not _adds_up(op) and not any(inner.name == "tensor.extract" for inner in walk(op)):
            values = [v for inner in [op, *walk(op)] for v in inner.operands]
        else:
            continue
        if not any(_is_computed(value, block) for value in values):
            found.append(op)
    return [op for op in found if op.name == "tile.load" or _varies(op)]


def _is_computed(value: ir.Value, block: ir.Block) -> bool:
    """Whether a value is made of a tile of this block."""
    op = maker(value)
    if op is None or op.block != block:
        return op is None and is_tile(value)
    return is_tile(value) or any(_is_computed(operand, block) for operand in op.operands)


def _adds_up(op: ir.Operation) -> bool:
    return len(ir.ArrayAttr(op.attributes["reductions"])) > 0


def _varies(op: ir.Operation) -> bool:
    """Whether a map reads memory: what is only computed can as well be computed in its place."""
    return any(inner.name == "memref.load" for inner in walk(op))
