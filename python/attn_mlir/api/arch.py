"""Descriptions of GPUs, with the fields that attention_autotuner and AttentionEngine give them: `A100()`, `H100()`, `MI250()`, ..."""

import dataclasses
from typing import Any

from attn_mlir.backends import backend_for
from attn_mlir.errors import ArgumentError

__all__ = ["A100", "H100", "H200", "MI250", "MI300X", "RTX4090", "Arch"]

_DEVICES = {"CUDA": "cuda", "ROCM": "hip"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arch:
    """A GPU in numbers, those of its vendor. `dataclasses.replace(H100(), compute_max_core=114)` describes a smaller one.

    Sizes are in bytes, registers have 32 bits. A multiprocessor is an SM or a compute unit (CU); an MI250 is one of its two dies, which is
    a device of its own to programs.
    """

    name: str
    platform: str
    """"CUDA" or "ROCM"."""
    compute_capability: str
    """As compilers have it after "sm_", or "gfx90a"."""
    compute_max_core: int
    """Multiprocessors."""
    reg_cap: int = 65536
    """Registers of a multiprocessor."""
    register_per_thread: int = 255
    smem_cap: int
    """The most shared memory that one thread block may use."""
    max_smem_usage: int
    """The shared memory of a multiprocessor, some of which blocks cannot use."""
    warp_size: int = 32
    sm_partition: int = 4
    """Parts of a multiprocessor with a scheduler each."""
    threads_cap: int = 1024
    """The most threads of a block."""
    mma_primitive: tuple[int, int, int] = (16, 8, 16)
    """M, N and K of a matrix instruction for 16 bits."""
    threads_per_mma: int = 32
    """How many threads issue it together."""
    transaction_size: tuple[int, int] = (32, 128)
    """The smallest access to global memory that is not a waste, and that of a warp to shared memory in one cycle."""
    bandwidth: tuple[int, int]
    """Of global memory and of the shared memory of all multiprocessors together, in GB/s."""
    clock_ghz: float
    """The boost clock, with which vendors compute their peaks."""
    matrix_flops: int
    """Operations of matrix instructions for 16 bits that accumulate in 32, per cycle and multiprocessor; a multiplication and an addition
    count as two."""

    @property
    def cutlass_mma(self) -> list[int]:
        """The matrix instruction, as attention_autotuner calls it."""
        return list(self.mma_primitive)

    @property
    def tflops(self) -> float:
        """The peak of matrix instructions."""
        return self.matrix_flops * self.compute_max_core * self.clock_ghz / 1e3

    def target(self) -> Any:
        """The facts that the backend of such GPUs generates code by and predicts times with."""
        device = _DEVICES.get(self.platform)
        backend = backend_for(device) if device else None
        if backend is None or backend.describe is None:
            raise ArgumentError(f'{self.name}: platform is "CUDA" or "ROCM", got {self.platform!r}')
        return backend.load(backend.describe)(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class A100(Arch):
    """NVIDIA A100 SXM with 80 GB."""

    name: str = "A100"
    platform: str = "CUDA"
    compute_capability: str = "80"
    compute_max_core: int = 108
    smem_cap: int = 163 * 1024
    max_smem_usage: int = 164 * 1024
    bandwidth: tuple[int, int] = (2039, 19492)
    clock_ghz: float = 1.41
    matrix_flops: int = 2048


@dataclasses.dataclass(frozen=True, kw_only=True)
class RTX4090(Arch):
    """NVIDIA GeForce RTX 4090. Its matrix instructions take twice the time where they accumulate in 32 bits."""

    name: str = "RTX4090"
    platform: str = "CUDA"
    compute_capability: str = "89"
    compute_max_core: int = 128
    smem_cap: int = 99 * 1024
    max_smem_usage: int = 100 * 1024
    bandwidth: tuple[int, int] = (1008, 41288)
    clock_ghz: float = 2.52
    matrix_flops: int = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class H100(Arch):
    """NVIDIA H100 SXM."""

    name: str = "H100"
    platform: str = "CUDA"
    compute_capability: str = "90a"
    compute_max_core: int = 132
    smem_cap: int = 227 * 1024
    max_smem_usage: int = 228 * 1024
    mma_primitive: tuple[int, int, int] = (64, 16, 16)
    threads_per_mma: int = 128
    bandwidth: tuple[int, int] = (3352, 30920)
    clock_ghz: float = 1.83
    matrix_flops: int = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class H200(H100):
    """NVIDIA H200 SXM: an H100 with faster and larger memory."""

    name: str = "H200"
    bandwidth: tuple[int, int] = (4800, 30920)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Instinct(Arch):
    """What AMD's Instincts have in common. Vector registers are those for vectors and for accumulators together."""

    platform: str = "ROCM"
    reg_cap: int = 4 * 512 * 64
    register_per_thread: int = 512
    smem_cap: int = 64 * 1024
    max_smem_usage: int = 64 * 1024
    warp_size: int = 64
    mma_primitive: tuple[int, int, int] = (16, 16, 16)
    threads_per_mma: int = 64
    transaction_size: tuple[int, int] = (64, 128)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MI250(_Instinct):
    """One of the two dies of an AMD Instinct MI250."""

    name: str = "MI250"
    compute_capability: str = "gfx90a"
    compute_max_core: int = 104
    bandwidth: tuple[int, int] = (1638, 22630)
    clock_ghz: float = 1.7
    matrix_flops: int = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class MI300X(_Instinct):
    """AMD Instinct MI300X."""

    name: str = "MI300X"
    compute_capability: str = "gfx942"
    compute_max_core: int = 304
    bandwidth: tuple[int, int] = (5300, 81715)
    clock_ghz: float = 2.1
    matrix_flops: int = 2048


def device_for(device: Any) -> Any:
    """A device by name or as a torch.device, or None where a description of a GPU stands for it: the tensors are where they are.

    Kernels are made for the device that the tensors are on, which need not be the GPU that a program was once tuned for.
    """
    if isinstance(device, type) and issubclass(device, Arch):
        raise ArgumentError(f"device is the class {device.__name__}; pass an instance: {device.__name__}()")
    return None if isinstance(device, Arch) else device
