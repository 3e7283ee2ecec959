"""Compiles CUDA: several kernels at once, each kept on disk under everything that it depends on.

NVRTC compiles in this process; nvcc does where `ATTN_MLIR_CUDA_COMPILER=nvcc` asks for it, where there is no NVRTC, and for what TileLang
made, which includes headers of the toolkit. `ATTN_MLIR_CUDA_COMPILER=nvrtc` makes a missing NVRTC an error.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attn_mlir.backends import disk_cache
from attn_mlir.backends.gpu.compiler import CompiledCode, content_of, in_parallel, kept, rejected, run_compiler
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import fat_binary, thresholds
from attn_mlir.backends.nvidia.nvrtc import library as nvrtc
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError

_SUFFIX = "cubin"
_HOPPER = Path(__file__).parent / "hopper"
NVCC_FLAGS = ("-std=c++17", "-O3", "--expt-relaxed-constexpr", "-Xptxas", "-v", "-diag-suppress=177")
_NVRTC_LANGUAGE = (
    "-std=c++17", "-Xptxas", "-v", "-diag-suppress=177",
    "-DINFINITY=__int_as_float(0x7f800000)", "-DNAN=__int_as_float(0x7fc00000)",
)  # fmt: skip
"""The same; NVRTC compiles for GPUs only, -O3 is its default, and its environment has no math.h."""
_CHOICE, _NVCC, _NVRTC = "ATTN_MLIR_CUDA_COMPILER", "nvcc", "nvrtc"
_NOISE = "ptxas info"
_SERIALISED = "instructions are serialized"
"""What ptxas tells of asynchronous products that it cannot leave in flight (C7510 and those after it)."""


@dataclass(frozen=True)
class Cubin(CompiledCode):
    """A compiled kernel: what cuModuleLoadData takes, and what ptxas said of it.

    `registers` a thread, bytes of `spills` (written and read back) and of the `stack` a thread, `shared` bytes that are static.
    """

    registers: int = 0
    spills: int = 0
    stack: int = 0
    shared: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def slow(self) -> str:
        """Why it is slower than it could be; empty where it is not."""
        if any(_SERIALISED in warning for warning in self.warnings):
            return "its registers do not suffice for products that overlap, so that each waits for the one before"
        if self.spills <= thresholds.SPILLED_BYTES * self.registers:
            return ""
        return f"its registers do not suffice, {self.spills} bytes of spills a thread go to memory and back"


@dataclass(frozen=True)
class Compiler:
    """What makes machine code of CUDA. `build` and `headers` tell what it depends on besides a kernel's source and `flags`.

    `run` takes flags and a kernel, and returns machine code and what was printed. Raises CompileError for what is rejected.
    """

    name: str
    build: str
    headers: str
    flags: Callable[[KernelCode], list[str]]
    run: Callable[[Sequence[str], KernelCode], tuple[bytes, str]]


def compile_all(codes: Sequence[KernelCode]) -> list[Cubin]:
    """Compiles kernels in parallel, or finds them on disk. Raises CompileError, or UnsupportedError without a compiler."""
    return in_parallel(compile_code, codes)


def compile_code(code: KernelCode) -> Cubin:
    """Compiles one kernel, or finds it on disk."""
    compiler = compiler_for(code.includes)
    flags = compiler.flags(code)
    key = disk_cache.key_of(code.source, " ".join(flags), compiler.name, compiler.build, compiler.headers, *code.includes)
    return kept(Cubin, key, _SUFFIX, lambda: _run(compiler, flags, code))


def asked_for() -> str:
    """The compiler that the user wants, "nvcc" or "nvrtc"; empty where nothing is said. Raises ArgumentError for other names."""
    chosen = os.environ.get(_CHOICE, "").strip().lower()
    if chosen not in ("", _NVCC, _NVRTC):
        raise ArgumentError(f"{_CHOICE} is {_NVRTC} or {_NVCC}, got {chosen!r}")
    return chosen


def compiler_for(includes: Sequence[str] = ()) -> Compiler:
    """The compiler of kernels that include headers of these packages. Raises UnsupportedError where there is none."""
    chosen = asked_for()
    if includes or chosen == _NVCC:
        return _nvcc(includes)
    if chosen == _NVRTC or nvrtc.find() is not None:
        return _nvrtc()
    return _nvcc(includes)


def _nvcc(includes: Sequence[str]) -> Compiler:
    path, folders = find_nvcc(), include_folders(includes)

    def run(flags: Sequence[str], code: KernelCode) -> tuple[bytes, str]:
        command = [path, *flags, *(f"-I{folder}" for folder in folders)]
        return run_compiler(_NVCC, command, code, ("cu", _SUFFIX), _NOISE)

    def flags(code: KernelCode) -> list[str]:
        return [*target_flags(code.arch), *NVCC_FLAGS, *code.flags]

    return Compiler(_NVCC, nvcc_version(path), content_of(folders[0], "*.h", "*.cuh"), flags, run)


def _nvrtc() -> Compiler:
    library = nvrtc.library()

    def run(flags: Sequence[str], code: KernelCode) -> tuple[bytes, str]:
        try:
            made = library.compile(code.source, f"{code.name}.cu", flags)
        except nvrtc.Rejected as error:
            raise rejected("NVRTC", code, "cu", str(error), _NOISE) from None
        number = code.arch.removeprefix("sm_")
        return (fat_binary.pack(made.cubin, made.ptx, int(number)) if number.isdigit() else made.cubin), made.log

    def flags(code: KernelCode) -> list[str]:
        return [f"-arch={code.arch}", *_NVRTC_LANGUAGE, *code.flags]

    return Compiler(_NVRTC, library.build, "".join(f"{name}\n{text}" for name, text in nvrtc.headers()), flags, run)


def find_nvcc() -> str:
    """The path of nvcc: that of $CUDA_HOME or $CUDA_PATH, on the PATH, in /usr/local/cuda, or of a Python package, in this order."""
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    candidates = [Path(home) / "bin" / "nvcc" for home in homes]
    on_path = shutil.which("nvcc")
    candidates += [Path(on_path)] if on_path else []
    candidates.append(Path("/usr/local/cuda/bin/nvcc"))
    for site in sys.path:
        candidates += sorted(Path(site).glob("nvidia/*/bin/nvcc"), reverse=True)
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    raise UnsupportedError(
        "kernels for NVIDIA GPUs are compiled with NVRTC (`pip install nvidia-cuda-nvrtc`; builds of torch for CUDA bring it along), or "
        "with nvcc where that is asked for, where there is no NVRTC, and for kernels that go through TileLang. nvcc was not found: install "
        "the CUDA toolkit (12.4 or newer) and put its bin folder on the PATH or its root in $CUDA_HOME; without root rights, "
        "`pip install 'cuda-toolkit[nvcc,cudart]'` does. Programs that this machine has compiled before are in the cache and need neither."
    )


@cache
def nvcc_version(nvcc: str) -> str:
    """The last line of `nvcc --version`, its build. Raises CompileError when it does not run."""
    try:
        made = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CompileError(f"{nvcc} does not run: {error}") from error
    return made.stdout.strip().splitlines()[-1]


def include_folders(names: Sequence[str]) -> list[Path]:
    """The folders of headers: this backend's own first, then those of the named packages."""
    folders = [_HOPPER]
    for name in names:
        if name != "tilelang":
            raise CompileError(f"there is no include folder of the name '{name}'")
        folders += _tilelang()
    return folders


