"""Facts about the CPU that kernels are compiled for."""

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class CpuTarget:
    """What the code generator needs to know of a CPU.

    `vector_bytes` is the width of a vector register and `registers` their number; `features` are the instruction set
    extensions that code generation depends on.
    """

    vector_bytes: int
    registers: int
    features: frozenset[str]
    threads: int

    @property
    def name(self) -> str:
        """Identifies the target in cache keys."""
        return f"{platform.machine()}-{self.vector_bytes * 8}-{'-'.join(sorted(self.features))}"

    def rows_per_step(self, lanes: int, bytes_per_lane: int) -> int:
        """How many rows of accumulators, each of `lanes` elements, fit into registers beside their operands."""
        per_row = max(1, lanes * bytes_per_lane // self.vector_bytes)
        return max(1, min(8, (self.registers - per_row - 2) // per_row))


_RELEVANT = ("avx512f", "avx512_bf16", "avx512dq", "avx2", "fma", "f16c")


@cache
def host() -> CpuTarget:
    """The machine this process runs on."""
    flags: set[str] = set()
    info = Path("/proc/cpuinfo")
    if info.exists():
        line = next((line for line in info.read_text().splitlines() if line.startswith("flags")), "")
        flags = set(line.partition(":")[2].split())
    features = frozenset(flag for flag in _RELEVANT if flag in flags)
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if "avx512f" in features:
        return CpuTarget(64, 32, features, threads)
    return CpuTarget(32 if "avx2" in features else 16, 16, features, threads)
