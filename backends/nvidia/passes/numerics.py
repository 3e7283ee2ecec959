"""The numbers in kernels for NVIDIA GPUs."""

from dataclasses import dataclass

from attn_mlir.passes.tiling import numerics


@dataclass(frozen=True)
class NvidiaNumerics(numerics.WriteNumerics):
    """Gives functions that become kernels their `tile.numerics`.

    Sums of log decays are f64 where inputs have 32 bits, and f32 beside 16-bit inputs, which need no more.
    """

    name = "nvidia-numerics"
    numerics = numerics.Numerics(prefix="wider", sub_chunk=4)
