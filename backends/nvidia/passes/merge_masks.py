"""Makes one mask of what a mask removes from a tile of scores, and what lies past the end of a block."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.maxima import is_running_maximum
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker

_LEAST = -3.4e38
"""No finite float of a reduction's start is above it."""


@dataclass(frozen=True)
class MergeMasks(Pass):
    """Where a map makes a tile of scores, -inf where a mask removes them, and the largest of those that lie in the block, the tile is -inf
    past the end of the block, too, and the largest is that of the tile.

    Exponentials of the tile are then 0 there by themselves, as is every sum of them: maps that make them, of numbers that are not larger
    than the largest float, select no more. A kernel stays as it is, with the reason in `warp.refused`, where no map makes such a tile, or
    something reads it without asking where the block ends.
    """

    name = "warp-merge-masks"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _merge)
        return True


def _merge(kernel: ir.Operation) -> None:
    maps = [op for op in find_all(kernel, "warp.map") if _kinds(op) == ["", "max"]]
    change_parts(maps, _change, "no map makes a tile and its largest elements")


def _kinds(map_: ir.Operation) -> list[str]:
    return [ir.StringAttr(kind).value for kind in map_.attributes["reductions"]]


def _change(map_: ir.Operation) -> None:
    """Merges the masks of a map. Raises Refused, with nothing changed."""
    last = map_.regions[0].blocks[0].operations[-1].operation
    masked, within = (maker(value, "arith.select") for value in last.operands)
    if masked is None or within is None or not _is_least(masked.operands[2], float("-inf")):
        raise Refused("no mask removes elements of a tile")
    if within.operands[1] != masked.results[0] or not _is_least(within.operands[2], _LEAST):
        raise Refused("the largest element is not that of the tile in its block")
    ends = _guards(map_, within.operands[0])
    with masked.location, ir.InsertionPoint(last):
        both = arith.AndIOp(masked.operands[0], within.operands[0]).result
        merged = arith.SelectOp(both, masked.operands[1], masked.operands[2]).result
    for n in range(2):
        last.operands[n] = merged
    for select in ends:
        if _is_exponential(select.operands[1]) and _is_zero(select.operands[2]):
            select.results[0].replace_all_uses_with(select.operands[1])


def _is_least(value: ir.Value, most: float) -> bool:
    """Whether it is a constant that is not above another one."""
    made = maker(value, "arith.constant")
    return made is not None and ir.FloatAttr(made.attributes["value"]).value <= most


def _is_zero(value: ir.Value) -> bool:
    made = maker(value, "arith.constant")
    return made is not None and ir.FloatAttr(made.attributes["value"]).value == 0.0


def _guards(map_: ir.Operation, condition: ir.Value) -> list[ir.Operation]:
    """The selects by which all that reads a map's tile asks for the same condition. Raises Refused where something does not."""
    found: list[ir.Operation] = []
    for use in map_.results[0].uses:
        read = use.owner.operation
        above = read.parent.operation if read.parent is not None else read
        if read.name != "tensor.extract" or above.name != "warp.map":
            raise Refused("something reads the tile without asking where the block ends")
        todo, last = [read.results[0]], above.regions[0].blocks[0].operations[-1].operation
        while todo:
            for each in todo.pop().uses:
                op = each.owner.operation
                if op.name == "arith.select" and each.operand_number == 1 and _alike(op.operands[0], condition):
                    found.append(op)
                elif op == last or op.name == "arith.select":
                    raise Refused("something reads the tile without asking where the block ends")
                else:
                    todo += op.results
    return list(dict.fromkeys(found))


def _alike(a: ir.Value, b: ir.Value) -> bool:
    """Whether two maps compare the same: places of elements with numbers from outside."""
    ops = [made for value in (a, b) if (made := maker(value, "arith.cmpi")) is not None]
    if len(ops) != 2 or str(ops[0].attributes["predicate"]) != str(ops[1].attributes["predicate"]):
        return False
    return all(_place(x) == _place(y) for x, y in zip(ops[0].operands, ops[1].operands, strict=True))


def _place(value: ir.Value) -> ir.Value | int:
    """Which of a map's indices a number is; itself where it is none."""
    if isinstance(value.owner, ir.Block) and value.owner.owner.operation.name == "warp.map":
        return ir.BlockArgument(value).arg_number
    return value


def _is_exponential(value: ir.Value) -> bool:
    """Whether a number is 0 where the tile's element is -inf: exp(x * positive + y) for a y that is at most a finite number.

    x is the element, or its difference to a running maximum.
    """
    made = maker(value, "math.exp", "math.exp2")
    sum_ = maker(made.operands[0], "math.fma") if made is not None else None
    if sum_ is None:
        return False
    x, difference = sum_.operands[0], maker(sum_.operands[0], "arith.subf")
    if difference is not None and is_running_maximum(difference.operands[1]):
        x = difference.operands[0]
    if maker(x, "tensor.extract") is None:
        return False
    factor, most = maker(sum_.operands[1], "arith.constant"), maker(sum_.operands[2], "arith.minimumf")
    positive = factor is not None and ir.FloatAttr(factor.attributes["value"]).value > 0.0
    limited = most is not None and maker(most.operands[1], "arith.constant") is not None
    return positive and (limited or _is_zero(sum_.operands[2]))
