"""The numbers in kernels for NVIDIA GPUs."""

from dataclasses import dataclass, replace

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.nvidia.target import HOPPER, TARGETS
from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.tiling.numerics import Numerics, WriteNumerics


@dataclass(frozen=True)
class NvidiaNumerics(WriteNumerics):
    """Gives functions that become kernels their `tile.numerics`.

    Sums of log decays are f64 where inputs have 32 bits, and f32 beside 16-bit inputs, which need no more. Products take 8-bit numbers as
    they are, where attention has such inputs and the GPU instructions for them.
    """

    name = "nvidia-numerics"
    numerics = Numerics(prefix="wider", sub_chunk=4, sub_chunk_keys=1)

    def of(self, function: ir.Operation) -> Numerics:
        target = TARGETS.get(str(attributes.read(function, attributes.CHOICES).get("arch", HOPPER.arch)))
        eight_bit = any(is_eight_bit(value.type.element_type) for op in find_all(function, "attn.online") for value in op.operands)
        return replace(self.numerics, narrow=target.eight_bit) if eight_bit and target is not None and target.eight_bit else self.numerics
