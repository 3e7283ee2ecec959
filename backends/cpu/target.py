"""Facts about the CPU that kernels are compiled for."""

import os
import platform
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from attn_mlir.backends.cpu import amx
from attn_mlir.errors import ArgumentError, UnsupportedError


@dataclass(frozen=True)
class CpuTarget:
    """What the code generator needs to know of a CPU.

    `vector_bytes` is the width of a vector register and `registers` their number; `features` are the instruction set
    extensions that code generation depends on. What follows is for the tuner's model. `model` names the processor; `l1_bytes` and
    `l2_bytes` are the caches of a core, which give it `l2_width` and (from beyond) `memory_width` bytes a cycle; `ports` are the units of
    a core that multiply and add vectors, and `loads` the vectors that it reads in a cycle.
    """

    vector_bytes: int
    registers: int
    features: frozenset[str]
    threads: int
    model: str = "generic"
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    clock_ghz: float = 2.5
    ports: int = 2
    loads: int = 2
    emulated: frozenset[str] = frozenset()
    """Features whose instructions are replaced by others, so that code can be tried where they are not."""
    l2_width: int = 64
    memory_width: int = 12

    def executes(self, feature: str) -> bool:
        """Whether code may use the instructions of a feature themselves."""
        return feature in self.features and feature not in self.emulated

    @property
    def tiles(self) -> bool:
        """Whether code may use matrix tiles of bf16."""
        return _TILES in self.features

    @property
    def name(self) -> str:
        """Identifies the target in cache keys."""
        words = [f"emulated_{feature}" if feature in self.emulated else feature for feature in sorted(self.features)]
        return f"{platform.machine()}-{self.vector_bytes * 8}-{'-'.join(words)}"

    def rows_per_step(self, lanes: int, bytes_per_lane: int) -> int:
        """How many rows of accumulators, each of `lanes` elements, fit into registers beside their operands."""
        per_row = max(1, lanes * bytes_per_lane // self.vector_bytes)
        return max(1, min(8, (self.registers - per_row - 2) // per_row))


_RELEVANT = ("avx512f", "avx512_bf16", "avx512dq", "avx2", "fma", "f16c")
_TILES = "amx_bf16"
"""Matrix tiles of bf16 (Intel AMX)."""


def host() -> CpuTarget:
    """The CPU that code is generated for: this machine, or the one of `TARGETS` that ATTN_MLIR_CPU names.

    The latter is for reading code of other machines, and for running code of lesser ones. Raises ArgumentError where it names none.
    """
    named = os.environ.get("ATTN_MLIR_CPU", "")
    if named and named not in TARGETS:
        raise ArgumentError(f"ATTN_MLIR_CPU is {' or '.join(TARGETS)}, or unset for this machine, got '{named}'")
    return TARGETS[named] if named else _usual()


@cache
def _usual() -> CpuTarget:
    """This machine, without matrix tiles where the system does not let them be used."""
    withheld = {_TILES} if _TILES in machine().features and amx.refusal() else set[str]()
    return replace(machine(), features=machine().features - withheld)


def check_runs() -> None:
    """Raises UnsupportedError where this machine lacks instructions of what code is generated for, or does not let them be used."""
    lacking = sorted(host().features - host().emulated - machine().features)
    if lacking:
        raise UnsupportedError(
            f"code for ATTN_MLIR_CPU={os.environ.get('ATTN_MLIR_CPU')} does not run here: this machine has no {', '.join(lacking)}; "
            "unset the variable"
        )
    if host().executes(_TILES):
        amx.request_permission()


def instruction_sets() -> tuple[str, ...]:
    """Those of this machine that compiled code may use, by the names with which C compilers ask for them; of x86-64 only."""
    flags = set(_facts().get("flags", "").split())
    names = {"sse4_2": "sse4.2", "bmi1": "bmi", "avx512_bf16": "avx512bf16"}
    found = ("sse4_2", "avx", "avx2", "fma", "bmi1", "bmi2", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16")
    return tuple(names.get(flag, flag) for flag in found if flag in flags) if platform.machine() in ("x86_64", "AMD64") else ()


@cache
def machine() -> CpuTarget:
    """The machine this process runs on."""
    flags = set(_facts().get("flags", "").split())
    features = frozenset(flag for flag in (*_RELEVANT, _TILES) if flag in flags)
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    width, registers = (64, 32) if "avx512f" in features else (32 if "avx2" in features else 16, 16)
    return CpuTarget(width, registers, features, threads, _model(), _cache(1, 32 << 10), _cache(2, 1 << 20))


SERVER = CpuTarget(64, 32, frozenset(_RELEVANT), 16, "avx512", 48 << 10, 2 << 20)
"""A server with AVX-512 and products of bf16, which need not be there."""
DESKTOP = CpuTarget(32, 16, frozenset(("avx2", "fma", "f16c")), 8, "avx2")
"""A machine with AVX2."""
MATRIX = replace(SERVER, features=SERVER.features | {_TILES}, model="amx")
"""A server with matrix tiles of bf16 (Intel AMX)."""
EMULATED = replace(DESKTOP, vector_bytes=64, features=DESKTOP.features | {"avx512_bf16", _TILES}, model="amx-emulated",
                   emulated=frozenset(("avx512_bf16", _TILES)))  # fmt: skip
"""One with AVX2 that runs the code of the former, with tiles in memory: for tests, and slow."""
TARGETS = {target.model: target for target in (SERVER, DESKTOP, MATRIX, EMULATED)}


@cache
def _facts() -> dict[str, str]:
    """What the system says of the first processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().partition("\n\n")[0].splitlines() if info.exists() else []
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _model() -> str:
    """Names the processor: maker, family and model where the system tells them."""
    told = [_facts().get(name, "") for name in ("vendor_id", "cpu family", "model")]
    return "-".join(part for part in told if part) or platform.processor() or platform.machine() or "unknown"


def _cache(level: int, default: int) -> int:
    """Bytes of a core's cache for data, as the system tells them."""
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if (folder / "level").read_text().strip() == str(level) and (folder / "type").read_text().strip() != "Instruction":
                return int((folder / "size").read_text().strip().removesuffix("K")) << 10
        except (OSError, ValueError):
            continue
    return default
