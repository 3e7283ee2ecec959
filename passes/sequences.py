"""Packed tensors in passes: the `attn.sequences` of an op, and where a sequence's rows lie in memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import maker, pieces


@dataclass(frozen=True)
class Packing:
    """One side's sequences: tensors of where they begin and how long they are, and whether heads are rows (see `attn.sequences`)."""

    begins: ir.Value
    lengths: ir.Value
    by_heads: bool = False


def packing_of(owner: ir.Operation, side: str) -> Packing | None:
    """The sequences of the tensors of a side, "query" or "key", of an op; None where these are not packed."""
    for op in pieces(owner, "attn.sequences"):
        if ir.StringAttr(op.attributes["of"]).value == side:
            return Packing(*op.operands, "by_heads" in op.attributes)
    return None


def pages_of(owner: ir.Operation) -> ir.Value | None:
    """The table of the pages in which the keys of an op lie (`attn.pages`); None where they do not."""
    found = pieces(owner, "attn.pages")
    return found[0].operands[0] if found else None


def read_index(tensor: ir.Value, b: ir.Value) -> ir.Value:
    """An element of a tensor of integers as an index, at the insertion point."""
    element = ir.RankedTensorType(tensor.type).element_type
    read = ir.Operation.create("tensor.extract", results=[element], operands=[tensor, b]).result
    return arith.IndexCastOp(ir.IndexType.get(), read).result


def reads_row(owner: ir.Operation, indices: Sequence[ir.Value], position: Sequence[ir.Value]) -> bool:
    """Whether `indices` of a tensor with the rows of queries are those of the row at `position`: b, h and q_idx in a piece of `owner`."""
    packing = packing_of(owner, "query")
    if packing is None:
        return list(indices) == list(position)
    if len(indices) != 3 or indices[1] != position[1]:
        return False
    total = maker(indices[2], "arith.addi")
    begin = None if total is None or total.operands[1] != position[2] else maker(total.operands[0], "arith.index_cast")
    read = None if begin is None else maker(begin.operands[0], "tensor.extract")
    return read is not None and list(read.operands) == [packing.begins, position[0]]
