"""Facts about NVIDIA GPUs that kernels are compiled for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NvidiaTarget:
    """What the code generators need to know of a GPU.

    `shared_bytes` is the shared memory that one block may use, `registers` the 32-bit registers of a multiprocessor.
    `tensor_flops` are matrix operations (a multiplication and an addition count as two) in 16 bits per cycle and multiprocessor.
    """

    arch: str
    multiprocessors: int
    shared_bytes: int
    registers: int = 65536
    tensor_flops: int = 4096
    bulk_copies: bool = True
    """Whether the chip has TMA, warp-group matrix instructions and `setmaxnreg`."""


HOPPER = NvidiaTarget("sm_90a", 132, 227 * 1024)
"""H100 SXM and H200."""
AMPERE = NvidiaTarget("sm_80", 108, 163 * 1024, tensor_flops=2048, bulk_copies=False)
"""A100; code for it also runs on newer chips. Compiled in tests, never run on hardware by this project."""
TARGETS = {target.arch: target for target in (HOPPER, AMPERE)}
