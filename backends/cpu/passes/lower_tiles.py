"""Lowers scheduled kernels to vector, scf and llvm."""

from dataclasses import dataclass

from attn_mlir.backends.cpu.lowering.kernel import lower_kernel
from attn_mlir.backends.cpu.target import host
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all


@dataclass(frozen=True)
class LowerTiles(Pass):
    """Replaces every kernel scheduled for the CPU by a worker function that runs programs of its grid."""

    name = "cpu-lower-tiles"

    def run(self, module: ir.Operation) -> bool:
        for kernel in [op for op in find_all(module, "func.func") if "tile.kernel" in op.attributes]:
            if "tile.buffers" not in kernel.attributes:
                kernel.location.emit_error(f"{self.name}: the kernel is not scheduled; run tile-schedule{{target=cpu}} first")
                return False
            lower_kernel(kernel, host())
        return True
