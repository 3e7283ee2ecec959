"""Running maxima that move only when they have to."""

import itertools
import math
from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.degrees import Degrees, Mismatch
from attn_mlir.backends.gpu.passes.scaling import unnamed
from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.dialects.regions import element_of, maker, yielded
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.simplification.folding import number as number_of

ROOM = 6
"""What weights that have other factors than exponentials may exceed themselves by, as a power of two."""

FREE = "gpu.free"
"""Attribute of the `arith.maximumf` that makes a running maximum in whose place any number near it does."""


FREE_REFERENCE = "attn.free_reference"
"""Attribute of a module whose results are partial: the maximum may be any number, which is stored with what goes with it."""


@dataclass(frozen=True)
class LazyRescale(Pass):
    """Keeps a running maximum while it would grow by no more than `slack` log 2: accumulators then need no rescaling.

    With `scale-log2` = k, the reference is lower than the maximum by k log 2, so that weights are scaled by 2^k and reach up to
    2^(k + slack): for targets that take small 16-bit numbers as zeros. Kernels where it is so get the attribute `tile.scale_log2`.

    Where f16 weights are more than exponentials below the maximum, times scores say, both together are no more than `ROOM`, so that
    such factors may reach 65504 / 2^ROOM.

    Any number may take the maximum's place when everything that is stored is the same for all of them: weights, sums and accumulators have
    a factor exp(-max), and what is made of them at the end does not. That is checked for each loop; others stay as they are. In a module
    with the attribute `attn.free_reference` sums and accumulators are stored as they are, with the number that they go with.

    Weights that are rounded to 8 bits are scaled so that the largest one fits (`attn-fit-range`), which leaves no room above the maximum.
    With `narrow` = k, the reference is k log 2 above the maximum: weights are at most 2^-k, so that a maximum of before will do, too.
    Without it their kernels stay as they are.
    """

    name = "gpu-lazy-rescale"
    slack: int = 8
    scale_log2: int = 0
    narrow: int = 0

    def run(self, module: ir.Operation) -> bool:
        for kernel in [op for op in find_all(module, "func.func") if "tile.kernel" in op.attributes]:
            eight_bit = any(is_eight_bit(op.results[0].type) for op in find_all(kernel, "arith.truncf"))
            if eight_bit and not self.narrow:
                continue  # their scale leaves no room above the maximum
            block, partial = kernel.regions[0].blocks[0], FREE_REFERENCE in module.attributes
            loops = [view.operation for view in block.operations if view.operation.name == "scf.for"]
            for number in range(len(list(loops[0].operands)) - 3) if loops else []:
                maxima = [_maximum(loop, number) for loop in loops]
                if all(op is not None for op in maxima) and _free(block, loops, number, [op for op in maxima if op is not None], partial):
                    slack, scale = (self.slack, self.scale_log2) if all(map(_bounded, loops)) else _with_room(self.slack, self.scale_log2)
                    if eight_bit:
                        slack, scale = 0, -self.narrow
                    if scale > 0:
                        kernel.attributes["tile.scale_log2"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64, module.context), scale)
                    for op in maxima:
                        if op is not None:
                            _keep(op, slack * math.log(2.0), scale * math.log(2.0))
        return True


def _maximum(loop: ir.Operation, number: int) -> ir.Operation | None:
    """The op that makes the new value of a carried number, if it is the larger one of the old value and another."""
    body = loop.regions[0].blocks[0]
    if number + 1 >= len(list(body.arguments)):
        return None
    argument, value = list(body.arguments)[number + 1], yielded(body)[number]
    map_ = maker(value, "tile.map")
    if map_ is None or len(list(map_.regions[0].blocks[0].arguments)) != 1:
        return None
    op = maker(element_of(value), "arith.maximumf")
    return op if op is not None and isinstance(op.result.type, ir.F32Type) and _reads(op.operands[0], argument) else None


def _reads(value: ir.Value, tile: ir.Value) -> bool:
    read = maker(value, "tensor.extract")
    return read is not None and read.operands[0] == tile


def _free(block: ir.Block, loops: list[ir.Operation], number: int, maxima: list[ir.Operation], partial: bool) -> bool:
    """Whether nothing that is stored depends on which number is carried as the maximum, or (`partial`) it is what goes with the number."""
    carried = len(list(loops[0].operands)) - 3
    for later, before in zip(loops[1:], loops, strict=False):
        if list(later.operands)[3:] != list(before.results):
            return False
    for guess in itertools.product((-1.0, 0.0), repeat=carried - 1):
        powers = [*guess[:number], 1.0, *guess[number:]]
        try:
            for loop, maximum in zip(loops, maxima, strict=True):
                Degrees(number, powers, maximum).loop(loop)
            Degrees(number, powers, None).rest(block, loops, partial)
        except Mismatch:
            continue
        return True
    return False


def _with_room(slack: int, scale: int) -> tuple[int, int]:
    """Less of both, so that they are `ROOM` together."""
    less = min(slack, ROOM // 3 if scale else ROOM)
    return less, min(scale, ROOM - less)


def _bounded(loop: ir.Operation) -> bool:
    """Whether all weights of f16 are exponentials and nothing else: those of differences to a maximum are at most 1."""
    rounded = [op for op in find_all(loop, "arith.truncf") if isinstance(op.results[0].type, ir.F16Type)]
    return all(_is_exponential(op.operands[0]) for op in rounded)


def _is_exponential(value: ir.Value) -> bool:
    if isinstance(value.owner, ir.Block):
        return False
    op = value.owner.operation
    if op.name == "arith.select":
        return all(_is_exponential(v) or number_of(v) == 0.0 for v in list(op.operands)[1:])
    if op.name == "tensor.extract":
        made = op.operands[0].owner
        return not isinstance(made, ir.Block) and made.operation.name == "tile.map" and _is_exponential(element_of(op.operands[0]))
    return op.name in ("math.exp", "math.exp2")


def _keep(op: ir.Operation, slack: float, scale: float) -> None:
    """Takes the old value where the new one is not larger by more than `slack`; both are lower than the maximum by `scale`."""
    op.attributes[FREE] = ir.UnitAttr.get(op.context)
    old, new = op.operands[0], op.result
    if scale:
        with ir.InsertionPoint(op), unnamed(op.location):
            lower = arith.ConstantOp(new.type, ir.FloatAttr.get(new.type, scale)).result
            op.operands[1] = arith.SubFOp(op.operands[1], lower).result
    with ir.InsertionPoint.after(op), unnamed(op.location):
        limit = arith.ConstantOp(new.type, ir.FloatAttr.get(new.type, slack)).result
        growth = arith.SubFOp(new, old).result
        near = arith.CmpFOp(ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 5), growth, limit).result
        kept = arith.SelectOp(near, old, new, loc=op.location)
    for use in list(new.uses):
        user = use.owner.operation
        if user not in (kept.operation, growth.owner.operation):
            user.operands[use.operand_number] = kept.result
