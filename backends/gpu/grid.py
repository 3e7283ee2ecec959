"""What of a kernel differs between the programs of its grid."""

from attn_mlir.mlir import ir


def depends_on_block(value: ir.Value) -> bool:
    """Whether a value of a kernel is made of the number of the block of rows (or of keys) that a program works on."""
    seen, todo = set[ir.Value](), [value]
    while todo:
        of = todo.pop()
        if of in seen or isinstance(of.owner, ir.Block):
            continue
        seen.add(of)
        op = of.owner.operation
        if op.name == "tile.program_id" and ir.IntegerAttr(op.attributes["axis"]).value == 0:
            return True
        todo += op.operands
    return False
