"""Rounds weights in a map of their own, which waits for the product that reads the weights before."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.lazy_rescale import FREE
from attn_mlir.backends.nvidia.forming import maps
from attn_mlir.backends.nvidia.forming.dropped import before_dropout
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.dialects.warp.kinds import settled
from attn_mlir.dialects.warp.layouts import fragment
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker, walk

_LONG = 64
"""Columns of an accumulator from which on a product lasts long enough. With 64 sigmoid gained 1 to 2 % at 4096 positions and more."""


@dataclass(frozen=True)
class RoundLate(Pass):
    """In loops, a map that makes the first factor of a product in 8 bits, among other things, makes it in f32, and another map rounds it.
    In 16 bits, too, where a loop of two products adds the second one to 64 columns or more, and carries no maximum for which any number
    may stand (`gpu.free`): there `warp-stale-maximum` does it.

    `warp-overlap-products` then puts the wait for the product before between the two: exponentials are computed while it is in flight,
    and only the registers that it reads are written after it. A kernel that has such products stays as it is, with the reason in
    `warp.refused`, where no map makes their factor.
    """

    name = "warp-round-late"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _split)
        return True


def _split(kernel: ir.Operation) -> None:
    products = [
        op
        for op in find_all(kernel, "warp.mma_async")
        if _in_loop(op) and not _is_free(op) and (_is_narrow(op.operands[1]) or _is_long(op))
    ]
    if products:
        change_parts(products, _change, "no map makes the first factor")


def _is_long(product: ir.Operation) -> bool:
    """Whether a product of 16-bit weights lasts long enough to compute others meanwhile."""
    loop = product.parent.operation if product.parent is not None else product
    tile = fragment(settled(product.results[0].type))
    second = len(find_all(loop, "warp.mma_async")) == 2 and product.operands[0] in list(loop.regions[0].blocks[0].arguments)
    return second and tile is not None and tile.shape[1] >= _LONG and fragment(product.operands[1].type) is not None


def _is_free(product: ir.Operation) -> bool:
    """Whether the loop of a product carries a maximum for which any number may stand."""
    loop = product.parent.operation if product.parent is not None else product
    return any(op.name == "arith.maximumf" and FREE in op.attributes for op in walk(loop))


def _is_narrow(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and is_eight_bit(value.type.element_type)


def _in_loop(op: ir.Operation) -> bool:
    return op.parent is not None and op.parent.operation.name == "scf.for"


def _change(product: ir.Operation) -> None:
    """Splits what makes the first factor of a product. Raises Refused, with nothing changed."""
    factor = before_dropout(product.operands[1])
    made = maker(factor, "warp.map", "scf.if")
    if made is None or made.block != product.block:
        raise Refused("no map of the loop makes the first factor")
    number = ir.OpResult(factor).result_number
    rounded = _rounded(made, number)
    type_ = ir.RankedTensorType(factor.type)
    with made.location:
        wide = ir.RankedTensorType.get(type_.shape, ir.F32Type.get(), type_.encoding)
    for map_, place in rounded:
        last = map_.regions[0].blocks[0].operations[-1].operation
        last.operands[place] = last.operands[place].owner.operation.operands[0]
        map_.results[place].set_type(wide)
    factor.set_type(wide)
    uses = [(use.owner.operation, use.operand_number) for use in factor.uses]
    with made.location, ir.InsertionPoint.after(made):
        narrow = maps.narrowed(factor, type_.element_type)
    for op, operand in uses:
        op.operands[operand] = narrow


def _rounded(made: ir.Operation, number: int) -> list[tuple[ir.Operation, int]]:
    """The maps that make a result, and which of theirs it is; all of them round it."""
    found = [(made, number)]
    if made.name == "scf.if":
        yields = [region.blocks[0].operations[-1].operation.operands[number] for region in made.regions]
        found = [(map_, ir.OpResult(v).result_number) for v in yields if (map_ := maker(v, "warp.map")) is not None and map_.parent == made]
        if len(found) != len(yields):
            raise Refused("a branch makes the first factor in no map")
    for map_, place in found:
        last = map_.regions[0].blocks[0].operations[-1].operation
        value = maker(last.operands[place], "arith.truncf")
        if value is None or not isinstance(value.operands[0].type, ir.F32Type):
            raise Refused("a map makes the first factor without rounding an f32")
        if len(list(map_.results[place].uses)) != 1 and map_ != made:
            raise Refused("something else reads what a branch has rounded")
    return found
