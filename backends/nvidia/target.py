"""Facts about NVIDIA GPUs that kernels are compiled for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

TILELANG = "tilelang"
"""A choice, 0 on machines without TileLang."""
OF_MACHINE = frozenset({"arch", TILELANG})
"""Choices that say what machine it is, and nothing of a kernel."""
RESERVED_BYTES = 1024
"""Shared memory that the chip keeps of each thread block, beside what the thread block uses."""


@dataclass(frozen=True)
class NvidiaTarget:
    """What the code generators need to know of a GPU.

    `shared_bytes` is the shared memory that one block may use, `registers` the 32-bit registers of a multiprocessor.
    Per cycle and multiprocessor: `tensor_flops` are matrix operations (a multiplication and an addition count as two) in 16 bits, `lanes`
    instructions of threads, `special_lanes` exponentials, `l2_bytes` what comes from the L2 cache while all of them read.
    """

    arch: str
    multiprocessors: int
    shared_bytes: int
    registers: int = 65536
    tensor_flops: int = 4096
    bulk_copies: bool = True
    """Whether the chip has TMA, warp-group matrix instructions and `setmaxnreg`."""
    lanes: int = 128
    special_lanes: int = 16
    l2_bytes: int = 40
    clock_ghz: float = 1.755
    """While tensor cores work; the boost clock of idle ones is higher."""
    eight_bit: str = ""
    """The family of 8-bit types that matrix instructions take, see `Element.taken_by`; empty where there are none."""

    def share(self, occupancy: int) -> tuple[int, int]:
        """Registers, and bytes of shared memory, of each of so many thread blocks on a multiprocessor."""
        return self.registers // occupancy, (self.shared_bytes + RESERVED_BYTES) // occupancy - RESERVED_BYTES


HOPPER = NvidiaTarget("sm_90a", 132, 227 * 1024, eight_bit="ocp")
"""H100 SXM and H200."""
AMPERE = NvidiaTarget("sm_80", 108, 163 * 1024, tensor_flops=2048, bulk_copies=False, clock_ghz=1.41)
"""A100; code for it also runs on newer chips. Compiled in tests, and run on an H100, never on an A100."""
TARGETS = {target.arch: target for target in (HOPPER, AMPERE)}


def described(facts: Mapping[str, Any]) -> NvidiaTarget:
    """The target that the fields of an `Arch` describe; what they leave open is that of the known one with this compute capability."""
    arch, units, shared = f"sm_{facts['compute_capability']}", facts["compute_max_core"], facts["smem_cap"]
    known = TARGETS.get(arch) or NvidiaTarget(arch, units, shared, bulk_copies=False)
    return replace(known, multiprocessors=units, shared_bytes=shared, registers=facts["reg_cap"], tensor_flops=facts["matrix_flops"])
