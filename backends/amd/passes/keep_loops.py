"""Loops over keys or rows with constant bounds, which a mask like kv_idx == 0 or kv_idx < 0 makes: they stay loops."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import body, constant, operations
from attn_mlir.mlir import arith, ir, memref
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import walk


@dataclass(frozen=True)
class KeepLoops(Pass):
    """Hides that a loop over blocks runs once, or, where it is the only one, never.

    Canonicalization would leave its body without a loop, or nothing, and kernels are made of loops. The end of the loop becomes the
    smaller one of itself and the length of what it reads, which is the same number.
    """

    name = "amd-keep-loops"

    def run(self, module: ir.Operation) -> bool:
        blocks = [block for op in list(walk(module)) for region in op.regions for block in region.blocks]
        for block in blocks:
            loops = [op for op in operations(block) if op.name == "scf.for" and _length(op) is not None]
            kept = [loop for loop in loops if _trips(loop) == 1]
            if loops and all(_trips(loop) == 0 for loop in loops):
                kept = loops[-1:]
            for loop in kept:
                _hide(loop)
        return True


def _length(loop: ir.Operation) -> tuple[ir.Value, int] | None:
    """A tensor in memory along which the loop goes, and its dimension; None for loops over anything else."""
    position = body(loop).arguments[0]
    for op in operations(body(loop)):
        if op.name == "tile.load" and list(op.operands)[3] == position:
            return op.operands[0], 2
    return None


def _trips(loop: ir.Operation) -> int | None:
    """How often a loop runs; None where that is known at run time only."""
    begin, end, step = (constant(value) for value in list(loop.operands)[:3])
    if not isinstance(begin, int) or not isinstance(end, int) or not isinstance(step, int):
        return 0 if loop.operands[0] == loop.operands[1] else None
    return max(0, -((begin - end) // step))


def _hide(loop: ir.Operation) -> None:
    found = _length(loop)
    if found is None or constant(loop.operands[1]) is None:
        return
    with loop.location, ir.InsertionPoint(loop):
        length = memref.dim(found[0], arith.constant(ir.IndexType.get(), found[1]))
        loop.operands[1] = arith.minsi(length, loop.operands[1])
