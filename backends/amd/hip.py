"""The HIP runtime through ctypes; importing it needs no GPU.

PyTorch for ROCm calls AMD GPUs "cuda" devices: its device numbers, contexts and streams are those of the HIP runtime in the same process.
No AMD GPU has run this yet.
"""

import ctypes
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

from attn_mlir.errors import CompileError, UnsupportedError

_LIBRARIES = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5")


@cache
def library() -> Any:
    """libamdhip64. Raises UnsupportedError where it cannot be loaded."""
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise UnsupportedError(
        f"AMD GPUs are driven through the HIP runtime, and {_LIBRARIES[0]} was not found: install ROCm and PyTorch for ROCm, or use "
        'device="hip-emulated", which runs the same kernels on the CPU'
    )


def is_rocm() -> bool:
    """Whether this PyTorch is one for AMD GPUs."""
    return torch.version.hip is not None


def arch_of(index: int) -> str:
    """The architecture of a device, such as "gfx90a"; features behind a colon are left out."""
    return str(torch.cuda.get_device_properties(index).gcnArchName).partition(":")[0]


def index_of(tensor: torch.Tensor) -> int:
    """The number of the GPU that holds it, or -1."""
    return tensor.get_device() if tensor.is_cuda else -1


def on_device(index: int) -> AbstractContextManager[Any]:
    """Within it, a device is the current one, of torch and of the runtime."""
    return torch.cuda.device(index)


def current_stream(index: int) -> int:
    """The handle of torch's current stream on a device."""
    return torch.cuda.current_stream(index).cuda_stream


class Function:
    """A kernel of a code object, loaded on the current device."""

    def __init__(self, code: bytes, entry: str) -> None:
        """Raises CompileError where the runtime refuses the code."""
        self._code = code
        module, self._handle = ctypes.c_void_p(), ctypes.c_void_p()
        _call("hipModuleLoadData", ctypes.byref(module), ctypes.c_char_p(code))
        _call("hipModuleGetFunction", ctypes.byref(self._handle), module, ctypes.c_char_p(entry.encode()))

    def launch(self, grid: tuple[int, int, int], threads: int, stream: int, parameters: int) -> None:
        """Starts it on a stream; `parameters` is the address of an array of pointers to the values."""
        sizes = [ctypes.c_uint(size) for size in (*grid, threads, 1, 1)]
        shared = ctypes.c_uint(0)  # beyond what the code declares
        _call("hipModuleLaunchKernel", self._handle, *sizes, shared, ctypes.c_void_p(stream), ctypes.c_void_p(parameters), None)


def _call(name: str, *arguments: Any) -> None:
    result = getattr(library(), name)(*arguments)
    if result:
        text = library().hipGetErrorString
        text.restype = ctypes.c_char_p
        raise CompileError(f"{name} fails with error {result} ({(text(result) or b'').decode()}); please report this")
