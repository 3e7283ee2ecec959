"""The numbers in kernels for CPUs."""

from dataclasses import dataclass

from attn_mlir.passes.tiling import numerics


@dataclass(frozen=True)
class CpuNumerics(numerics.WriteNumerics):
    """Gives functions that become kernels their `tile.numerics`.

    Sums of log decays, and the chunk decay of a state, are f64, which vectors have. Products multiply scores, as there are none of 16 bits
    to win anything by. Elements scatter to slots, which threads fill side by side.
    """

    name = "cpu-numerics"
    numerics = numerics.Numerics(prefix="f64", wide_decay=True, sub_chunk=4, widen=True, slots=True)
