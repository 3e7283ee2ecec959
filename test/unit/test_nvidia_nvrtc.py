"""CUDA compiled in this process: what NVRTC is told, when nvcc is asked instead, and what the real one makes, where it is installed."""

import dataclasses
import os
import re
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir.backends.gpu.kernel import KernelCode, KernelParameter
from attn_mlir.backends.nvidia import compile as cuda_compiler
from attn_mlir.backends.nvidia import driver
from attn_mlir.backends.nvidia.nvrtc import library
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError
from machine_code import disassembled, needs_nvcc
from nvidia_fakes import code, set_apart
from nvrtc_fakes import FakeNvrtc, code_of, install

SOFTMAX = (Path(__file__).parents[1] / "Inputs" / "derivatives" / "softmax.mlir").read_text()
TEXT = "module {\n" + SOFTMAX.replace("x64xf32", "x64xf16").replace("x32xf32", "x64xf16") + "}\n"
KERNEL = dataclasses.replace(code(KernelParameter("pointer", 0)), source="a kernel")
REAL = library.find()
needs_nvrtc = pytest.mark.skipif(REAL is None, reason="NVRTC is not installed (pip install nvidia-cuda-nvrtc)")


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_apart(monkeypatch, tmp_path / "cache")
    monkeypatch.setenv("ATTN_MLIR_KERNELS", "off")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where sources that are rejected are kept


def test_what_nvrtc_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeNvrtc())
    binary = cuda_compiler.compile_code(KERNEL)
    (made,) = fake.compiled()
    assert (made["source"], made["name"]) == (KERNEL.source, "f.cu")
    assert {"-arch=sm_90a", "-std=c++17", "-use_fast_math"} <= set(made["options"])
    assert made["options"][made["options"].index("-Xptxas") + 1] == "-v"
    assert made["headers"].keys() == {"cuda.h", "cuda_bf16.h", "cuda_fp16.h", "stdint.h"} and made["count"] == 4
    assert binary.code == code_of(KERNEL.source) and (binary.registers, binary.spills, binary.shared) == (168, 56, 1024)
    assert fake.destroyed == len(fake.programs)
    assert cuda_compiler.compile_code(KERNEL) == binary and len(fake.compiled()) == 1  # from disk


@pytest.mark.parametrize(("version", "told"), [((12, 4), False), ((12, 8), False), ((12, 9), True), ((13, 0), True)])
def test_the_cache_of_nvrtc_is_not_asked(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], told: bool) -> None:
    """What it finds there has no log, so that registers and spills would be 0; ours keeps them."""
    fake = install(monkeypatch, FakeNvrtc(version=version))
    cuda_compiler.compile_code(KERNEL)
    assert ("--no-cache" in fake.compiled()[0]["options"]) == told


@needs_nvrtc
def test_what_is_compiled_twice_has_its_registers_twice() -> None:
    real = library.library()
    logs = [real.compile("__global__ void f(int *p) { *p += 1; }", "f.cu", ["-arch=sm_90a", "-Xptxas", "-v"]).log for _ in range(2)]
    assert all(re.search(r"Used \d+ registers", log) for log in logs)


def test_another_build_compiles_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = FakeNvrtc(build=1), FakeNvrtc(build=2)
    for fake in (first, second, second):
        install(monkeypatch, fake)
        cuda_compiler.compile_code(KERNEL)
    assert [len(fake.compiled()) for fake in (first, second)] == [1, 1]
    assert cuda_compiler.compiler_for().build == "Build cuda_13.0.r13.0/compiler.2_0"  # as nvcc tells it


def test_a_rejected_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeNvrtc(rejects="a kernel"))
    with pytest.raises(CompileError, match=r"NVRTC rejects the kernel f \(source: .*\.cu\)[^$]*f\.cu\(1\): error: it is bad") as error:
        cuda_compiler.compile_code(KERNEL)
    kept = Path(str(error.value).partition("source: ")[2].partition(")")[0])
    assert kept.read_text() == KERNEL.source and fake.destroyed == len(fake.programs)


def test_nvrtc_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeNvrtc(fails=7))
    with pytest.raises(CompileError, match=r"NVRTC, compiling: NVRTC_ERROR_7 \(7\)"):
        cuda_compiler.compile_code(KERNEL)
    assert fake.destroyed == len(fake.programs)


