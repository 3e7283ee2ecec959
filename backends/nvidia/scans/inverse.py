"""Inverses of triangles that go to memory as two pieces of bf16, and nowhere else."""

from attn_mlir.backends.gpu.structure import body, yielded
from attn_mlir.backends.nvidia.scans.loops import own_reads, residual_of, shape_of
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import maker


def stored_pieces(solve: ir.Operation) -> list[ir.Operation] | None:
    """The stores of both pieces of what a `tile.solve_unit` makes, that of the rounded one first; None where it is used otherwise."""
    (inverse,) = solve.results
    reads = [use.owner.operation for use in inverse.uses]
    if len(reads) != 1 or reads[0].name != "tensor.extract":
        return None
    cut = reads[0].parent
    if cut is None or cut.name != "tile.map" or cut.block != solve.block or reads[0] not in own_reads(cut) or len(list(cut.results)) != 2:
        return None
    x, (high, low) = reads[0].results[0], yielded(body(cut))
    rounded = maker(high, "arith.truncf")
    if str(high.type) != "bf16" or rounded is None or rounded.operands[0] != x or residual_of(low) != x:
        return None
    stores = [[use.owner.operation for use in result.uses] for result in cut.results]
    if any(len(each) != 1 or each[0].name != "tile.store" or each[0].block != cut.block for each in stores):
        return None
    first, second = (each[0] for each in stores)
    same = list(first.operands)[2:] == list(second.operands)[2:] and shape_of(inverse) == shape_of(cut.results[0])
    return [first, second] if same else None
