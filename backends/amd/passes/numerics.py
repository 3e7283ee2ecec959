"""The numbers in kernels for AMD GPUs."""

from dataclasses import dataclass, replace

from attn_mlir.backends.amd.target import TARGETS
from attn_mlir.backends.gpu import attributes
from attn_mlir.mlir import ir
from attn_mlir.passes.tiling.numerics import Numerics, WriteNumerics


@dataclass(frozen=True)
class AmdNumerics(WriteNumerics):
    """Gives functions that become kernels their `tile.numerics`.

    Sums of log decays are f64 where inputs have 32 bits, and f32 beside 16-bit inputs. Matrix products take numbers below 2^-14 in f16 as 0
    (gfx90a), so that what may be as small is two tiles, a hi/lo split. Those of 8-bit numbers take bf16, which keeps small ones,
    or the numbers as they are, where the GPU of a function's `tile.choices` has instructions for them.
    """

    name = "amd-numerics"
    numerics = Numerics(prefix="wider", flushing=True, narrow="bf16")

    def of(self, function: ir.Operation) -> Numerics:
        target = TARGETS.get(str(attributes.read(function, attributes.CHOICES).get("arch")))
        return self.numerics if target is None or not target.eight_bit else replace(self.numerics, narrow=target.eight_bit)
