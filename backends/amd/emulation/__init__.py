"""Runs kernels for AMD GPUs on the CPU: the same source, with lanes as fibers, and checks of bounds, races and divergence."""

from attn_mlir.backends.amd.emulation.kernel import EmulatedHipKernel, EmulationError

__all__ = ["EmulatedHipKernel", "EmulationError"]
