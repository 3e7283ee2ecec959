"""What the bounds of a kernel's loops are for other blocks of rows.

The bounds are made of the first row of the block of rows and of the one after its last: the same arithmetic with other rows gives other
bounds. So blocks of rows may be cut elsewhere.
"""

from dataclasses import dataclass

from attn_mlir.backends.gpu.grid import depends_on_block
from attn_mlir.backends.gpu.structure import body, constant, operations
from attn_mlir.backends.nvidia.hopper.steps import KvStep
from attn_mlir.mlir import ir


@dataclass(frozen=True)
class RowInterval:
    """The rows of a program: `begin` is its number times `size`, `end` the smaller one of `begin` + `size` and the length `length`."""

    begin: ir.Value
    end: ir.Value
    length: ir.Value
    size: int

    def decides(self, value: ir.Value) -> bool:
        """Whether a scalar depends on the program's rows through `begin` and `end` alone, and on nothing that is costly to compute."""
        seen, todo = set[ir.Value](), [value]
        while todo:
            of = todo.pop()
            if of in seen or of in (self.begin, self.end) or isinstance(of.owner, ir.Block):
                continue
            seen.add(of)
            op = of.owner.operation
            if op.name == "tile.program_id":
                if depends_on_block(of):
                    return False
            elif op.name.startswith("arith."):
                todo += op.operands
            elif op.name != "memref.dim":
                return False
        return True


def rows_of(kernel: ir.Operation) -> RowInterval | None:
    """The rows of a kernel's programs; None where programs use their number for anything else."""
    numbers = [op for op in operations(body(kernel)) if op.name == "tile.program_id" and depends_on_block(op.results[0])]
    users = [use.owner.operation for op in numbers for use in op.results[0].uses]
    if len(numbers) != 1 or len(users) != 1 or users[0].name != "arith.muli":
        return None
    begin, size = users[0].results[0], constant(users[0].operands[1])
    ends = [use.owner.operation for use in begin.uses if _adds(use.owner.operation, begin, size)]
    if len(ends) != 1 or not isinstance(size, int):
        return None
    users = [use.owner.operation for use in ends[0].results[0].uses]
    if len(users) != 1 or users[0].name != "arith.minsi":
        return None
    length = next(value for value in users[0].operands if value != ends[0].results[0])
    return RowInterval(begin, users[0].results[0], length, size)


def _adds(op: ir.Operation, begin: ir.Value, size: int | float | None) -> bool:
    return op.name == "arith.addi" and op.operands[0] == begin and constant(op.operands[1]) == size


def later_rows_see_more(rows: RowInterval | None, steps: list[KvStep]) -> bool:
    """Whether the last key that a program sees depends on its rows."""
    end = list(steps[-1].loop.operands)[1]
    return rows is not None and rows.decides(end) and depends_on_block(end)
