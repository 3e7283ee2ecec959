"""Adds what grows with the places of rows, as ALiBi's terms of queries, to their numbers on the way to shared memory."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.facts import wanted
from attn_mlir.backends.nvidia.forming.maps import constant_beside, is_free
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.backends.nvidia.passes.scale_rows import change_copies, read_all, scale_copy
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, maker, makers_in


@dataclass(frozen=True)
class _Sloped:
    """What a map makes of a number of a row: `factor` times it, and `slope` times the row's place in its tile, but no more than `most`."""

    factor: ir.Attribute
    most: ir.Attribute
    slope: ir.Value
    map_: ir.Operation
    result: ir.Value


@dataclass(frozen=True)
class SlopeRows(Pass):
    """Where all maps multiply the numbers of rows that a copy brings (`warp.copy_rows_async`) by the same constant, add a number of the
    tile, the same in each, times the row's place, and bound the sum by the same constant from above, the copy does all that
    (`warp.copy_rows_scaled`), and maps read the sum. The number of the tile, such as a head's slope, is computed before the copy.

    It comes after `warp-stage-rows`, while copies and maps stand in one role. `warp-scale-rows` moves such copies behind all that their
    blocks copy otherwise. A kernel stays as it is, with the reason in `warp.refused`, where `warp.schedule` has `scale` = 0, sequences
    are packed, no copy brings such numbers, or maps make different things of them.
    """

    name = "warp-slope-rows"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _slope)
        return True


def _slope(kernel: ir.Operation) -> None:
    if not wanted(kernel, "scale"):
        raise Refused("the schedule says that maps scale numbers of rows")
    if "tile.kernel" in kernel.attributes:
        raise Refused("past the end of a packed sequence there are rows of others")
    change_copies(kernel, _change)


def _change(buffer: ir.Value, copies: list[ir.Operation]) -> None:
    """Lets the copies of a buffer's numbers add terms of places. Raises Refused, with nothing changed."""
    read = read_all(buffer, copies, _read)
    found = [each for _, each in read]
    of_each = [[each for each in found if _beside(copy, each.map_)] for copy in copies]
    if any(len(each) != 1 for each in of_each) or len(copies) != len(found):
        raise Refused("numbers of rows are read by other maps than that of the block that copies them")
    needed = [_needed(each) for each in found]
    for load, each in read:
        each.result.replace_all_uses_with(load.results[0])
    for copy, (each,) in zip(copies, of_each, strict=True):
        with copy.location, ir.InsertionPoint(copy):
            known: dict[ir.Value, ir.Value] = {}
            for op in needed[found.index(each)]:
                clone_op(op, known)
            scale_copy(copy, known.get(each.slope, each.slope), each.factor, each.most)


def _beside(copy: ir.Operation, map_: ir.Operation) -> bool:
    """Whether a copy stands in a condition, or not, of the block in which a map stands."""
    above = copy
    while above.block != map_.block:
        if above.parent is None or above.parent.operation.name == "warp.role":
            return False
        above = above.parent.operation
    return True


def _needed(each: _Sloped) -> list[ir.Operation]:
    """The ops beside a map that make its slope, in order. Raises Refused where they compute with what changes meanwhile."""
    needed = makers_in(each.map_.block, [each.slope])
    if not all(is_free(op) for op in needed):
        raise Refused("a slope is made of something else than numbers")
    return needed


def _read(load: ir.Operation) -> _Sloped:
    """What becomes of a number. Raises Refused where that is something else."""
    map_ = load.parent.operation if load.parent is not None else load
    uses = [use.owner.operation for use in load.results[0].uses] if load.name == "memref.load" and map_.name == "warp.map" else []
    factor = constant_beside(uses[0], load.results[0], "arith.mulf") if len(uses) == 1 else None
    sums = [use.owner.operation for use in uses[0].results[0].uses] if factor is not None else []
    slope = _slope_of(sums[0], uses[0].results[0], map_) if len(sums) == 1 and sums[0].name == "arith.addf" else None
    after = [use.owner.operation for use in sums[0].results[0].uses] if slope is not None else []
    most = constant_beside(after[0], sums[0].results[0], "arith.minimumf") if len(after) == 1 else None
    if factor is None or slope is None or most is None:
        raise Refused("a map makes something else of a number of its rows than a bounded sum with a term of its place")
    return _Sloped(factor, most, slope, map_, after[0].results[0])


def _slope_of(added: ir.Operation, number: ir.Value, map_: ir.Operation) -> ir.Value | None:
    """What the place of a map's column is multiplied with in the other term of a sum; None where that is something else."""
    block = map_.regions[0].blocks[0]
    others = [value for value in added.operands if value != number]
    product = maker(others[0], "arith.mulf") if len(others) == 1 else None
    for slope, place in [tuple(product.operands), tuple(product.operands)[::-1]] if product is not None else []:
        made = maker(slope)
        if (made is None or made.block != block) and slope not in list(block.arguments) and _is_place(place, block.arguments[1]):
            return slope
    return None


def _is_place(value: ir.Value, column: ir.Value) -> bool:
    """Whether a float is the place of a column, or that of the last one which exists."""
    cast = maker(value, "arith.sitofp")
    whole = maker(cast.operands[0], "arith.index_cast") if cast is not None else None
    if whole is None:
        return False
    least = maker(whole.operands[0], "arith.minsi")
    last = [maker(other, "arith.maxsi") for other in least.operands if other != column] if least is not None else []
    clamped = least is not None and column in list(least.operands) and len(last) == 1 and last[0] is not None
    return whole.operands[0] == column or clamped
