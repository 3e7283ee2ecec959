"""Takes the blocks of a pass over keys from the last one to the first."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.lazy_rescale import FREE
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker, walk


@dataclass(frozen=True)
class ReverseKeys(Pass):
    """Counts a loop down that carries a maximum for which any number may stand (`gpu.free`), where scores have terms that positions make.

    Such terms, as those of ALiBi, mostly grow towards the diagonal, which the last block of keys is nearest to: from there on the maximum
    of a row stays what it is, and `warp-stale-maximum` has nothing to do again. Without them either order does, and the first was as fast.

    A kernel stays as it is, with the reason in `warp.refused`, where no loop counts from 0 in ones and carries such a maximum
    (`warp-join-loops` makes such loops), or none of its scores is made of positions.
    """

    name = "warp-reverse-keys"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _reverse)
        return True


def _reverse(kernel: ir.Operation) -> None:
    change_parts(find_all(kernel, "scf.for"), _change, "there is no loop")


def _change(loop: ir.Operation) -> None:
    if not (_is(loop.operands[0], 0) and _is(loop.operands[2], 1)):
        raise Refused("no loop counts from 0 in ones")
    maps = [view.operation for view in loop.regions[0].blocks[0].operations if view.operation.name in ("warp.map", "scf.if")]
    inner = [op for map_ in maps for op in walk(map_)]
    if not any(op.name == "arith.maximumf" and FREE in op.attributes for op in inner):
        raise Refused("no loop carries a maximum for which any number may stand")
    if not any(op.name in ("arith.sitofp", "arith.uitofp") for op in inner):
        raise Refused("scores are made of no positions")
    body = loop.regions[0].blocks[0]
    count = body.arguments[0]
    uses = [(use.owner.operation, use.operand_number) for use in count.uses]
    with loop.location, ir.InsertionPoint(loop):
        last = arith.SubIOp(loop.operands[1], build.index(1)).result
    with loop.location, ir.InsertionPoint.at_block_begin(body):
        place = arith.SubIOp(last, count).result
    for op, operand in uses:
        op.operands[operand] = place


def _is(value: ir.Value, wanted: int) -> bool:
    made = maker(value, "arith.constant")
    return made is not None and ir.IntegerAttr(made.attributes["value"]).value == wanted
