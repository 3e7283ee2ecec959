"""The numbers in kernels for AMD GPUs."""

from dataclasses import dataclass

from attn_mlir.passes.tiling import numerics


@dataclass(frozen=True)
class AmdNumerics(numerics.WriteNumerics):
    """Gives functions that become kernels their `tile.numerics`.

    Sums of log decays are f64 where inputs have 32 bits, and f32 beside 16-bit inputs. Matrix products take numbers below 2^-14 in f16 as 0
    (gfx90a), so that what may be as small is two tiles, a hi/lo split. Those of 8-bit numbers take bf16, which keeps small ones.
    """

    name = "amd-numerics"
    numerics = numerics.Numerics(prefix="wider", flushing=True, narrow="bf16")
