"""Leaves out multiplications of a tile by 1, a warp at a time."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.refusal import Refused, applied, refuse
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.layouts import fragment
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker


@dataclass(frozen=True)
class ConditionalRescale(Pass):
    """Lets warps vote before a map that multiplies a tile by values of its rows: where these are 1 in all of a warp's rows, it does not.

    In exact terms nothing changes, as x times 1 is x. It pays where a running maximum moves seldom, so that factors are 1
    (`gpu-lazy-rescale`). Maps whose condition is asked for already, in `warp.each_warp`, stay. Without such a map the kernel stays as it
    is, with the reason in `warp.refused`.
    """

    name = "warp-conditional-rescale"

    def run(self, module: ir.Operation) -> bool:
        for kernel in find_all(module, "warp.kernel"):
            found = [(op, factors) for op in find_all(kernel, "warp.map") for factors in _factors(op)]
            for op, factors in found:
                _ask(op, *factors)
            if found:
                applied(kernel, self.name)
            else:
                refuse(kernel, self.name, Refused("no map multiplies a tile by values of its rows"))
        return True


def _factors(op: ir.Operation) -> list[tuple[ir.Value, ir.Value]]:
    """The tile and the row values that a map multiplies and does nothing else with; empty for other maps."""
    block = op.regions[0].blocks[0]
    ops = [view.operation for view in block.operations]
    product = maker(ops[-1].operands[0], "arith.mulf") if len(list(ops[-1].operands)) == 1 else None
    reads = [maker(value, "tensor.extract") for value in product.operands] if product is not None else []
    sources = [read.operands[0] for read in reads if read is not None]
    forms = {found.form: source for source in sources if (found := fragment(source.type)) is not None}
    if len(ops) != 4 or set(forms) != {"tile", "rows"} or forms["tile"].type != op.results[0].type or _is_asked(op):
        return []
    return [(forms["tile"], forms["rows"])]


def _is_asked(op: ir.Operation) -> bool:
    above = op.parent
    while above is not None and above.operation.name != "warp.each_warp":
        above = above.operation.parent
    return above is not None


def _ask(op: ir.Operation, tile: ir.Value, rows: ir.Value) -> None:
    """Puts a vote around a map."""
    type_, flags = ir.RankedTensorType(tile.type), ir.RankedTensorType(rows.type)
    with op.location, ir.InsertionPoint(op):
        each = ir.Operation.create(
            "warp.each_warp", results=[type_], attributes={"resultSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0, 0])}, regions=1
        )
        with ir.InsertionPoint(each.regions[0].blocks.append()):
            bit = ir.IntegerType.get_signless(1)
            one = arith.ConstantOp(flags.element_type, 1.0).result

            def changes(i: ir.Value) -> list[ir.Value]:
                factor = ir.Operation.create("tensor.extract", results=[flags.element_type], operands=[rows, i]).result
                return [arith.CmpFOp(arith.CmpFPredicate.UNE, factor, one).result]

            marked = build.map_(flags.shape, [ir.RankedTensorType.get(flags.shape, bit, flags.encoding)], [""], changes)
            some = build.op("vote", marked, [bit]).result
            branch = ir.Operation.create("scf.if", results=[type_], operands=[some], regions=2)
            with ir.InsertionPoint(branch.regions[0].blocks.append()):
                ir.Operation.create("scf.yield", operands=[clone_op(op, {}).results[0]])
            with ir.InsertionPoint(branch.regions[1].blocks.append()):
                ir.Operation.create("scf.yield", operands=[tile])
            build.yield_([branch.results[0]])
    op.results[0].replace_all_uses_with(each.results[0])
    op.erase()
