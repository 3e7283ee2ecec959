"""Which code generator makes a kernel: `chunks` chunk scans, `mfma` other kernels with matrix products, `simt` those without any."""

from attn_mlir.backends.amd.target import TARGETS
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.emitters import Emitters
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.mlir import ir

EMITTERS = Emitters("amd", "attn_mlir.backends.amd", ("chunks", "mfma", "simt"), TARGETS, pages=("mfma",))


def plan(kernel: ir.Operation) -> Fields:
    """See `Emitters.plan`."""
    return EMITTERS.plan(kernel)


def emit(kernel: ir.Operation) -> KernelCode:
    """See `Emitters.emit`."""
    return EMITTERS.emit(kernel)
