"""How kernels are compiled: what nvcc and ptxas say, and what is kept on disk."""

import dataclasses
import json
from pathlib import Path

import pytest

from attn_mlir.backends.gpu.kernel import KernelParameter
from attn_mlir.backends.nvidia import compile as nvcc
from attn_mlir.backends.nvidia.compile import Cubin
from attn_mlir.errors import CompileError, UnsupportedError
from machine_code import needs_nvcc
from nvidia_fakes import code, set_apart


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_apart(monkeypatch, tmp_path / "cache")
    monkeypatch.setenv("ATTN_MLIR_CUDA_COMPILER", "nvcc")


LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas info    : Function properties for f
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16 bytes stack frame, 1024 bytes smem
ptxas warning : setmaxnreg ignored to maintain minimum register requirement
"""


def test_what_ptxas_says() -> None:
    found = nvcc.parse_log(b"x", LOG)
    assert (found.registers, found.spills, found.stack, found.shared) == (168, 56, 16, 1024)
    assert found.warnings == ("ptxas warning : setmaxnreg ignored to maintain minimum register requirement",)
    assert Cubin.of(b"x", json.loads(json.dumps(found.facts()))) == found


def test_without_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc.os, "access", lambda *_: False)
    with pytest.raises(UnsupportedError, match=r"pip install nvidia-cuda-nvrtc.*nvcc was not found"):
        nvcc.compile_code(code(KernelParameter("pointer", 0)))


def test_unknown_include_folders() -> None:
    with pytest.raises(CompileError, match="'other'"):
        nvcc.include_folders(["other"])


@needs_nvcc
def test_nvcc(tmp_path: Path) -> None:
    source = 'extern "C" __global__ void f(float *x) { x[threadIdx.x] *= 2.f; }'
    good = dataclasses.replace(code(KernelParameter("pointer", 0)), source=source)
    first, second = nvcc.compile_all([good, dataclasses.replace(good, arch="sm_80")])
    assert first.code[:4] == b"\x7fELF" and 0 < first.registers < 32 and not first.spills and second.code != first.code
    files = sorted((tmp_path / "cache").iterdir())
    assert [path.suffix for path in files].count(".cubin") == 2
    with pytest.raises(CompileError, match=r"nvcc rejects the kernel f \(source: .*\.cu\)") as error:
        nvcc.compile_code(dataclasses.replace(good, source=source.replace("2.f", "y")))
    assert 'identifier "y" is undefined' in str(error.value)
    Path(str(error.value).partition("source: ")[2].partition(")")[0]).unlink()


@needs_nvcc
def test_compiled_kernels_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    good = dataclasses.replace(code(KernelParameter("pointer", 0)), source='extern "C" __global__ void f(float *x) {}')
    first = nvcc.compile_code(good)
    monkeypatch.setattr(nvcc, "_run", lambda *_: pytest.fail("compiled again"))
    assert nvcc.compile_code(good) == first


def test_advice_of_ptxas_is_a_warning() -> None:
    line = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient registers"
    made = nvcc.parse_log(b"", f"{LOG}{line}\n")
    assert made.warnings[-1] == line and "each waits for the one before" in made.slow and not nvcc.parse_log(b"", LOG).slow
