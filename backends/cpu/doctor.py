"""What of the CPU backend works on this machine."""

import os
import platform

from attn_mlir.backends.cpu import amx, jit, target
from attn_mlir.findings import Finding, tried

_BF16 = "avx512_bf16"


def findings() -> list[Finding]:
    """The processor, what code is generated for it, and the threads that run it."""
    return [_processor(), tried("code for this machine", _code, "wrong"), _bf16(), *_tiles(), _threads()]


def _processor() -> Finding:
    machine = target.machine()
    known = ", ".join(sorted(machine.features)) or "none of those that code generation uses"
    text = f"{machine.model}, {platform.machine()}: {known}; L1 {machine.l1_bytes >> 10} KiB, L2 {machine.l2_bytes >> 10} KiB a core"
    if machine.features:
        return Finding("processor", "ok", text)
    return Finding("processor", "note", f"{text}: vectors of 16 bytes, which is correct and slow")


def _code() -> str:
    target.check_runs()
    chosen = os.environ.get("ATTN_MLIR_CPU")
    code = target.host()
    asked = f", as ATTN_MLIR_CPU={chosen} asks for" if chosen else ""
    return f"vectors of {8 * code.vector_bytes} bits, {code.registers} registers{asked}"


def _bf16() -> Finding:
    if _BF16 in target.host().features:
        return Finding("bf16", "ok", "products by AVX512_BF16")
    return Finding("bf16", "note", "no AVX512_BF16: bf16 is computed in float32 and rounded by integer arithmetic, more slowly")


def _tiles() -> list[Finding]:
    """Where the machine has matrix tiles."""
    if not target.machine().tiles:
        return []
    if target.host().tiles:
        return [
            Finding(
                "matrix tiles", "ok", "AMX multiplies bf16 where head dimensions are multiples of 32; ATTN_MLIR_CPU=avx512 does without"
            )
        ]
    if os.environ.get("ATTN_MLIR_CPU"):
        return [Finding("matrix tiles", "note", "AMX is there and not used, as ATTN_MLIR_CPU asks for: bf16 runs more slowly")]
    return [Finding("matrix tiles", "note", f"AMX is there and not used, since {amx.refusal()}")]


def _threads() -> Finding:
    import torch

    threads, cores = torch.get_num_threads(), target.machine().threads
    if jit.openmp() is None:
        why = "no OpenMP runtime with GOMP_parallel: kernels start threads of their own at every call, which costs some microseconds"
        return Finding("threads", "note", f"{threads} of {cores} cores; {why}")
    return Finding("threads", "ok", f"{threads} of {cores} cores, by torch's OpenMP runtime")
