"""Heads of a group as rows: what functions see of such a row."""

from attn_mlir.mlir import ir


def unfolded(h: ir.Value, row: ir.Value, group: int) -> tuple[ir.Value, ir.Value]:
    """Head and query of row `row` of key head `h`, which has `group` rows for each query."""
    index = ir.IndexType.get()

    def one(op: str, *operands: ir.Value) -> ir.Value:
        return ir.Operation.create(op, results=[index], operands=list(operands)).result

    size = ir.Operation.create("arith.constant", results=[index], attributes={"value": ir.IntegerAttr.get(index, group)}).result
    query = one("arith.floordivsi", row, size)
    member = one("arith.subi", row, one("arith.muli", query, size))
    return one("arith.addi", one("arith.muli", h, size), member), query
