"""What is in compiled kernels, by CUDA's tools: on the PATH, or from the packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.compile import Cubin, compile_code, find_nvcc
from attn_mlir.errors import CompileError, UnsupportedError


def _has_nvcc() -> bool:
    try:
        return bool(find_nvcc())
    except (UnsupportedError, CompileError):
        return False


needs_nvcc = pytest.mark.skipif(not _has_nvcc(), reason="nvcc is not installed")


def compiled(code: KernelCode) -> Cubin:
    """A kernel by nvcc, whose matrix instructions must not be serialised; skips the test where there is no nvcc."""
    try:
        find_nvcc()
    except UnsupportedError:
        pytest.skip("there is no nvcc")
    binary = compile_code(code)
    assert not [warning for warning in binary.warnings if "C75" in warning or "serialized" in warning]
    return binary


def disassembled(kernel: Path) -> str:
    """The machine code of a cubin or fat binary as text; skips the test where there is no cuobjdump."""
    packaged = [str(folder) for folder in sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin"))]
    path = os.pathsep.join([*packaged, os.environ.get("PATH", "")])  # cuobjdump calls nvdisasm
    tool = shutil.which("cuobjdump", path=path)
    if tool is None:
        pytest.skip("there is no cuobjdump to look for matrix instructions: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    environment = {**os.environ, "PATH": path}
    return subprocess.run([tool, "-sass", str(kernel)], capture_output=True, text=True, check=True, env=environment).stdout
