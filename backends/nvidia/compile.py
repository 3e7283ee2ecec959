"""Compiles CUDA with nvcc: several kernels at once, each kept on disk under everything that it depends on."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from attn_mlir.backends import disk_cache
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.errors import CompileError, UnsupportedError

_SUFFIX = "cubin"
_HOPPER = Path(__file__).parent / "hopper"
_LANGUAGE = ("-std=c++17", "-O3", "--expt-relaxed-constexpr", "-Xptxas", "-v", "-diag-suppress=177")
_LINES = 40
_LOCK = threading.Lock()
_POOL: list[ThreadPoolExecutor] = []


@dataclass(frozen=True)
class Binary:
    """A compiled kernel: what cuModuleLoadData takes, and what ptxas said of it.

    `registers` a thread, bytes of `spills` (written and read back) and of the `stack` a thread, `shared` bytes that are static.
    """

    code: bytes
    registers: int = 0
    spills: int = 0
    stack: int = 0
    shared: int = 0
    warnings: tuple[str, ...] = ()

    def facts(self) -> dict[str, object]:
        """All but the code, as plain data."""
        return {name: value for name, value in asdict(self).items() if name != "code"}

    @staticmethod
    def of(code: bytes, facts: dict[str, object]) -> "Binary":
        """The inverse of `facts`. Raises LookupError or TypeError for other data."""
        return Binary(code, **{**facts, "warnings": tuple(facts["warnings"])})  # type: ignore[arg-type]


def compile_all(codes: Sequence[KernelCode]) -> list[Binary]:
    """Compiles kernels in parallel, or finds them on disk. Raises CompileError, or UnsupportedError without nvcc."""
    if len(codes) == 1:
        return [compile_code(codes[0])]
    return list(_pool().map(compile_code, codes))


def compile_code(code: KernelCode) -> Binary:
    """Compiles one kernel, or finds it on disk."""
    nvcc = find_nvcc()
    folders = include_folders(code.includes)
    flags = [*_target_flags(code.arch), *_LANGUAGE, *code.flags]
    key = disk_cache.key_of(code.source, " ".join(flags), nvcc_version(nvcc), *(_content(folder) for folder in folders[:1]), *code.includes)
    found = disk_cache.load(key, _SUFFIX)
    if found is not None:
        try:
            return Binary.of(*found)
        except (LookupError, TypeError):
            pass
    binary = _run(nvcc, [*flags, *(f"-I{folder}" for folder in folders)], code)
    disk_cache.save(key, _SUFFIX, binary.code, binary.facts())
    return binary


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
        "kernels for NVIDIA GPUs are compiled with nvcc, which was not found: install the CUDA toolkit (12.4 or newer) and put its bin "
        "folder on the PATH or its root in $CUDA_HOME; without root rights, `pip install 'cuda-toolkit[nvcc,cudart]'` does. "
        "Programs that this machine has compiled before are in the cache and do not need it."
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


@cache
def _content(folder: Path) -> str:
    """Changes with the headers in a folder."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.h"), *folder.glob("*.cuh")]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _target_flags(arch: str) -> list[str]:
    """A name like sm_90a is code for that chip alone; without the letter, newer chips can translate it."""
    number = arch.removeprefix("sm_")
    if number[-1].isdigit():
        return ["-fatbin", f"-gencode=arch=compute_{number},code=[sm_{number},compute_{number}]"]
    return ["-cubin", f"-gencode=arch=compute_{number},code={arch}"]


def _run(nvcc: str, flags: Sequence[str], code: KernelCode) -> Binary:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / f"{code.name}.cu", Path(folder) / f"{code.name}.{_SUFFIX}"
        source.write_text(code.source)
        made = subprocess.run([nvcc, *flags, "-o", str(target), str(source)], capture_output=True, text=True, check=False)
        if made.returncode or not target.exists():
            raise CompileError(_failure(code, made.stderr or made.stdout))
        return parse_log(target.read_bytes(), made.stderr + made.stdout)


def _failure(code: KernelCode, log: str) -> str:
    """What nvcc said; the source goes to a file, where its line numbers lead."""
    handle, name = tempfile.mkstemp(prefix=f"{code.name}-", suffix=".cu")
    with os.fdopen(handle, "w") as file:
        file.write(code.source)
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith("ptxas info")][:_LINES]
    return f"nvcc rejects the kernel {code.name} (source: {name}); please report this:\n" + "\n".join(lines)


def parse_log(code: bytes, log: str) -> Binary:
    """The facts that ptxas printed."""

    def number(pattern: str) -> int:
        return max(map(int, re.findall(pattern, log)), default=0)

    # Advice with a number, such as C7510 on products that are serialised, comes as information.
    told = ("warning", "ignored", "(C7")
    warnings = [line.strip() for line in log.splitlines() if line.startswith("ptxas") and any(word in line for word in told)]
    return Binary(
        code,
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes smem"),
        tuple(dict.fromkeys(warnings)),
    )


def _pool() -> ThreadPoolExecutor:
    with _LOCK:
        if not _POOL:
            _POOL.append(ThreadPoolExecutor(max(2, os.cpu_count() or 1), "nvcc"))
    return _POOL[0]
