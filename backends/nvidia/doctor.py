"""What of the NVIDIA backend works on this machine."""

import ctypes
from importlib.metadata import PackageNotFoundError, version

from attn_mlir.backends.nvidia import cuda
from attn_mlir.backends.nvidia.compile import compiler_for, find_nvcc, nvcc_version
from attn_mlir.backends.nvidia.nvrtc import library as nvrtc
from attn_mlir.backends.nvidia.target import TARGETS
from attn_mlir.findings import Finding, tried


def findings() -> list[Finding]:
    """The driver, torch's build, the GPUs, and what compiles kernels for them."""
    found = [
        tried("NVIDIA driver", _driver),
        _torch(),
        *_devices(),
        tried("NVRTC", lambda: nvrtc.library().build),
        tried("nvcc", lambda: f"{find_nvcc()}, {nvcc_version(find_nvcc())}"),
        tried("compiler of kernels", lambda: compiler_for().name),
    ]
    try:
        found.append(
            Finding("tilelang", "ok", f"{version('tilelang')}, for kernels that no schedule of ours takes, and for GPUs other than Hopper")
        )
    except PackageNotFoundError:
        found.append(Finding("tilelang", "missing", "needed for GPUs other than Hopper alone: pip install 'attn-mlir[nvidia]'"))
    return found


def _driver() -> str:
    number = ctypes.c_int()
    cuda.check(cuda.library().cuDriverGetVersion(ctypes.byref(number)), "asking for the driver's version")
    return f"for CUDA {number.value // 1000}.{number.value % 1000 // 10}"


def _torch() -> Finding:
    import torch

    if torch.version.cuda is None:
        return Finding(
            "torch with CUDA", "missing", f"torch {torch.__version__} is built without: install another build to use NVIDIA GPUs"
        )
    return Finding("torch with CUDA", "ok", f"built for CUDA {torch.version.cuda}")


def _devices() -> list[Finding]:
    import torch

    if torch.version.cuda is None or not torch.cuda.is_available():
        return [Finding("NVIDIA GPU", "missing", "torch finds none")]
    return [_device(index) for index in range(torch.cuda.device_count())]


def _device(index: int) -> Finding:
    import torch

    name, (major, minor) = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
    text = f"{name}, compute capability {major}.{minor}"
    if any(arch.startswith(f"sm_{major}{minor}") and target.bulk_copies for arch, target in TARGETS.items()):
        return Finding(f"cuda:{index}", "ok", text)
    if (major, minor) < (8, 0):
        return Finding(f"cuda:{index}", "wrong", f"{text}: 8.0 is the least that kernels are made for; use the CPU")
    return Finding(f"cuda:{index}", "note", f"{text}: kernels go through TileLang, and were measured on Hopper (9.0) alone")
