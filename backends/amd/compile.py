"""Compiles HIP C++ with clang: several kernels at once, each kept on disk under everything that it depends on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attn_mlir.backends import disk_cache
from attn_mlir.backends.amd.clang import find_clang, version_of
from attn_mlir.backends.gpu.compiler import CompiledCode, content_of, in_parallel, kept, run_compiler
from attn_mlir.backends.gpu.kernel import KernelCode

SUFFIX = "hsaco"
FOLDER = Path(__file__).parent
# No ROCm headers or device libraries; version 5 of code objects is what ROCm 5 and 6 load.
CLANG_FLAGS = ("-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-mcode-object-version=5", "-nogpuinc", "-nogpulib", "-O3",
             "-std=c++17", "-Rpass-analysis=kernel-resource-usage")  # fmt: skip


@dataclass(frozen=True)
class HipBinary(CompiledCode):
    """A compiled kernel: what hipModuleLoadData takes, and what clang said of it.

    Registers of a lane (`vgprs`, `agprs`) and of a wave (`sgprs`); `spills` of a lane's, and `scalar_spills` of a wave's, which go to lanes
    of vector registers; bytes of `scratch` a lane and of `shared` memory a block; `waves` that fit onto a SIMD.
    """

    vgprs: int = 0
    agprs: int = 0
    sgprs: int = 0
    spills: int = 0
    scalar_spills: int = 0
    scratch: int = 0
    shared: int = 0
    waves: int = 0
    warnings: tuple[str, ...] = ()

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


def compile_all(codes: Sequence[KernelCode]) -> list[HipBinary]:
    """Compiles kernels in parallel, or finds them on disk. Raises CompileError, or UnsupportedError without clang."""
    return in_parallel(compile_code, codes)


def compile_code(code: KernelCode) -> HipBinary:
    """Compiles one kernel, or finds it on disk."""
    clang = find_clang()
    flags = [*CLANG_FLAGS, f"--offload-arch={code.arch}", *code.flags]
    key = disk_cache.key_of(code.source, " ".join(flags), version_of(clang)[1], content_of(FOLDER, "*.h"))
    return kept(HipBinary, key, SUFFIX, lambda: _run(clang, flags, code))


def _run(clang: str, flags: Sequence[str], code: KernelCode) -> HipBinary:
    return parse_log(*run_compiler("clang", [clang, *flags, f"-I{FOLDER}"], code, ("hip", SUFFIX), "remark:"))


def parse_log(code: bytes, log: str) -> HipBinary:
    """The facts that clang printed about the kernel."""
    facts = dict(re.findall(r"remark:\s+([A-Za-z ]+?)(?: \[[^\]]*\])?: (\d+)", log))
    warnings = [line.strip() for line in log.splitlines() if "warning:" in line]
    return HipBinary(
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
