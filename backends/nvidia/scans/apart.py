"""What of a chunk a second warpgroup makes: rows that are stored, which the next chunk does not need, and what it is handed for them."""

from collections.abc import Sequence
from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import body, is_row, is_tile, operations
from attn_mlir.backends.nvidia.scans.layout import DOTS, HALVES
from attn_mlir.backends.nvidia.scans.loops import element_of
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import walk

_MOST = 2
"""Times that values are handed over in a chunk: each has two of the named barriers."""


@dataclass(frozen=True)
class Apart:
    """`ops` of a loop that its carried tiles do not depend on, products among them, in their order; `handed`: the tiles in registers that
    these read and others make, in groups that are handed over together.
    """

    ops: list[ir.Operation]
    handed: list[list[ir.Value]]

    def group_of(self, value: ir.Value) -> int:
        """The number of a handed tile's group; -1 where it is none."""
        return next((number for number, group in enumerate(self.handed) if value in group), -1)


def apart_of(loop: ir.Operation, order: Sequence[ir.Operation]) -> Apart | None:
    """None where no products can be made apart, or what they need is not known once for all threads of a tile."""
    block = body(loop)
    chain = _chain(loop, order)
    ops = [op for op in order if op not in chain and op.name != "scf.yield"]
    if not any(op.name in DOTS for op in ops):
        return None
    read = [value for op in ops for each in [op, *walk(op)] for value in each.operands if is_tile(value) and not is_row(value.type)]
    if any(isinstance(value.owner, ir.Block) and value in list(block.arguments) for value in read):
        return None
    handed: list[list[ir.Value]] = []
    for op in order:
        for value in op.results if op in chain and op.name != "tile.load" else ():
            if value not in read:
                continue
            if handed and element_of(handed[-1][0]) in HALVES and element_of(value) in HALVES:
                handed[-1].append(value)  # pieces of a tile, the second of which may come after a product of the first
            else:
                handed.append([value])
    return Apart(ops, handed) if len(handed) <= _MOST else None


def _chain(loop: ir.Operation, order: Sequence[ir.Operation]) -> set[ir.Operation]:
    """The ops that a chunk's carried tiles depend on."""
    block, known = body(loop), set(order)
    found, wanted = set[ir.Operation](), [operations(block)[-1]]
    while wanted:
        op = wanted.pop()
        if op in found:
            continue
        found.add(op)
        owners = [value.owner.operation for each in [op, *walk(op)] for value in each.operands if not isinstance(value.owner, ir.Block)]
        wanted += [owner for owner in owners if owner.block == block and owner in known]
    return found
