"""Finds clang: the compiler of kernels for AMD GPUs, and of their emulation on the CPU."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attn_mlir.errors import CompileError, UnsupportedError

_NEWEST, _OLDEST = 24, 18


def find_clang() -> str:
    """The path of clang++ for AMD GPUs: $ATTN_MLIR_CLANG, that of $ROCM_PATH, clang++-24 to clang++-18, clang++ on the PATH, /opt/rocm.

    Raises UnsupportedError where there is none.
    """
    for candidate in _candidates():
        if has_amdgpu(candidate):
            return candidate
    raise UnsupportedError(
        f"kernels for AMD GPUs are compiled with clang {_OLDEST} or newer and its linker, lld, and none with the AMDGPU target was found: "
        "`apt install clang-22 lld-22` (or another version), or put ROCm's root in $ROCM_PATH, or the path of clang++ in $ATTN_MLIR_CLANG"
    )


def find_host_clang() -> str:
    """The path of clang++ that compiles emulated kernels for the CPU, in the same order; it needs no AMDGPU target."""
    for candidate in _candidates():
        if version_of(candidate)[0] >= _OLDEST:
            return candidate
    raise UnsupportedError(
        f"kernels for AMD GPUs are emulated with clang {_OLDEST} or newer, which was not found: `apt install clang-22`, or put the path of "
        "clang++ in $ATTN_MLIR_CLANG"
    )


def find_tool(name: str, clang: str) -> str:
    """A program of LLVM, such as llvm-objdump: that beside clang, or of clang's version, or any on the PATH. Raises UnsupportedError."""
    beside = Path(clang).resolve().parent / name
    if beside.is_file():
        return str(beside)
    for candidate in (f"{name}-{version_of(clang)[0]}", name):
        found = shutil.which(candidate)
        if found:
            return found
    raise UnsupportedError(f"{name} was not found beside {clang} or on the PATH: `apt install llvm-{version_of(clang)[0]}`")


def _candidates() -> Iterator[str]:
    chosen = os.environ.get("ATTN_MLIR_CLANG")
    if chosen:
        yield chosen
        return
    rocm = os.environ.get("ROCM_PATH")
    paths = [Path(rocm) / "llvm" / "bin" / "clang++"] if rocm else []
    names = [*(f"clang++-{number}" for number in range(_NEWEST, _OLDEST - 1, -1)), "clang++"]
    paths += [Path(found) for found in map(shutil.which, names) if found]
    paths.append(Path("/opt/rocm/llvm/bin/clang++"))
    yield from (str(path) for path in paths if path.is_file() and os.access(path, os.X_OK))


@cache
def version_of(clang: str) -> tuple[int, str]:
    """The major version, and the first line of `clang++ --version`. Raises CompileError when it does not run."""
    text = _output(clang, "--version")
    found = re.search(r"clang version (\d+)", text)
    return (int(found.group(1)) if found else 0, text.splitlines()[0])


@cache
def has_amdgpu(clang: str) -> bool:
    """Whether it is new enough, and makes code for AMD GPUs."""
    return version_of(clang)[0] >= _OLDEST and "amdgcn" in _output(clang, "--print-targets")


def _output(clang: str, option: str) -> str:
    try:
        return subprocess.run([clang, option], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise CompileError(f"{clang} does not run: {error}") from error
