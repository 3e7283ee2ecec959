"""Overlaps the products of a loop with what is computed between them."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.refusal import Refused, applied, refuse
from attn_mlir.backends.nvidia.forming.rotation import parts_of, rotate
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all


@dataclass(frozen=True)
class OverlapProducts(Pass):
    """Lets the product that adds to what a loop carries run one iteration later, in flight together with the first one of the next.

    A loop of two products, of which the second one's accumulator and ring are carried by it alone, becomes: the first product and what
    follows of it for the first iteration; then, in the loop, the first product is started, the second one of the iteration before is
    started, and what follows of the first is computed while the second is in flight; behind the loop, the last second product. What the
    second product takes from the first (weights, factors of rows) is carried. A loop without iterations gives what it starts with.

    Where no loop has this form, the kernel stays as it is, with the reason of the last one in `warp.refused`.
    """

    name = "warp-overlap-products"

    def run(self, module: ir.Operation) -> bool:
        for kernel in find_all(module, "warp.kernel"):
            loops = [op for op in find_all(kernel, "scf.for") if _multiplies(op)]
            changed, reason = False, Refused("no loop multiplies")
            for loop in loops:
                try:
                    rotate(parts_of(loop))
                    changed = True
                except Refused as why:
                    reason = why
            if changed:
                applied(kernel, self.name)
            else:
                refuse(kernel, self.name, reason)
        return True


def _multiplies(loop: ir.Operation) -> bool:
    """Whether products stand directly in a loop."""
    return any(view.operation.name == "warp.mma_async" for view in loop.regions[0].blocks[0].operations)
