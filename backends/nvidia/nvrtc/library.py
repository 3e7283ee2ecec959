"""Finds NVRTC and calls it, through ctypes. Importing this needs no NVRTC.

The library comes with torch's builds for CUDA (package nvidia-cuda-nvrtc) and with the toolkit. Programs are independent of each other, so
threads may compile at the same time; the interpreter runs meanwhile.
"""

import ctypes
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from attn_mlir import forks
from attn_mlir.errors import CompileError, UnsupportedError

_SUCCESS, _REJECTED = 0, 6
_OLDEST = (12, 4)
_WITH_CACHE = (12, 9)
"""From here on NVRTC keeps what it made in a cache of its own, and tells nothing of registers and spills for what it finds there."""
_RUNNING = forks.SharedUse()
"""A child of a fork cannot take locks of NVRTC that another thread held."""
_HEADERS = ("cuda.h", "cuda_bf16.h", "cuda_fp16.h", "stdint.h")
_KEPT: list[Any] = []
"""Libraries that NVRTC looks for by their names once it compiles: they must have been loaded before."""
_MISSING = (
    "NVRTC, CUDA's compiler as a library, was not found: `pip install nvidia-cuda-nvrtc` (for CUDA 12: nvidia-cuda-nvrtc-cu12), 12.4 or "
    "newer, which builds of torch for CUDA bring along"
)


@dataclass(frozen=True)
class NvrtcOutput:
    """What NVRTC made of a program: machine code (empty for a virtual architecture), PTX, and what it and ptxas printed."""

    cubin: bytes
    ptx: bytes
    log: str


class Rejected(Exception):
    """NVRTC does not take a program; the text is its log."""


class Nvrtc:
    """A loaded NVRTC. `version` is CUDA's, such as (13, 0)."""

    def __init__(self, handle: Any) -> None:
        self._calls = handle
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(handle.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "asking for its version")
        self.version = (major.value, minor.value)
        self._build = ""

    @property
    def build(self) -> str:
        """The build, in the form in which nvcc tells its own: both are of the same compiler where they agree."""
        if not self._build:
            ptx = self.compile("", "build.cu", ()).ptx.decode(errors="replace")
            number = re.search(r"Compiler Build ID: CL-(\d+)", ptx)
            release = ".".join(map(str, self.version))
            self._build = f"Build cuda_{release}.r{release}/compiler.{number.group(1)}_0" if number else f"NVRTC {release}: {ptx[:200]}"
        return self._build

    def compile(self, source: str, name: str, options: Sequence[str]) -> NvrtcOutput:
        """Compiles a program; messages call it `name`. Raises Rejected, and CompileError where something else is wrong."""
        with _RUNNING:
            return self._compile(source, name, options)

    def _compile(self, source: str, name: str, options: Sequence[str]) -> NvrtcOutput:
        program = ctypes.c_void_p()
        texts, names = _strings(text for _, text in headers()), _strings(name for name, _ in headers())
        text = (source.encode(), name.encode())
        self._check(self._calls.nvrtcCreateProgram(ctypes.byref(program), *text, len(names), texts, names), "reading a program")
        try:
            given = [*options, "--no-cache"] if self.version >= _WITH_CACHE else options
            result = self._calls.nvrtcCompileProgram(program, len(given), _strings(given))
            log = self._text(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if result == _REJECTED:
                raise Rejected(log)
            self._check(result, "compiling", log)
            return NvrtcOutput(self._text(program, "CUBIN"), self._text(program, "PTX").rstrip(b"\0"), log)
        finally:
            self._calls.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._calls, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), f"asking for the size of its {what}")
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._calls, f"nvrtcGet{what}")(program, buffer), f"asking for its {what}")
        return buffer.raw

    def _check(self, result: int, what: str, log: str = "") -> None:
        if result != _SUCCESS:
            self._calls.nvrtcGetErrorString.restype = ctypes.c_char_p
            told = (self._calls.nvrtcGetErrorString(result) or b"an unknown error").decode()
            raise CompileError(f"NVRTC, {what}: {told} ({result})" + (f":\n{log.strip()}" if log.strip() else ""))


@cache
def headers() -> tuple[tuple[str, str], ...]:
    """The names and texts of the headers that programs may include."""
    folder = files("attn_mlir.backends.nvidia.nvrtc")
    return tuple((name, (folder / name).read_text()) for name in _HEADERS)


@cache
def find() -> Nvrtc | None:
    """NVRTC, or None where there is none that is new enough.

    That of a Python package comes first, of the release of CUDA that torch is built for if there are several; then that of $CUDA_HOME,
    $CUDA_PATH or /usr/local/cuda, and what the loader knows.
    """
    for candidate in _candidates():
        try:
            library = Nvrtc(_load(candidate))
        except (OSError, AttributeError, CompileError):
            continue
        if library.version >= _OLDEST:
            return library
    return None


def library() -> Nvrtc:
    """NVRTC. Raises UnsupportedError where there is none."""
    found = find()
    if found is None:
        raise UnsupportedError(f"{_MISSING}. ATTN_MLIR_CUDA_COMPILER=nvcc asks for the toolkit's compiler instead")
    return found


def _candidates() -> Iterator[Path | str]:
    wanted = int((getattr(torch.version, "cuda", None) or "0").partition(".")[0])
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    packaged = [path for site in sys.path for path in Path(site or ".").glob("nvidia/*/lib/libnvrtc.so.*")]
    yield from sorted(packaged, key=lambda path: (_number(path) == wanted, _number(path)), reverse=True)
    for home in (*homes, "/usr/local/cuda"):
        yield from sorted(Path(home, "lib64").glob("libnvrtc.so.*"), key=_number, reverse=True)
    yield from (f"libnvrtc.so.{number}" for number in dict.fromkeys((wanted, 13, 12)) if number)


def _number(path: Path) -> int:
    """The major version in the name of a library."""
    found = re.search(r"\.so\.(\d+)", path.name)
    return int(found.group(1)) if found else 0


def _load(candidate: Path | str) -> Any:
    if isinstance(candidate, Path):
        _KEPT.extend(ctypes.CDLL(str(beside)) for beside in sorted(candidate.parent.glob("libnvrtc-builtins.so.*")))
    return ctypes.CDLL(str(candidate))


def _strings(texts: Iterable[str]) -> Any:
    encoded = [text.encode() for text in texts]
    return (ctypes.c_char_p * len(encoded))(*encoded)
