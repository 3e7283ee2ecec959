"""From TileLang programs to CUDA. TileLang runs in a process of its own: it takes seconds to import, and brings its own compiler."""

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from attn_mlir.backends.nvidia.kernel import Parameter
from attn_mlir.backends.nvidia.tilelang.program import Program
from attn_mlir.errors import CompileError, UnsupportedError

_LIMIT = 600
_RUNNER = """
import importlib.util, json, sys
path, arch, out = sys.argv[1:]
spec = importlib.util.spec_from_file_location("program", path)
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
lowered = program.lower(arch)
(function,) = lowered.device_mod.functions.values()
shared = int(function.attrs["dyn_shared_memory_buf"]) if "dyn_shared_memory_buf" in function.attrs else 0
with open(out, "w") as file:
    json.dump({"source": lowered.kernel_source, "shared": shared, "entry": str(function.attrs["global_symbol"])}, file)
"""


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
    from importlib.metadata import version as installed

    return installed("tilelang")


def lower(program: str, arch: str, cache: Path | None = None) -> Lowered:
    """Lowers one program; `cache` is a folder where results are kept.

    Raises UnsupportedError without TileLang, and CompileError, with what TileLang said, where it fails.
    """
    if not available():
        raise UnsupportedError("this kernel needs TileLang: pip install tilelang")
    kept = None
    if cache is not None:
        kept = cache / f"{hashlib.sha256(chr(0).join((program, arch, version())).encode()).hexdigest()}.json"
        if kept.is_file():
            return _read(kept)
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "kernel.py", Path(folder) / "kernel.json"
        path.write_text(program)
        try:
            done = subprocess.run([sys.executable, "-c", _RUNNER, path, arch, out], capture_output=True, text=True, timeout=_LIMIT)
        except subprocess.TimeoutExpired as error:
            raise CompileError(f"TileLang took longer than {_LIMIT} s") from error
        if done.returncode or not out.is_file():
            raise CompileError(f"TileLang refuses a program that attn-mlir made (please report it): {_last(done.stderr)}")
        lowered = _read(out)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(out.read_text())
    return lowered


def _read(path: Path) -> Lowered:
    fields = json.loads(path.read_text())
    return Lowered(fields["source"], fields["entry"], fields["shared"])


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("  ")]
    return " ".join(lines[-3:]) or "no message"


def parameters_of(lowered: Lowered, program: Program) -> tuple[Parameter, ...]:
    """What the CUDA function takes, in its order, which is TileLang's. Raises CompileError for names that the program does not declare."""
    found = re.search(rf"__launch_bounds__\([^)]*\)\s+{re.escape(lowered.entry)}\(([^)]*)\)", lowered.source)
    if found is None:
        raise CompileError(f"TileLang's CUDA holds no function {lowered.entry}")
    names = [re.split(r"[\s*]+", declared.strip())[-1] for declared in found.group(1).split(",") if declared.strip()]
    unknown = [name for name in names if name not in program.parameters]
    if unknown:
        raise CompileError(f"TileLang's CUDA function takes {', '.join(unknown)}, which the program does not declare")
    return tuple(program.parameters[name] for name in names)
