"""Compiles HIP C++ with clang: several kernels at once, each kept on disk under everything that it depends on."""

import hashlib
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from attn_mlir.backends import disk_cache
from attn_mlir.backends.amd.clang import find_clang, version_of
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.errors import CompileError

SUFFIX = "hsaco"
_HERE = Path(__file__).parent
# No ROCm headers or device libraries; version 5 of code objects is what ROCm 5 and 6 load.
_LANGUAGE = ("-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-mcode-object-version=5", "-nogpuinc", "-nogpulib", "-O3",
             "-std=c++17", "-Rpass-analysis=kernel-resource-usage")  # fmt: skip
_LINES = 40
_LOCK = threading.Lock()
_POOL: list[ThreadPoolExecutor] = []


@dataclass(frozen=True)
class Binary:
    """A compiled kernel: what hipModuleLoadData takes, and what clang said of it.

    Registers of a lane (`vgprs`, `agprs`) and of a wave (`sgprs`); `spills` of a lane's, and `scalar_spills` of a wave's, which go to lanes
    of vector registers; bytes of `scratch` a lane and of `shared` memory a block; `waves` that fit onto a SIMD.
    """

    code: bytes
    vgprs: int = 0
    agprs: int = 0
    sgprs: int = 0
    spills: int = 0
    scalar_spills: int = 0
    scratch: int = 0
    shared: int = 0
    waves: int = 0
    warnings: tuple[str, ...] = ()

    def facts(self) -> dict[str, object]:
        """All but the code, as plain data."""
        return {name: value for name, value in asdict(self).items() if name != "code"}

    @staticmethod
    def of(code: bytes, facts: dict[str, object]) -> "Binary":
        """The inverse of `facts`. Raises LookupError or TypeError for other data."""
        return Binary(code, **{**facts, "warnings": tuple(facts["warnings"])})  # type: ignore[arg-type]

    def describe(self) -> str:
        """In words."""
        registers = f"{self.vgprs} vector registers and {self.agprs} accumulation registers a lane, {self.sgprs} scalar ones a wave"
        return f"{registers}, {self.describe_spills()}, {self.waves} waves a SIMD, {len(self.code)} bytes of code"

    def describe_spills(self) -> str:
        """What did not fit into registers, in words."""
        told = []
        if self.spills or self.scratch:
            told.append(f"{self.spills} vector registers spilled, {self.scratch} bytes of scratch a lane")
        if self.scalar_spills:
            told.append(f"{self.scalar_spills} scalar registers kept in vector registers")
        return ", ".join(told) or "no spills"


def compile_all(codes: Sequence[KernelCode]) -> list[Binary]:
    """Compiles kernels in parallel, or finds them on disk. Raises CompileError, or UnsupportedError without clang."""
    if len(codes) == 1:
        return [compile_code(codes[0])]
    return list(_pool().map(compile_code, codes))


def compile_code(code: KernelCode) -> Binary:
    """Compiles one kernel, or finds it on disk."""
    clang = find_clang()
    flags = [*_LANGUAGE, f"--offload-arch={code.arch}", *code.flags]
    key = disk_cache.key_of(code.source, " ".join(flags), version_of(clang)[1], _headers())
    found = disk_cache.load(key, SUFFIX)
    if found is not None:
        try:
            return Binary.of(*found)
        except (LookupError, TypeError):
            pass
    binary = _run(clang, flags, code)
    disk_cache.save(key, SUFFIX, binary.code, binary.facts())
    return binary


@cache
def _headers() -> str:
    """Changes with the headers that kernels include."""
    digest = hashlib.sha256()
    for path in sorted(_HERE.glob("*.h")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _run(clang: str, flags: Sequence[str], code: KernelCode) -> Binary:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / f"{code.name}.hip", Path(folder) / f"{code.name}.{SUFFIX}"
        source.write_text(code.source)
        command = [clang, *flags, f"-I{_HERE}", "-o", str(target), str(source)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode or not target.exists():
            raise CompileError(_failure(code, made.stderr))
        return parse_log(target.read_bytes(), made.stderr)


def _failure(code: KernelCode, log: str) -> str:
    """What clang said; the source goes to a file, where its line numbers lead."""
    handle, name = tempfile.mkstemp(prefix=f"{code.name}-", suffix=".hip")
    with os.fdopen(handle, "w") as file:
        file.write(code.source)
    lines = [line for line in log.splitlines() if line.strip() and "remark:" not in line][:_LINES]
    return f"clang rejects the kernel {code.name} (source: {name}); please report this:\n" + "\n".join(lines)


def parse_log(code: bytes, log: str) -> Binary:
    """The facts that clang printed about the kernel."""
    facts = dict(re.findall(r"remark:\s+([A-Za-z ]+?)(?: \[[^\]]*\])?: (\d+)", log))
    warnings = [line.strip() for line in log.splitlines() if "warning:" in line]
    return Binary(
        code,
        int(facts.get("VGPRs", 0)),
        int(facts.get("AGPRs", 0)),
        int(facts.get("TotalSGPRs", 0)),
        int(facts.get("VGPRs Spill", 0)),
        int(facts.get("SGPRs Spill", 0)),
        int(facts.get("ScratchSize", 0)),
        int(facts.get("LDS Size", 0)),
        int(facts.get("Occupancy", 0)),
        tuple(dict.fromkeys(warnings)),
    )


def _pool() -> ThreadPoolExecutor:
    with _LOCK:
        if not _POOL:
            _POOL.append(ThreadPoolExecutor(max(2, os.cpu_count() or 1), "clang"))
    return _POOL[0]
