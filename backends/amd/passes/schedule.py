"""The schedule of one kernel for AMD GPUs."""

from attn_mlir.backends.amd import codegen
from attn_mlir.backends.gpu import attributes
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


def schedule(kernel: ir.Operation) -> bool:
    """Attaches `tile.schedule`: which code generator makes the kernel, and what it decided."""
    try:
        fields = codegen.plan(kernel)
    except (UnsupportedError, ValueError) as error:
        kernel.location.emit_error(f"tile-schedule: {error}")
        return False
    kernel.attributes[attributes.SCHEDULE] = attributes.write(fields)
    return True
