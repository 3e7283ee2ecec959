"""Numbers of rows that maps of a chunk scan compute, in maps of their own."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.prepared import PREPARED
from attn_mlir.backends.gpu.scalars import dependence, frontier
from attn_mlir.backends.gpu.structure import body, operations
from attn_mlir.dialects.tile import build
from attn_mlir.mlir import ir, tensor
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker

_READ = ("memref.load", "tensor.extract")


@dataclass(frozen=True)
class NumberRows(Pass):
    """In scans of prepared chunks (`nvidia-prepare-chunks`): what a map of a tile computes for a whole row becomes a map of one dimension.

    Warps that help make such numbers while the others multiply; in the map each thread would make them for each of its rows, between two
    products. A number that is only read stays where it is.
    """

    name = "nvidia-number-rows"
    after = "cse"

    def run(self, module: ir.Operation) -> bool:
        for function in find_all(module, "func.func"):
            if PREPARED not in function.attributes:
                continue
            for loop in find_all(function, "scf.for"):
                for op in [op for op in operations(body(loop)) if op.name == "tile.map" and len(list(op.operands)) == 2]:
                    move_rows(op)
        return True


def move_rows(op: ir.Operation, read: bool = False) -> None:
    """Moves what a map of a tile makes for a whole row to maps before it; with `read`, what it only reads in memory, too."""
    block = body(op)
    kept = ("tensor.extract",) if read else _READ
    for value in [value for value in frontier(block, dependence(block), frozenset({0})) if _is_made(value, kept)]:
        made = _numbers(op, value)
        with value.owner.operation.location, ir.InsertionPoint(value.owner.operation):
            value.replace_all_uses_with(tensor.ExtractOp(made, [block.arguments[0]]).result)
    for each in reversed(operations(block)):  # what nothing needs any more would count as read
        if list(each.results) and not any(list(result.uses) for result in each.results):
            each.erase()


def _numbers(op: ir.Operation, value: ir.Value) -> ir.Value:
    """The tile of a value of a map for all rows, made before it."""
    block, size = body(op), ir.RankedTensorType(op.results[0].type).shape[0]
    needed = [each for each in operations(block) if _serves(each, value)]

    def numbers(i: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
        mapping: dict[ir.Value, ir.Value] = {block.arguments[0]: i}
        for each in needed:
            clone_op(each, mapping)
        return [mapping[value]], []

    with op.location, ir.InsertionPoint(op):
        return build.map_([op.operands[0]], [ir.RankedTensorType.get([size], value.type)], [], [], numbers)[0][0]


def _is_made(value: ir.Value, kept: tuple[str, ...]) -> bool:
    return isinstance(value.type, ir.F32Type) and maker(value, *kept) is None


def _serves(op: ir.Operation, value: ir.Value) -> bool:
    """Whether an op of a map is needed for a value of it."""
    if value in list(op.results):
        return True
    return any(
        use.owner.operation.block == op.block and _serves(use.owner.operation, value) for result in op.results for use in result.uses
    )
