"""Libraries for NVIDIA GPUs on a libcuda that runs nothing: what they tell the driver is what Python tells it; errors; the stream."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import attn_mlir
from ahead_calls import plain_host
from ahead_cuda_calls import load
from ahead_cuda_cases import ALIBI, CASES, LIBRARIES, Spec, compared, copies, failures, streams, without_driver
from attn_mlir.backends.nvidia import compile as nvidia_compile
from attn_mlir.backends.nvidia.ahead import build as ahead_build
from attn_mlir.backends.nvidia.compile import compile_all
from attn_mlir.errors import UnsupportedError
from nvidia_fakes import BINARY
from processes import pool

C, CXX = shutil.which("cc") or shutil.which("gcc"), shutil.which(os.environ.get("CXX") or "c++")
try:
    nvidia_compile.compiler_for()
    MISSING = "" if C and CXX else "needs a C and a C++ compiler"
except UnsupportedError:
    MISSING = "needs NVRTC or nvcc"
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
SOURCE = Path(__file__).parents[1] / "Inputs" / "fake_cuda.c"
PRINTED = ("alibi", "fixed", "sigmoid", "states", "wide")
"""Libraries whose kernels are printed, but not compiled: the libcuda here runs none, and tests of the printers compile such kernels."""
OPTIMISED = ("odd", "packed")
"""Libraries whose host's part is optimised, as users have it: an attention and a linear one."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The library of a case, made once."""
    found: dict[str, Path] = {}
    folder = tmp_path_factory.mktemp("cuda")

    def compile_kernels(name: str) -> Any:
        return mock.patch.object(ahead_build, "compile_all", (lambda codes: [BINARY] * len(codes)) if name in PRINTED else compile_all)

    def make(name: str) -> Path:
        name = LIBRARIES[name]
        if name not in found:
            attention, spec, _, more = CASES[name]
            with compile_kernels(name), plain_host(name not in OPTIMISED):
                found[name] = attn_mlir.compile_ahead(attention, spec, "sm_90a", folder / f"lib{name}.so", **more).library
        return found[name]

    return make


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Calls a function in a process that has a fake libcuda in place of the real one."""
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([str(C), *flags, str(SOURCE), "-o", str(library)], check=True)
    with pool(load, library) as process:
        yield lambda function, *arguments: process.submit(function, *arguments).result()


@pytest.mark.parametrize("name", CASES)
def test_kernels_are_launched_as_python_launches_them(made: Callable[[str], Path], elsewhere: Callable[..., Any], name: str) -> None:
    """Grids, clusters, shared memory, descriptors and parameters of every kernel, in order, in a workspace of the size that is told."""
    found = elsewhere(compared, made(name), name)
    linear = name in ("states", "long", "packed")
    assert set(found) == (
        {"forward"} if name in ("wide", "sliced") else {"forward", "backward"} | (set() if linear else {"training_forward"})
    )
    for mine, wanted in found.values():
        assert wanted and mine == wanted


def test_it_needs_no_driver_to_be_linked(made: Callable[[str], Path]) -> None:
    needed = subprocess.run(["ldd", str(made("odd"))], capture_output=True, text=True, check=True).stdout
    assert "cuda" not in needed and "torch" not in needed


def test_without_a_driver_sizes_are_told_and_calls_fail(made: Callable[[str], Path]) -> None:
    if shutil.which("nvidia-smi") or torch.cuda.is_available():
        pytest.skip("there is a driver")
    size, message = without_driver(made("odd"))
    assert size > 0 and message == "10: this machine has no NVIDIA driver (libcuda.so.1)"


def test_errors(made: Callable[[str], Path], elsewhere: Callable[..., Any]) -> None:
    told = elsewhere(failures, made("odd"))
    wrong, start, code, launch, memory, other, stream, small, host = told
    assert wrong == "9: device 2, a NVIDIA Fake, has compute capability 8.0, and the library was made for sm_90a"
    assert start == "10: starting the NVIDIA driver: CUDA_ERROR_FAKE (100): what the driver says of it"
    assert code == "10: loading a kernel: CUDA_ERROR_FAKE (209): what the driver says of it"
    assert launch.startswith("10: launching attn_copy: CUDA_ERROR_FAKE (719)")
    assert memory.startswith("10: taking ") and "bytes of memory for a workspace: CUDA_ERROR_FAKE (2)" in memory
    assert other == "5: k is on CUDA device 1, but q is on 0"
    assert stream == "5: the stream is of another device than q, which is on 0"
    assert small.startswith("7: the workspace has 16 bytes, ")
    assert host == "5: q is on device type 1, this library reads the memory of CUDA devices (kDLCUDA)"


def test_everything_is_on_the_stream_of_the_call(made: Callable[[str], Path], elsewhere: Callable[..., Any]) -> None:
    calls, (captured, eager) = elsewhere(streams, made("lookup"))
    names = [each["call"] for each in calls]
    assert names.count("launch") == 1 and names.count("take") == names.count("free") == 1 and names.index("wait") < names.index("launch")
    assert {each["stream"] for each in calls if "stream" in each} == {103}
    assert captured == ""  # nothing can be read there
    assert eager.startswith("6: table has size 7 in dimension 0, but is read at places") and eager.endswith("runs over 0..9")


def test_only_columns_that_are_apart_are_copied(made: Callable[[str], Path], elsewhere: Callable[..., Any]) -> None:
    assert elsewhere(copies, made("alibi")) == ([], ["attn_copy"], ["attn_copy"])


def test_header_and_functions_of_a_library(made: Callable[[str], Path]) -> None:
    header = made("alibi").with_name("alibi.h").read_text()
    assert "compiled ahead of time for sm_90a" in header and "ATTN_MLIR_ERROR_DRIVER = 10" in header
    assert ctypes.CDLL(str(made("alibi"))).alibi_last_error is not None


def test_what_no_kernel_takes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="kernels for NVIDIA GPUs take 16-bit inputs, but q, k and v are f32"):
        attn_mlir.compile_ahead(ALIBI, Spec(torch.float32, 64), "sm_90a", tmp_path / "libx.so")
