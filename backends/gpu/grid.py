"""What of a kernel differs between the programs of its grid."""

from attn_mlir.mlir import ir


def depends_on_block(value: ir.Value) -> bool:
    """Whether a value of a kernel is made of the number of the block of rows (or of keys) that a program works on."""
    if isinstance(value.owner, ir.Block):
        return False
    op = value.owner.operation
    if op.name == "tile.program_id":
        return ir.IntegerAttr(op.attributes["axis"]).value == 0
    return any(depends_on_block(operand) for operand in op.operands)