def test_code_for_newer_chips_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name without a letter: machine code and PTX, as nvcc packs them."""
    install(monkeypatch, FakeNvrtc())
    made = cuda_compiler.compile_code(dataclasses.replace(KERNEL, arch="sm_80")).code
    magic, _, header, size = struct.unpack_from("<IHHQ", made)
    assert (magic, header, size) == (0xBA55ED50, 16, len(made) - 16)
    kind, _, begin, length = struct.unpack_from("<HHIQ", made, 16)
    assert kind == 2 and made[16 + begin :].startswith(code_of(KERNEL.source)) and length % 8 == 0
    kind, _, begin, length = struct.unpack_from("<HHIQ", made, second := 16 + begin + length)
    assert kind == 1 and b".target sm_80" in made[second + begin :] and second + begin + length == len(made)


@pytest.mark.parametrize("asked", ["", "nvrtc", "nvcc"])
@pytest.mark.parametrize("installed", [True, False])
def test_which_compiler(monkeypatch: pytest.MonkeyPatch, asked: str, installed: bool) -> None:
    install(monkeypatch, FakeNvrtc())
    if not installed:
        monkeypatch.setattr(library, "find", lambda: None)
    monkeypatch.setattr(cuda_compiler, "find_nvcc", lambda: "/bin/nvcc")
    monkeypatch.setattr(cuda_compiler, "nvcc_version", lambda _: "the build")
    monkeypatch.setenv("ATTN_MLIR_CUDA_COMPILER", asked)
    if asked == "nvrtc" and not installed:
        with pytest.raises(UnsupportedError, match="pip install nvidia-cuda-nvrtc"):
            cuda_compiler.compiler_for()
    else:
        assert cuda_compiler.compiler_for().name == ("nvrtc" if installed and asked != "nvcc" else "nvcc")
    monkeypatch.setattr(cuda_compiler, "include_folders", lambda names: [Path("/nowhere")])
    assert cuda_compiler.compiler_for(["tilelang"]).name == "nvcc"  # it includes headers of the toolkit


def test_an_unknown_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_MLIR_CUDA_COMPILER", "clang")
    with pytest.raises(ArgumentError, match="ATTN_MLIR_CUDA_COMPILER is nvrtc or nvcc, got 'clang'"):
        cuda_compiler.compile_code(KERNEL)


@pytest.mark.parametrize(("torch_cuda", "found"), [("12.8", ["12", "13", "11"]), ("13.0", ["13", "12", "11"]), (None, ["13", "12", "11"])])
def test_where_it_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, torch_cuda: str | None, found: list[str]) -> None:
    """In packages, that of torch's release of CUDA first, then in the toolkit, then through the loader; one that is too old is left."""
    for place in ("nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "nvidia/cu13/lib/libnvrtc.so.13", "nvidia/old/lib/libnvrtc.so.11"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).touch()
    (tmp_path / "nvidia/cu13/lib/libnvrtc-builtins.so.13.0").touch()
    (tmp_path / "nvidia/cu13/lib/libnvrtc.alt.so.13").touch()
    (tmp_path / "toolkit/lib64").mkdir(parents=True)
    (tmp_path / "toolkit/lib64/libnvrtc.so.13").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(torch.version, "cuda", torch_cuda)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    tried = list(library._candidates())
    assert [str(path).rpartition(".")[2] for path in tried[:3]] == found
    assert tried[3] == tmp_path / "toolkit/lib64/libnvrtc.so.13" and "libnvrtc.so.12" in tried[4:]

    versions = {"11": (11, 8), "12": (12, 4), "13": (13, 0)}
    monkeypatch.setattr(library, "_load", lambda path: FakeNvrtc(versions[str(path).rpartition(".")[2]]))
    chosen = library.find.__wrapped__()
    assert chosen is not None and chosen.version == versions[found[0]]
    monkeypatch.setattr(library, "_load", lambda path: FakeNvrtc((11, 8)))
    assert library.find.__wrapped__() is None


def test_the_backward_is_compiled_beside_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeNvrtc())
    program: Any = driver.compile_derivative(TEXT, "fwd", ("q", "k", "v"))
    assert not fake.compiled()  # stages and explanations need no machine code
    program.binaries()
    _join()
    backward = driver.compile_derivative(TEXT, "bwd", ("q", "k", "v"))
    units = [*program.units.values(), *backward.units.values()]
    assert backward._binaries is not None and len(units) == 4
    assert sorted(made["source"] for made in fake.compiled()) == sorted(unit.code.source for unit in units)
    assert all(binary.code == code_of(backward.units[name].code.source) for name, binary in backward.binaries().items())


def test_a_backward_that_fails_beside_the_forward_is_told_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvrtc(rejects="row_dot"))
    driver.compile_derivative(TEXT, "fwd", ("q", "k", "v")).binaries()
    _join()
    with pytest.raises(CompileError, match="NVRTC rejects the kernel"):
        driver.compile_derivative(TEXT, "bwd", ("q", "k", "v")).binaries()


