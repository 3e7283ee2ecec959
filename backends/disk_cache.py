"""Compiled programs on disk: code with the facts about it, under a key of everything that it depends on.

The directory is `$ATTN_MLIR_CACHE`, or `attn-mlir` in the user's cache directory. A broken or unreadable entry counts as absent;
writing is atomic, so that processes may share the directory. `ATTN_MLIR_CACHE=off` disables it.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Any

import attn_mlir

_SOURCES = (".py", ".h", ".cpp", ".cuh", ".cu", ".json")


def directory() -> Path | None:
    """Where programs are kept, or None when caching on disk is off."""
    chosen = os.environ.get("ATTN_MLIR_CACHE", "")
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attn-mlir"


@cache
def version(*backends: str) -> str:
    """Changes with attn-mlir's own sources, of backends those of the given ones, and with the MLIR bindings."""
    digest = hashlib.sha256(attn_mlir.__version__.encode())
    for package in ("torch-mlir", "mlir-python-bindings"):
        with contextlib.suppress(PackageNotFoundError):
            digest.update(distribution_version(package).encode())
    root = Path(attn_mlir.__file__).parent
    files = [path for folder in ("dialects", "passes", *(f"backends/{name}" for name in backends)) for path in (root / folder).rglob("*")]
    sources = [path for path in files if path.suffix in _SOURCES]
    for source in sorted([*sources, *(root / "backends").glob("*.py")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def key_of(*parts: str) -> str:
    """The key of an entry that depends on these texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load(key: str, suffix: str) -> tuple[bytes, dict[str, Any]] | None:
    """The code, kept in a file with this suffix, and the facts saved with it, or None."""
    folder = directory()
    if folder is None:
        return None
    try:
        entry = json.loads((folder / f"{key}.json").read_text())
        code = (folder / f"{key}.{suffix}").read_bytes()
        return (code, entry["fields"]) if entry["sha256"] == hashlib.sha256(code).hexdigest() else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def save(key: str, suffix: str, code: bytes, fields: dict[str, Any]) -> None:
    """Writes an entry; a directory that cannot be written is ignored."""
    folder = directory()
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / f"{key}.{suffix}", code)
        write(folder / f"{key}.json", json.dumps({"sha256": hashlib.sha256(code).hexdigest(), "fields": fields}).encode())


def write(path: Path, data: bytes) -> None:
    """Writes a file that other processes see whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    Path(name).replace(path)
