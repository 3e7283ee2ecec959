"""Lets the threads of a row add up their parts of a sum once, behind a loop."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.deferring import CarriedSum
from attn_mlir.backends.nvidia.forming.refusal import change_kernels, change_parts
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all


@dataclass(frozen=True)
class DeferSums(Pass):
    """Where an iteration of a loop only scales the row values that it carries, and adds a `warp.reduce` of sums to them, the loop carries
    the parts that threads have, and one `warp.reduce` behind it makes row values of them.

    It saves exchanges between lanes in each iteration, as of the sums of softmax. They begin with zeros, or with a sum of parts, as those
    of a second loop. Where nothing of a loop is of this kind, the kernel stays as it is, with the reason in `warp.refused`.
    """

    name = "warp-defer-sums"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _defer)
        return True


def _defer(kernel: ir.Operation) -> None:
    loops = [(loop, n) for loop in find_all(kernel, "scf.for") for n, result in enumerate(loop.results) if _is_rows(result)]
    change_parts(loops, _change, "no loop carries row values")


def _is_rows(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and len(ir.RankedTensorType(value.type).shape) == 1


def _change(place: tuple[ir.Operation, int]) -> None:
    carried = CarriedSum(*place)
    carried.check()
    carried.defer()
