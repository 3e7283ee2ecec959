"""Kernels on disk: the LLVM dialect of each compiled program, under a key of everything it depends on.

The directory is `$ATTN_MLIR_CACHE`, or `attn-mlir` in the user's cache directory. A broken or unreadable entry counts as absent;
writing is atomic, so that processes may share the directory. `ATTN_MLIR_CACHE=off` disables it.
"""

import contextlib
import hashlib
import io
import json
import os
import tempfile
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Any

import attn_mlir
from attn_mlir.mlir import ir


def directory() -> Path | None:
    """Where kernels are kept, or None when caching on disk is off."""
    chosen = os.environ.get("ATTN_MLIR_CACHE", "")
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attn-mlir"


@cache
def version() -> str:
    """Changes with attn-mlir's own sources and with the MLIR bindings."""
    digest = hashlib.sha256(attn_mlir.__version__.encode())
    for package in ("torch-mlir", "mlir-python-bindings"):
        with contextlib.suppress(PackageNotFoundError):
            digest.update(distribution_version(package).encode())
    root = Path(attn_mlir.__file__).parent
    for folder in ("dialects", "passes", "backends/cpu"):
        for source in sorted((root / folder).rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def load(key: str) -> tuple[bytes, dict[str, Any]] | None:
    """The module's bytecode and the fields saved with it, or None."""
    folder = directory()
    if folder is None:
        return None
    try:
        entry = json.loads((folder / f"{key}.json").read_text())
        code = (folder / f"{key}.mlirbc").read_bytes()
        return (code, entry["fields"]) if entry["sha256"] == hashlib.sha256(code).hexdigest() else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def save(key: str, module: ir.Module, fields: dict[str, Any]) -> None:
    """Writes an entry; a directory that cannot be written is ignored."""
    folder = directory()
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        code = _bytecode(module)
        _write(folder / f"{key}.mlirbc", code)
        _write(folder / f"{key}.json", json.dumps({"sha256": hashlib.sha256(code).hexdigest(), "fields": fields}).encode())


def _bytecode(module: ir.Module) -> bytes:
    stream = io.BytesIO()
    module.operation.write_bytecode(stream)
    return stream.getvalue()


def _write(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    Path(name).replace(path)
