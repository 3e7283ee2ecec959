"""The schedule of one kernel for NVIDIA GPUs."""

from attn_mlir.backends.gpu import emitters
from attn_mlir.backends.nvidia import codegen
from attn_mlir.mlir import ir


def schedule(kernel: ir.Operation) -> bool:
    """Attaches `tile.schedule`: which code generator makes the kernel, and what it decided."""
    return emitters.schedule(kernel, codegen.plan)
