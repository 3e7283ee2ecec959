"""Compiles the source of a kernel for AMD GPUs into a library for the CPU, together with the runtime that emulates a compute unit."""

import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from attn_mlir.backends import disk_cache
from attn_mlir.backends.amd.clang import find_host_clang, find_tool, version_of
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.llvm_level import llvm_level
from attn_mlir.errors import CompileError, UnsupportedError

T = TypeVar("T")
_HERE = Path(__file__).parent
_RUNTIME = ("runtime.cpp", "wave.cpp", "memory.cpp")
_LANGUAGE = ("-std=c++17", "-fPIC")
_RUNTIME_LEVEL = "-O2"
# Vectorisation could join accesses into ones of 32 bytes, which -fsanitize=thread does not see.
_KERNEL = ("-DATTN_AMD_EMULATED", "-fsanitize=thread", "-ffp-contract=fast", "-fno-math-errno", "-fno-vectorize", "-fno-slp-vectorize",
           "-gline-tables-only", "-Wno-unknown-attributes", "-Wno-psabi", "-w")  # fmt: skip
_LINK = ("-shared", "-Wl,-Bsymbolic", "-Wl,-z,defs")
_HEADER, _INCLUDED = "attn_amd_emulated.h", (f"-I{_HERE}", f"-I{_HERE.parent}")
_READ = "read"
"""Of an entry: the files that clang read for it, and hashes of them."""
_LINES = 30


def build(code: KernelCode, load: Callable[[bytes], T]) -> T:
    """What `load` makes of the library, built or found on disk. Raises CompileError, or UnsupportedError without clang."""
    clang = find_host_clang()
    # Level 3 takes longer than 2 and gains nothing; at 0 a kernel is compiled in a quarter of the time, and runs three times as long.
    flags = [*_LANGUAGE, f"-O{min(llvm_level(), 2)}", *_processor(), *_KERNEL]
    key = disk_cache.key_of(code.source, code.entry, " ".join(flags), version_of(clang)[1], _headers(), "emulated")
    found = disk_cache.find(key, "so", lambda library, _: load(library))
    if found is not None:
        return found
    with tempfile.TemporaryDirectory() as folder:
        source, compiled, library = (Path(folder) / f"{code.name}.{suffix}" for suffix in ("hip.cpp", "o", "so"))
        source.write_text(f"{code.source}\nATTN_EMULATED_ENTRY({code.entry})\n")
        header = Path(folder) / f"{_HEADER}.pch"
        header.write_bytes(_precompiled(clang, tuple(flags)))
        _run([clang, *flags, *_INCLUDED, "-include-pch", str(header), "-c", str(source), "-o", str(compiled)], code)
        runtime = []
        for name, content in zip(_RUNTIME, _runtime(clang), strict=True):
            runtime.append(Path(folder) / f"{name}.o")
            runtime[-1].write_bytes(content)
        # Without -fsanitize=thread here: the runtime itself answers the calls that the option has put into the kernel.
        places = [str(library), str(compiled), *map(str, runtime)]
        _run([places[word] if isinstance(word, int) else word for word in _link_command(clang, len(places))], code)
        made = library.read_bytes()
    disk_cache.save(key, "so", made, {})
    return load(made)


@cache
def _link_command(clang: str, count: int) -> tuple[str | int, ...]:
    """What clang would link a library with, asked once: to find that out takes it as long as linking.

    Numbers stand for `count` files: what is made, and the object files. Raises CompileError where clang does not say.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/{number}.o" for number in range(count)]
        for file in files:
            Path(file).touch()
        command = [clang, *_linker(clang), *_LINK, "-o", *files, "-lm", "-###"]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        words = shlex.split(told.stderr.strip().splitlines()[-1]) if told.returncode == 0 else []
        if not set(files) <= set(words):
            raise CompileError(f"clang does not tell how it links: {shlex.join(command)}\n{told.stderr}")
        return tuple(files.index(word) if word in files else word for word in words)


@cache
def _linker(clang: str) -> tuple[str, ...]:
    """Asks for lld where it is, which takes half the time of others; nothing else depends on it."""
    try:
        return (f"--ld-path={find_tool('ld.lld', clang)}",)
    except UnsupportedError:
        return ()


@cache
def _runtime(clang: str) -> tuple[bytes, ...]:
    """The runtime's object files."""
    return tuple(_runtime_object(clang, name) for name in _RUNTIME)


def _runtime_object(clang: str, name: str) -> bytes:
    return _part(clang, (*_LANGUAGE, _RUNTIME_LEVEL, *_processor(), "-c"), (name, "o"), _object)


@cache
def _precompiled(clang: str, flags: tuple[str, ...]) -> bytes:
    """The header that all kernels begin with, as clang has read it: a third of what there is to compile."""
    # Without times of files, which differ between installations: the entry has what all files held, the key where ours are.
    return _part(clang, (*flags, *_INCLUDED, "-Xclang", "-fno-pch-timestamp", "-x", "c++-header"), (_HEADER, "pch"), _current)


def _part(clang: str, flags: Sequence[str], made_of: tuple[str, str], load: Callable[[bytes, dict[str, Any]], bytes]) -> bytes:
    """What clang makes of a file of this folder, with a suffix, or finds on disk."""
    name, suffix = made_of
    key = disk_cache.key_of((_HERE / name).read_text(), " ".join(flags), version_of(clang)[1], _headers())
    found = disk_cache.find(key, suffix, load)
    if found is not None:
        return found
    with tempfile.TemporaryDirectory() as folder:
        target, told = Path(folder) / f"{name}.{suffix}", Path(folder) / "read"
        _run([clang, *flags, "-MD", "-MF", str(told), str(_HERE / name), "-o", str(target)], None)
        made, read = target.read_bytes(), shlex.split(told.read_text().partition(":")[2].replace("\\\n", " "))
    disk_cache.save(key, suffix, made, {_READ: {path: _content(path) for path in read}})
    return made


def _content(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _current(code: bytes, fields: dict[str, Any]) -> bytes:
    """The code of an entry. Raises ValueError or OSError where a file that clang read, of the system too, changed."""
    if any(_content(path) != content for path, content in fields[_READ].items()):
        raise ValueError("a header has changed, and clang refuses what it has read before")
    return code


def _object(code: bytes, _: dict[str, Any]) -> bytes:
    """The code of an entry. Raises ValueError where that is no object file."""
    if not code.startswith(b"\x7fELF"):
        raise ValueError("no object file")
    return code


@cache
def _processor() -> tuple[str, ...]:
    """Options for conversions of f16 and wide vectors, where this processor has them."""
    cpuinfo = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not cpuinfo.is_file():
        return ()
    known = set(next((line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), "").split())
    return ("-mavx2", "-mfma", "-mf16c") if {"avx2", "fma", "f16c"} <= known else ()


@cache
def _headers() -> str:
    """Changes with the sources that kernels and the runtime include."""
    digest = hashlib.sha256()
    for path in sorted([*_HERE.glob("*.h"), *_HERE.glob("*.cpp"), *_HERE.parent.glob("*.h")]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _run(command: list[str], code: KernelCode | None) -> None:
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode == 0:
        return
    log = "\n".join(made.stderr.splitlines()[:_LINES])
    if code is None:
        raise CompileError(f"the runtime of the emulation of AMD GPUs does not compile:\n{log}")
    handle, name = tempfile.mkstemp(prefix=f"{code.name}-", suffix=".hip")
    with os.fdopen(handle, "w") as file:
        file.write(code.source)
    raise CompileError(f"clang rejects the kernel {code.name} for the CPU (source: {name}); please report this:\n{log}")
