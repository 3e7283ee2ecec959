"""Facts about AMD GPUs that kernels are compiled for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AmdTarget:
    """What the code generator and the report need to know of a GPU.

    A compute unit (CU) has `simds` SIMDs; each has `registers` vector registers (VGPRs and AGPRs together) for each lane, shared by its
    waves of 64 lanes. `lds_bytes` is the shared memory of a CU and the most that one block may use. `matrix_flops` are matrix operations
    (a multiplication and an addition count as two) in 16 bits per cycle and CU, `clock_ghz` the peak engine clock.
    """

    arch: str
    name: str
    compute_units: int
    clock_ghz: float
    wave: int = 64
    simds: int = 4
    registers: int = 512
    lds_bytes: int = 64 * 1024
    matrix_flops: int = 1024
    flushes_subnormals: bool = True
    """Whether matrix instructions take subnormal 16-bit operands as zeros."""


MI250 = AmdTarget("gfx90a", "MI250", compute_units=104, clock_ghz=1.7)
"""One of the two dies (GCDs) of an MI250, which is a device of its own to programs; MI210 has one."""
MI300X = AmdTarget("gfx942", "MI300X", compute_units=304, clock_ghz=2.1, matrix_flops=2048, flushes_subnormals=False)
"""Code for it is compiled in tests."""
TARGETS = {target.arch: target for target in (MI250, MI300X)}
