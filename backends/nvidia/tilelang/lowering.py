"""From TileLang programs to CUDA. TileLang runs in processes of its own: it takes seconds to import, and brings its own compiler."""

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from attn_mlir import forks
from attn_mlir.backends import disk_cache
from attn_mlir.backends.gpu.kernel import KernelParameter
from attn_mlir.backends.nvidia import background
from attn_mlir.backends.nvidia.tilelang import processes
from attn_mlir.backends.nvidia.tilelang.program import PrintedKernel
from attn_mlir.errors import CompileError, UnsupportedError

_LIMIT = 600
_SUFFIX = "cu"

_AHEAD: dict[tuple[str, str], "Future[Lowered]"] = {}
forks.in_child(_AHEAD.clear)


@dataclass(frozen=True)
class Lowered:
    """CUDA that TileLang made of a program."""

    source: str
    entry: str
    shared_bytes: int


def available() -> bool:
    """Whether TileLang is installed."""
    return importlib.util.find_spec("tilelang") is not None


def version() -> str:
    """TileLang's version, part of what its output depends on."""
    return importlib.metadata.version("tilelang")


def lower(program: str, arch: str) -> Lowered:
    """Lowers one program, or finds what it became on disk.

    Raises UnsupportedError without TileLang, and CompileError, with what TileLang said, where it fails.
    """
    key = program, arch
    started = _AHEAD.get(key)
    if started is None:
        return _lower(program, arch)
    if not background.is_here():
        _AHEAD.pop(key, None)  # from now on it is awaited
    try:
        return started.result()
    finally:
        _AHEAD.pop(key, None)


def _lower(program: str, arch: str) -> Lowered:
    if not available():
        raise UnsupportedError("this kernel goes through TileLang, which is not installed: pip install 'attn-mlir[nvidia]'")
    key = disk_cache.key_of(program, arch, version(), processes.RUNNER)
    found = disk_cache.find(key, _SUFFIX, lambda code, facts: Lowered(code.decode(), str(facts["entry"]), int(facts["shared"])))
    if found is not None:
        return found
    lowered = _run(program, arch)
    disk_cache.save(key, _SUFFIX, lowered.source.encode(), {"entry": lowered.entry, "shared": lowered.shared_bytes})
    return lowered


def lower_ahead(programs: Sequence[tuple[str, str]]) -> None:
    """Starts to lower programs, with their architectures, side by side; `lower` of the same ones waits for them."""
    different = list(dict.fromkeys(programs))
    if len(different) < 2:
        return
    left = deque((each, Future[Lowered]()) for each in different)
    _AHEAD.update(left)

    def work() -> None:
        with contextlib.suppress(IndexError):
            while True:
                program, future = left.popleft()
                try:
                    future.set_result(_lower(*program))
                except Exception as error:
                    future.set_exception(error)

    # No pool: Python waits for its threads while the main thread still counts as one that runs.
    for _ in range(min(len(different), os.cpu_count() or 1)):
        threading.Thread(target=work, name="attn-mlir-tilelang").start()


def _run(program: str, arch: str) -> Lowered:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.py"
        path.write_text(program)
        fields = processes.run(str(path), arch, _LIMIT, lambda: _is_awaited(program, arch))
    if "error" in fields:
        raise CompileError(f"TileLang refuses a program that attn-mlir made (please report it): {_last(fields['error'])}")
    return Lowered(fields["source"], fields["entry"], fields["shared"])


def _is_awaited(program: str, arch: str) -> bool:
    """Whether somebody needs it now: `lower` was asked for it, and not by what compiles in background."""
    return (program, arch) not in _AHEAD and not background.is_here()


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("  ")]
    return " ".join(lines[-3:]) or "no message"


def parameters_of(lowered: Lowered, program: PrintedKernel) -> tuple[KernelParameter, ...]:
    """What the CUDA function takes, in its order, which is TileLang's. Raises CompileError for names that the program does not declare."""
    found = re.search(rf"__launch_bounds__\([^)]*\)\s+{re.escape(lowered.entry)}\(([^)]*)\)", lowered.source)
    if found is None:
        raise CompileError(f"TileLang's CUDA holds no function {lowered.entry}")
    names = [re.split(r"[\s*]+", declared.strip())[-1] for declared in found.group(1).split(",") if declared.strip()]
    unknown = [name for name in names if name not in program.parameters]
    if unknown:
        raise CompileError(f"TileLang's CUDA function takes {', '.join(unknown)}, which the program does not declare")
    return tuple(program.parameters[name] for name in names)
