"""What is in compiled kernels, by CUDA's tools: on the PATH, or from the packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest


def disassembled(kernel: Path) -> str:
    """The machine code of a cubin or fat binary as text; skips the test where there is no cuobjdump."""
    packaged = [str(folder) for folder in sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin"))]
    path = os.pathsep.join([*packaged, os.environ.get("PATH", "")])  # cuobjdump calls nvdisasm
    tool = shutil.which("cuobjdump", path=path)
    if tool is None:
        pytest.skip("there is no cuobjdump to look for matrix instructions: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    environment = {**os.environ, "PATH": path}
    return subprocess.run([tool, "-sass", str(kernel)], capture_output=True, text=True, check=True, env=environment).stdout
