"""Products with a common factor, one after the other: where they are apart, the factor takes shared memory all the time between them."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.attributes import grid_kind
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all

_SOLVE, _DOT = "tile.solve_unit", "tile.dot"
_MOVED = ("tile.map", "tile.load", "tile.dot", "tile.fill", "memref.load", "memref.dim")


@dataclass(frozen=True)
class GatherProducts(Pass):
    """In chunk scans that solve systems: moves a product up to the first one of its block that has a factor in common with it.

    Where key channels have decays, the pairs of a chunk are a product for every distance between them, for q and for the key that is
    erased. Both take k with the same decays: without this pass k lies in shared memory once for every distance till the second half of
    the chunk. What a product needs moves with it, if that has no effects and is made by ops of the same block.
    """

    name = "nvidia-gather-products"

    def run(self, module: ir.Operation) -> bool:
        for kernel in find_all(module, "func.func"):
            if "tile.kernel" in kernel.attributes and grid_kind(kernel) == "chunks" and find_all(kernel, _SOLVE):
                for product in find_all(kernel, _DOT):
                    _gather(product)
        return True


def _gather(product: ir.Operation) -> None:
    """Moves the later products of a tile that is made for products to the first of them, in their order."""
    last = product
    for factor in product.operands:
        for other in _others(factor, product):
            needed = _needed(other, last)
            if needed is None:
                continue
            for op in needed:
                op.move_after(last)
                last = op


def _others(factor: ir.Value, product: ir.Operation) -> list[ir.Operation]:
    """The products of a factor after one of them, in the order of their block."""
    users = [use.owner.operation for use in factor.uses]
    found = list(dict.fromkeys(user for user in users if user.name == _DOT and user != product and user.block == product.block))
    order = _order(product.block)
    return sorted((user for user in found if order[user] > order[product]), key=order.__getitem__)


def _needed(op: ir.Operation, last: ir.Operation) -> list[ir.Operation] | None:
    """What has to move behind `last`, with `op` at the end, so that `op` can; None where something has to stay where it is."""
    order, wanted, found = _order(op.block), [op], {op}
    while wanted:
        current = wanted.pop()
        for value in _read(current):
            maker = None if isinstance(value.owner, ir.Block) else value.owner.operation
            if maker is None or maker.block != op.block or maker in found or order[maker] <= order[last]:
                continue
            if maker.name not in _MOVED and not maker.name.startswith(("arith.", "math.")):
                return None
            found.add(maker)
            wanted.append(maker)
    return sorted(found, key=order.__getitem__)


def _read(op: ir.Operation) -> list[ir.Value]:
    """What an op reads, also in its region."""
    inner = [view.operation for region in op.regions for block in region.blocks for view in block.operations]
    return [*op.operands, *(value for each in inner for value in _read(each))]


def _order(block: ir.Block) -> dict[ir.Operation, int]:
    return {view.operation: number for number, view in enumerate(block.operations)}