def _join() -> None:
    """Waits for what is compiled in the background."""
    for thread in threading.enumerate():
        if thread.name == "attn-mlir-ahead":
            thread.join()


# ---- the real one ----


@pytest.fixture(scope="module")
def codes() -> list[KernelCode]:
    """Kernels of a softmax: forward, and the three of a backward pass."""
    programs: list[Any] = [driver.compile_derivative(TEXT, function, ("q", "k", "v")) for function in ("fwd", "bwd")]
    return [unit.code for program in programs for unit in program.units.values()]


@needs_nvrtc
@needs_nvcc
def test_nvrtc_makes_what_nvcc_makes(monkeypatch: pytest.MonkeyPatch, codes: list[KernelCode]) -> None:
    """Registers, shared memory and warnings are the same where both are of one build, and spills nearly so."""
    if REAL is None or REAL.build != cuda_compiler.nvcc_version(cuda_compiler.find_nvcc()):
        pytest.skip("nvcc is of another build than NVRTC")
    made: dict[str, list[Any]] = {}
    for name in ("nvrtc", "nvcc"):
        monkeypatch.setenv("ATTN_MLIR_CUDA_COMPILER", name)
        made[name] = cuda_compiler.compile_all(codes[:2])
    for ours, theirs in zip(made["nvrtc"], made["nvcc"], strict=True):
        assert ours.code[:4] == b"\x7fELF" and not ours.slow
        assert {**ours.facts(), "spills": 0} == {**theirs.facts(), "spills": 0} and abs(ours.spills - theirs.spills) <= 16


@needs_nvrtc
def test_what_nvrtc_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Types of 16 bits, lines of the source, spills, and errors with their place."""
    monkeypatch.setenv("ATTN_MLIR_CUDA_COMPILER", "nvrtc")
    source = """#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void f(float *x, __half *h, __nv_bfloat16 *b) {
  x[0] = x[0] < INFINITY ? __half2float(h[0]) + __bfloat162float(b[0]) : NAN;
  h[1] = __float2half_rn(x[1]), b[1] = __float2bfloat16_rn(x[1]);
}"""
    kernel = dataclasses.replace(KERNEL, source=source)
    binary = cuda_compiler.compile_code(kernel)
    assert 0 < binary.registers < 32 and not binary.spills and not binary.slow
    lines = cuda_compiler.compile_code(dataclasses.replace(kernel, flags=("-lineinfo",)))
    assert b".debug_line" in lines.code and b".debug_line" not in binary.code
    values = "\n".join(f"  float v{i} = x[{i} * n]; x[{i}] = v{i};" for i in range(80))
    sums = " + ".join(f"v{i} * v{(i * 7) % 80}" for i in range(80))
    spilling = f'extern "C" __global__ void __launch_bounds__(1024, 2) f(volatile float *x, int n) {{\n{values}\n  x[n] = {sums};\n}}'
    assert cuda_compiler.compile_code(dataclasses.replace(KERNEL, source=spilling)).spills > 0
    with pytest.raises(CompileError, match=r'f\.cu\(4\): error: identifier "NONE" is undefined'):
        cuda_compiler.compile_code(dataclasses.replace(kernel, source=source.replace("NAN", "NONE")))


@needs_nvrtc
def test_fat_binaries_are_read_by_the_tools_of_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTN_MLIR_CUDA_COMPILER", "nvrtc")
    kernel = dataclasses.replace(KERNEL, arch="sm_80", source='extern "C" __global__ void f(float *x) { x[0] *= 2.f; }')
    path = tmp_path / "f.fatbin"
    path.write_bytes(cuda_compiler.compile_code(kernel).code)
    assert re.search(r"code for sm_80.*(FMUL|FADD)", disassembled(path), re.DOTALL)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_forks_wait_for_programs_that_are_being_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvrtc()
    begun, inside = threading.Event(), threading.Lock()
    compile_program = fake._CompileProgram

    def slow(*arguments: Any) -> int:
        with inside:  # such as NVRTC has
            begun.set()
            time.sleep(0.3)
            return compile_program(*arguments)

    monkeypatch.setattr(fake, "_CompileProgram", slow)
    found = library.Nvrtc(fake)
    thread = threading.Thread(target=lambda: found.compile("other", "x.cu", ()))
    thread.start()
    assert begun.wait(10)
    child = os.fork()
    if child == 0:
        os._exit(0 if inside.acquire(timeout=2) else 1)
    _, status = os.waitpid(child, 0)
    thread.join()
    assert status == 0 and found.compile("again", "x.cu", ()).cubin == code_of("again")
