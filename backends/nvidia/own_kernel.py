"""Launches of kernels with a source of their own, which no program has: what makes lists and offsets ready."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import cuda
from attn_mlir.backends.nvidia.compile import compile_code
from attn_mlir.backends.nvidia.target import HOPPER


def code_of(entry: str, source: str) -> KernelCode:
    """One kernel of a source."""
    return KernelCode(entry, entry, source, (), 256, 0, arch=HOPPER.arch)


@functools.cache
def _function(entry: str, source: Callable[[], str], memory: int, device: int) -> int:
    """A kernel on a device, which may have so much dynamic shared memory."""
    return cuda.load_function(compile_code(code_of(entry, source())).code, entry, memory, device)


def start(
    entry: str, source: Callable[[], str], form: bytes, grid: tuple[int, int, int], block: tuple[int, int, int], where: tuple[int, int]
) -> None:
    """Launches a kernel, which takes a structure. `block`: threads, bytes of shared memory, and at most; `where`: a stream and a device."""
    (threads, memory, most), (stream, device) = block, where
    parameters = ctypes.create_string_buffer(form, len(form))
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(parameters))
    config: Any = cuda.config(grid, threads, memory, stream)
    launch: Callable[..., int] = cuda.launcher()
    with cuda.using(device):
        function = _function(entry, source, most, device)
        result = launch(ctypes.addressof(config), function, ctypes.addressof(pointers), None)
        if result:
            cuda.launch_again(result, ctypes.addressof(config), function, ctypes.addressof(pointers), device)