@cache
def _tilelang() -> tuple[Path, ...]:
    spec = importlib.util.find_spec("tilelang")  # importing it takes seconds, and its place is all that matters
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedError("this kernel goes through TileLang, which is not installed: pip install 'attn-mlir[nvidia]'")
    root = Path(next(iter(spec.submodule_search_locations)))
    return root / "src", root / "3rdparty" / "cutlass" / "include"


def target_flags(arch: str) -> list[str]:
    """For which chip nvcc compiles. A name like sm_90a is code for that chip alone; without the letter, newer chips can translate it."""
    number = arch.removeprefix("sm_")
    if number[-1].isdigit():
        return ["-fatbin", f"-gencode=arch=compute_{number},code=[sm_{number},compute_{number}]"]
    return ["-cubin", f"-gencode=arch=compute_{number},code={arch}"]


def _run(compiler: Compiler, flags: Sequence[str], code: KernelCode) -> Cubin:
    return parse_log(*compiler.run(flags, code))


def parse_log(code: bytes, log: str) -> Cubin:
    """The facts that ptxas printed."""

    def number(pattern: str) -> int:
        return max(map(int, re.findall(pattern, log)), default=0)

    # Advice with a number, such as C7510 on products that are serialised, comes as information.
    told = ("warning", "ignored", "(C7")
    warnings = [line.strip() for line in log.splitlines() if line.startswith("ptxas") and any(word in line for word in told)]
    return Cubin(
        code,
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes smem"),
        tuple(dict.fromkeys(warnings)),
    )
