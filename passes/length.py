"""The length of a program: how many scalar ops it has, and how many of them depend on each other in one chain."""

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import walk

_SCALAR = ("arith.", "math.", "tensor.extract")


def length_of(module: ir.Operation) -> tuple[int, int]:
    """(scalar ops, those of the longest chain)."""
    depths: dict[ir.Value, int] = {}
    count = 0
    for op in list(walk(module)):
        if op.name.startswith(_SCALAR):
            count += 1
            depth = 1 + max((depths.get(operand, 0) for operand in op.operands), default=0)
            depths.update(dict.fromkeys(op.results, depth))
    return count, max(depths.values(), default=0)
