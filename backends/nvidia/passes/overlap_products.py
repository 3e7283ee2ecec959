"""Overlaps the products of a loop with what is computed between them."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.refusal import change_kernels, change_parts
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
        change_kernels(module, self.name, _overlap)
        return True


def _overlap(kernel: ir.Operation) -> None:
    loops = [op for op in find_all(kernel, "scf.for") if _multiplies(op)]
    change_parts(loops, lambda loop: rotate(parts_of(loop)), "no loop multiplies")


def _multiplies(loop: ir.Operation) -> bool:
    """Whether products stand directly in a loop."""
    return any(view.operation.name == "warp.mma_async" for view in loop.regions[0].blocks[0].operations)
