"""What libraries do on a GPU besides their kernels, read by a compiler: with CUDA's headers as NVRTC gets them, and as HIP."""

import subprocess
from pathlib import Path

import pytest

from amd_tools import needs_host_clang
from attn_mlir.backends.amd.clang import find_host_clang
from generated_code import CUDA, HIP, NVRTC

ROOT = Path(__file__).parents[2]
BACKENDS = ROOT / "backends"
SHARED = (BACKENDS / "gpu/ahead/attn_device.h").read_text()


@needs_host_clang
@pytest.mark.parametrize(
    ("first", "flags"),
    [
        ("nvidia/ahead/attn_device_cuda.h", NVRTC),
        ("nvidia/ahead/attn_device_cuda.h", CUDA),
        ("amd/ahead/attn_device_hip.h", HIP),
    ],
    ids=["headers for NVRTC", "headers for clang", "hip"],
)
def test_its_headers_have_what_it_uses(first: str, flags: tuple[str, ...]) -> None:
    source = (BACKENDS / first).read_text() + SHARED
    command = [str(find_host_clang()), *flags, "-fsyntax-only", "-std=c++17", "-Wno-everything", "-"]
    made = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
