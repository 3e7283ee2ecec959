"""Bounds of loops and of boxes of captured tensors, in 32 bits."""

from collections.abc import Iterator
from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.scaling import unnamed
from attn_mlir.backends.gpu.scalar_bounds import INDICES, POSITIONS, IntegerRanges, fits_int
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker, walk


@dataclass(frozen=True)
class NarrowBounds(Pass):
    """A loop from a to b runs from max(min(a, p), 0) to max(min(b, p), 0), for the longest sequence p, where a or b may need 64 bits.

    Bounds that follow from a mask are made of captured numbers, which may have any size; the loop runs over the same positions, those of
    a sequence, and what is printed of it needs no more than 32 bits. So do the boxes of captured tensors that `attn.range` looks at.
    """

    name = "gpu-narrow-bounds"

    def run(self, module: ir.Operation) -> bool:
        ranges = IntegerRanges()
        clamped: dict[tuple[ir.Value, int], ir.Value] = {}
        for op in walk(module):
            for number, most in _bounds(op):
                value = op.operands[number]
                if fits_int(ranges.of(value)):
                    continue
                if (value, most) not in clamped:
                    clamped[value, most] = _clamp(value, most)
                bound = op.operands[number] = clamped[value, most]
                if op.name == "scf.for":
                    _count_to(op, value, bound)
        return True


def _bounds(op: ir.Operation) -> Iterator[tuple[int, int]]:
    """Which operands are bounds, with the largest number that they can be."""
    if op.name == "scf.for":
        yield from ((number, POSITIONS) for number in range(2))
    elif op.name == "attn.range":
        yield from ((number, INDICES) for number in range(1, len(op.operands)))


def _clamp(value: ir.Value, most: int) -> ir.Value:
    """The number between 0 and `most` that is nearest to a value, computed where that is."""
    op = maker(value)
    block = value.owner if op is None else op.block
    following = 0 if op is None else list(block.operations).index(op.opview) + 1
    with unnamed(block.owner.operation.location if op is None else op.location), ir.InsertionPoint(block.operations[following]):
        last, zero = (arith.ConstantOp(value.type, ir.IntegerAttr.get(value.type, limit)).result for limit in (most, 0))
        return arith.maxsi(arith.minsi(value, last), zero)


def _count_to(loop: ir.Operation, end: ir.Value, bound: ir.Value) -> None:
    """Lets the positions that are left in the last block be counted to the clamped end."""
    variable = next(iter(loop.regions[0].blocks[0].arguments))
    for op in find_all(loop, "arith.subi"):
        if op.operands[0] == end and op.operands[1] == variable:
            op.operands[0] = bound
