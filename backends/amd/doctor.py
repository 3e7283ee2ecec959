"""What of the AMD backend works on this machine."""

from attn_mlir.backends.amd import clang, hip
from attn_mlir.findings import Finding, tried


def findings() -> list[Finding]:
    """The compilers of kernels and of their emulation, the HIP runtime, and the GPUs."""
    found = [tried("clang for AMD GPUs", _compiler), tried("emulation on the CPU", _emulation), tried("HIP runtime", _runtime)]
    return [*found, *_devices()]


def _compiler() -> str:
    path = clang.find_clang()
    linker = clang.find_tool("ld.lld", path)
    return f"{path}, {clang.version_of(path)[1]}, with {linker}"


def _emulation() -> str:
    return f'device="hip-emulated" by {clang.find_host_clang()}'


def _runtime() -> str:
    hip.library()
    return "libamdhip64"


def _devices() -> list[Finding]:
    import torch

    if not hip.is_rocm() or not torch.cuda.is_available():
        return [Finding("AMD GPU", "missing", "torch finds none")]
    unproven = "no AMD GPU has run these kernels yet: compare with the CPU"
    return [Finding(f"cuda:{i}", "note", f"{hip.arch_of(i)}; {unproven}") for i in range(torch.cuda.device_count())]
