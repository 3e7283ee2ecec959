"""CUDA kernels compiled for the host (`host_cuda.h`), which tests then call."""

import ctypes
import subprocess
from pathlib import Path

from attn_mlir.backends.amd.clang import find_host_clang


def host_library(folder: Path, text: str) -> ctypes.CDLL:
    """What clang makes of a kernel's source and of C functions that call it."""
    source, made = folder / "kernels.cpp", folder / "made.so"
    source.write_text(f'#include "{Path(__file__).parent / "host_cuda.h"}"\n{text}')
    command = [find_host_clang(), "-x", "c++", "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-pthread", "-o", str(made), str(source)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(made))
