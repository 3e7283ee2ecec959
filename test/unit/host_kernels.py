"""CUDA kernels compiled for the host (`host_cuda.h`), which tests then call."""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attn_mlir.backends.amd.clang import find_host_clang
from attn_mlir.backends.amd.emulation import build


def host_library(folder: Path, text: str) -> ctypes.CDLL:
    """What clang makes of a kernel's source and of C functions that call it."""
    source, made = folder / "kernels.cpp", folder / "made.so"
    source.write_text(f'#include "{Path(__file__).parent / "host_cuda.h"}"\n{text}')
    flags = ["-x", "c++", "-std=c++20", "-O0", "-w", "-fPIC", "-shared", f"-I{Path(build.__file__).parent}"]
    subprocess.run([find_host_clang(), *flags, "-o", str(made), str(source)], check=True)
    return ctypes.CDLL(str(made))


def start_on_host(patch: pytest.MonkeyPatch, module: Any, call: Callable[[str, bytes, int, int], None]) -> list[int]:
    """Lets a module of the NVIDIA backend start its kernels by `call`: entry, form, thread blocks and threads. Of which grids it did."""
    launched = list[int]()

    def start(entry: str, source: Any, form: bytes, grid: tuple[int, int, int], block: tuple[int, int, int], where: Any) -> None:
        launched.append(grid[0])
        call(entry, form, grid[0], block[0])

    patch.setattr(module.own_kernel, "start", start)
    patch.setattr(module.cuda, "device", lambda _: SimpleNamespace(capability=(9, 0)))
    patch.setattr(module.cuda, "current_stream", lambda _: 0)
    return launched
