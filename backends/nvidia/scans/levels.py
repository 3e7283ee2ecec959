"""Which pairs of positions a product is made for, where channels have decays: others read products of other levels."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import yielded
from attn_mlir.backends.nvidia.scans.layout import ScanGrid
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import maker


def warps_of_level(dot: ir.Operation, grid: ScanGrid) -> str:
    """C++: whether a warp's part of a product has pairs of its level; empty where all have, or the product has no level.

    A map takes the product where positions first differ in bit h or a higher one, the next map another one from bit g on. So parts of g
    positions and more beside the diagonal have no pairs that are read, and parts of at most h positions on it have none.
    """
    size = 16 * grid.high
    if size != 8 * grid.wide or grid.down != grid.across or grid.down == 1:
        return ""
    taken = _select(dot.results[0])
    if taken is None or not taken.far:
        return ""
    after = _select(taken.result)
    where = f"warp / {grid.across}", f"warp % {grid.across}"
    if after is not None and not after.far and after.bit <= size:
        return " == ".join(where)
    return " != ".join(where) if taken.bit >= size else ""


@dataclass(frozen=True)
class _Select:
    """How the only map that reads a tile takes its element: where positions differ in `bit` or a higher one, if `far`, or elsewhere."""

    bit: int
    far: bool
    result: ir.Value


def _select(tile: ir.Value) -> _Select | None:
    reads = [use.owner.operation for use in tile.uses]
    if len(reads) != 1 or reads[0].name != "tensor.extract":
        return None
    read, block = reads[0], reads[0].block
    uses = [use.owner.operation for use in read.results[0].uses]
    if len(uses) != 1 or uses[0].name != "arith.select" or list(read.operands)[1:] != list(block.arguments):
        return None
    select, map_ = uses[0], block.owner.operation
    compare = maker(select.operands[0], "arith.cmpi")
    differ = None if compare is None else maker(compare.operands[0], "arith.xori")
    bit = None if compare is None else maker(compare.operands[1], "arith.constant")
    if compare is None or differ is None or bit is None or map_.name != "tile.map" or len(list(block.arguments)) != 2:
        return None
    least = ir.IntegerAttr(compare.attributes["predicate"]).value == int(arith.CmpIPredicate.uge)
    if not least or set(differ.operands) != set(block.arguments) or select.operands[0] in list(select.operands)[1:]:
        return None
    found = [result for value, result in zip(yielded(block), map_.results, strict=False) if value == select.results[0]]
    if len(found) != 1:
        return None
    return _Select(ir.IntegerAttr(bit.attributes["value"]).value, select.operands[1] == read.results[0], found[0])
