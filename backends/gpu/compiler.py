"""Runs a compiler on sources of kernels: several at once, each kept on disk under everything that it depends on."""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

from attn_mlir import forks
from attn_mlir.backends import disk_cache, plain
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.errors import CompileError

_LINES = 40
_LOCK = forks.lock()
_POOL: list[ThreadPoolExecutor] = []
forks.in_child(_POOL.clear)


@dataclass(frozen=True)
class CompiledCode:
    """A compiled kernel; subclasses add what a compiler said of it, and `warnings`."""

    code: bytes

    def facts(self) -> dict[str, Any]:
        """All but the code, as plain data."""
        return {name: value for name, value in asdict(self).items() if name != "code"}

    @classmethod
    def of(cls, code: bytes, facts: dict[str, Any]) -> Self:
        """The inverse of `facts`. Raises LookupError, TypeError or ValueError for other data."""
        if not code:
            raise ValueError("there is no code")
        return replace(plain.read(cls, {**facts, "code": b""}), code=code)


BinaryT = TypeVar("BinaryT", bound=CompiledCode)


def kept(kind: type[BinaryT], key: str, suffix: str, make: Callable[[], BinaryT]) -> BinaryT:
    """What the disk holds under `key`, else what `make` gives, which is kept there; `suffix` is that of its file."""
    found = disk_cache.find(key, suffix, kind.of)
    if found is not None:
        return found
    binary = make()
    disk_cache.save(key, suffix, binary.code, binary.facts())
    return binary


def in_parallel(compile_one: Callable[[KernelCode], BinaryT], codes: Sequence[KernelCode]) -> list[BinaryT]:
    """`compile_one` of each, in threads; they wait for processes, or for libraries that let the interpreter run."""
    if len(codes) == 1:
        return [compile_one(codes[0])]
    with _LOCK:
        if not _POOL:
            _POOL.append(ThreadPoolExecutor(max(2, os.cpu_count() or 1), "compiler"))
    return list(_POOL[0].map(compile_one, codes))


def run_compiler(name: str, command: Sequence[str], code: KernelCode, suffixes: tuple[str, str], noise: str) -> tuple[bytes, str]:
    """The machine code of a kernel, and what its compiler `name` printed. Raises what `rejected` makes of it.

    `suffixes` are those of the source and of what is made of it.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, target = (Path(folder) / f"{code.name}.{suffix}" for suffix in suffixes)
        source.write_text(code.source)
        made = subprocess.run([*command, "-o", str(target), str(source)], capture_output=True, text=True, check=False)
        log = made.stderr + made.stdout
        if not made.returncode and target.exists():
            return target.read_bytes(), log
    raise rejected(name, code, suffixes[0], log, noise)


def rejected(name: str, code: KernelCode, suffix: str, log: str, noise: str) -> CompileError:
    """The error that shows what the compiler `name` printed of a kernel, without the lines in which `noise` is.

    The source is kept in a file with this suffix, where line numbers lead.
    """
    handle, path = tempfile.mkstemp(prefix=f"{code.name}-", suffix=f".{suffix}")
    with os.fdopen(handle, "w") as file:
        file.write(code.source)
    lines = [line for line in log.splitlines() if line.strip() and noise not in line][:_LINES]
    return CompileError(f"{name} rejects the kernel {code.name} (source: {path}); please report this:\n" + "\n".join(lines))


@cache
def content_of(folder: Path, *patterns: str) -> str:
    """Changes with the names and the contents of a folder's files of these patterns."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
