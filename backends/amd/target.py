"""Facts about AMD GPUs that kernels are compiled for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class AmdTarget:
    """What the code generator and the report need to know of a GPU.

    A compute unit (CU) has `simds` SIMDs; each has `registers` vector registers (VGPRs and AGPRs together) for each lane, shared by its
    waves of 64 lanes. `lds_bytes` is the shared memory of a CU and the most that one block may use. `matrix_flops` are matrix operations
    (a multiplication and an addition count as two) in 16 bits per cycle and CU, `clock_ghz` the peak engine clock.
    Per cycle and CU: `lanes` instructions of threads, `special_lanes` exponentials, `lds_width` bytes of shared memory, `l2_bytes` from
    the L2 cache while all of them read.
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
    lanes: int = 64
    special_lanes: int = 16
    lds_width: int = 128
    l2_bytes: int = 32
    flushes_subnormals: bool = True
    """Whether matrix instructions take subnormal 16-bit operands as zeros."""
    eight_bit: str = ""
    """The family of 8-bit types that matrix instructions take, see `Element.taken_by`; empty where there are none."""


MI250 = AmdTarget("gfx90a", "MI250", compute_units=104, clock_ghz=1.7)
"""One of the two dies (GCDs) of an MI250, which is a device of its own to programs; MI210 has one."""
MI300X = AmdTarget("gfx942", "MI300X", compute_units=304, clock_ghz=2.1, matrix_flops=2048, flushes_subnormals=False, eight_bit="nuz")
"""Code for it is compiled in tests."""
TARGETS = {target.arch: target for target in (MI250, MI300X)}


def described(facts: Mapping[str, Any]) -> AmdTarget:
    """The target that the fields of an `Arch` describe; what they leave open is that of the known one with this instruction set."""
    arch, units, clock = facts["compute_capability"], facts["compute_max_core"], facts["clock_ghz"]
    known = TARGETS.get(arch) or AmdTarget(arch, facts["name"], units, clock)
    return replace(
        known, name=facts["name"], compute_units=units, clock_ghz=clock, wave=facts["warp_size"], simds=facts["sm_partition"],
        registers=facts["register_per_thread"], lds_bytes=facts["smem_cap"], matrix_flops=facts["matrix_flops"],
    )  # fmt: skip
