"""The CMake function attn_add_kernel_library: configures, builds and runs the example, builds again what changed, and tells of mistakes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from amd_tools import needs_clang

_ROOT = Path(__file__).parents[2]
_MISSING = [name for name in ("cmake", "c++", "make", "ar") if shutil.which(name) is None]
pytestmark = pytest.mark.skipif(bool(_MISSING), reason=f"needs {', '.join(_MISSING)}")
_MODULE = _ROOT / "python" / "attn_mlir" / "cmake"


def configure(source: Path, build: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["cmake", "-S", source, "-B", build, f"-Dattn_mlir_DIR={_MODULE}", f"-DATTN_MLIR_PYTHON={sys.executable}", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def build(folder: Path) -> str:
    made = subprocess.run(["cmake", "--build", folder], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


@needs_clang
def test_the_example_is_built_with_libraries_for_two_targets(tmp_path: Path) -> None:
    """Both are in one program, whose parts for the CPU and for a GPU have the same names."""
    made = configure(_ROOT / "examples" / "cmake", tmp_path, "-DATTN_GPU=hip:gfx90a")
    assert made.returncode == 0, made.stderr
    text = build(tmp_path)
    assert "for cpu" in text and "for hip:gfx90a" in text
    assert (tmp_path / "nearer.attn" / "libnearer.a").exists()
    ran = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "from the formula" in ran.stdout and "on the GPU the backward pass needs " in ran.stdout


_PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(small CXX)
find_package(attn_mlir REQUIRED)
attn_add_kernel_library(small SPEC attention.py:{name} TARGET {target} NAME doubled DTYPE f32 DIM 8 NO_BACKWARD {more})
add_executable(program main.cpp)
target_link_libraries(program PRIVATE small)
"""
_ATTENTION = """
import attn_mlir
from factors import FACTOR
scaled = attn_mlir.Attention(value_mod=lambda x: x * FACTOR)
"""
_MAIN = r"""
#include <cstdio>
#include "doubled.h"
int main() {
  float q[8] = {}, v[8] = {1, 2, 3, 4, 5, 6, 7, 8}, o[8];
  int64_t shape[] = {1, 1, 1, 8};
  auto tensor = [&](float *data) { return DLTensor{data, {kDLCPU, 0}, 4, {kDLFloat, 32, 1}, shape, nullptr, 0}; };
  DLTensor x = tensor(q), y = tensor(v), z = tensor(o);
  int code = doubled_forward(&x, &x, &y, 2.0, &z, nullptr, 0, nullptr, 1);
  std::printf("%d %g", code, o[7]);
}
"""


def _project(folder: Path, name: str = "scaled", target: str = "cpu", more: str = "") -> Path:
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(_PROJECT.format(name=name, target=target, more=more))
    (folder / "attention.py").write_text(_ATTENTION)
    (folder / "factors.py").write_text("FACTOR = float('2')\n")
    (folder / "main.cpp").write_text(_MAIN)
    return folder


def test_a_change_of_a_module_beside_the_file_builds_again(tmp_path: Path) -> None:
    source, folder = _project(tmp_path / "source"), tmp_path / "build"
    assert configure(source, folder).returncode == 0
    assert "Compiling scaled" in build(folder)
    assert subprocess.run([folder / "program"], capture_output=True, text=True, check=True).stdout == "0 16"
    assert "Compiling scaled" not in build(folder)
    header = (folder / "small.attn" / "doubled.h").read_text()
    assert "doubled_forward(" in header and "doubled_backward(" not in header and "2.0 when the library was made" in header
    (source / "factors.py").write_text("FACTOR = float('3')\n")
    later = (folder / "small.attn" / "libdoubled.a").stat().st_mtime + 5
    os.utime(source / "factors.py", (later, later))
    assert "Compiling scaled" in build(folder)
    assert "3.0 when the library was made" in (folder / "small.attn" / "doubled.h").read_text()


def test_mistakes(tmp_path: Path) -> None:
    def refused(number: int, message: str, **changed: str) -> None:
        made = configure(_project(tmp_path / f"s{number}", **changed), tmp_path / f"b{number}")
        assert made.returncode and message in " ".join(made.stderr.split()), made.stderr

    refused(1, "TARGET is cpu, cuda:90a or hip:gfx90a; got 'tpu'", target="tpu")
    refused(2, "what is 'HEADS;4'?", more="HEADS 4")
    refused(3, "SPEC is a Python file, and the attention's name in it, such as model.py:attention; got 'attention.py:2'", name="2")
