"""Which code generator makes a kernel: `mfma` prints kernels with matrix products, `simt` kernels without any."""

from attn_mlir.backends.amd.target import TARGETS
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.emitters import Emitters
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.mlir import ir

EMITTERS = Emitters("amd", "attn_mlir.backends.amd", ("mfma", "simt"), TARGETS)


def plan(kernel: ir.Operation) -> Fields:
    """See `Emitters.plan`."""
    return EMITTERS.plan(kernel)


def emit(kernel: ir.Operation) -> KernelCode:
    """See `Emitters.emit`."""
    return EMITTERS.emit(kernel)
