"""Which code generator makes a kernel.

`warp` prints what the passes of the `warp` dialect form, where elements have 8 bits, it is asked for by name, or its kernels were measured
to be no slower (`warp/preferred.py`); `hopper` prints CUDA C++ with a hand-made schedule for matrix products, `simt` plain CUDA for kernels
without any, `scans` that of delta rules, `tilelang` TileLang programs for every kernel.
"""

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.emitters import Emitters
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.target import TARGETS
from attn_mlir.backends.nvidia.warp.preferred import preferred
from attn_mlir.mlir import ir

EMITTERS = Emitters(
    "nvidia",
    "attn_mlir.backends.nvidia",
    ("warp", "hopper", "simt", "scans", "tilelang"),
    TARGETS,
    pages=("hopper", "warp"),
    packed_order=("hopper", "warp"),
)


def plan(kernel: ir.Operation) -> Fields:
    """See `Emitters.plan`."""
    fields = EMITTERS.plan(kernel)
    return fields if "emitter" in attributes.read(kernel, attributes.CHOICES) else preferred(kernel, fields)


def emit(kernel: ir.Operation) -> KernelCode:
    """See `Emitters.emit`."""
    return EMITTERS.emit(kernel)
