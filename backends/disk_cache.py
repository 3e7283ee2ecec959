"""Compiled programs on disk: code with the facts about it, under a key of everything that it depends on.

The directory is `$ATTN_MLIR_CACHE`, or `attn-mlir` in the user's cache directory; `ATTN_MLIR_CACHE=off` disables it, and on Windows there
is none. What lies there is run, so only what this user alone can have written counts (see `own_files`). An entry holds its key and a hash
of all of it; a broken or unreadable one counts as absent. Writing is atomic, so that processes may share the directory.

Entries that come compiled are read from a folder of their own, where the directory has none: that of the package `attn_mlir_kernels`, if it
is installed, or `$ATTN_MLIR_KERNELS`; `ATTN_MLIR_KERNELS=off` leaves them alone. Whoever installs a package is trusted with it.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Any, TypeVar

import attn_mlir
from attn_mlir.backends import own_files

T = TypeVar("T")
SHIPPED = "attn_mlir_kernels"
"""The package that carries compiled programs."""
_OFF, _ON = ("off", "0", "none", "false", "no", "disabled"), ("on", "1", "true", "yes", "")
_BROKEN = (OSError, ValueError, LookupError, TypeError, RecursionError)


def directory() -> Path | None:
    """Where programs are kept, or None when caching on disk is off."""
    chosen = os.environ.get("ATTN_MLIR_CACHE", "").strip()
    if chosen.lower() in _OFF or not hasattr(os, "O_DIRECTORY"):  # Windows cannot look at folders as `own_files` does
        return None
    try:
        if chosen.lower() not in _ON:
            return _expanded(chosen)
        given = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "attn-mlir"
    except RuntimeError:  # a user without a home
        return None


def shipped() -> Path | None:
    """The folder of entries that come compiled, or None where there is none, or caching on disk is off."""
    chosen = os.environ.get("ATTN_MLIR_KERNELS", "").strip()
    if directory() is None or chosen.lower() in _OFF:
        return None
    return _packaged() if chosen.lower() in _ON else Path(chosen)


@cache
def _packaged() -> Path | None:
    spec = importlib.util.find_spec(SHIPPED)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "entries"


def _expanded(chosen: str) -> Path | None:
    try:
        return Path(chosen).expanduser()
    except RuntimeError as error:  # the home of a user that there isn't
        own_files.unusable(chosen, error)
        return None


@cache
def version(*backends: str) -> str:
    """Changes with attn-mlir's own sources, of backends those of the given ones, and with the MLIR bindings."""
    return key_of(attn_mlir.__version__, _bindings(), digest_of(Path(attn_mlir.__file__).parent, *backends))


def digest_of(root: Path, *backends: str) -> str:
    """Changes with the files of the package at `root` that shape the code of these backends, whatever they are written in."""
    folders = [root / "dialects", root / "passes", *(root / "backends" / name for name in backends)]
    files = [path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts and path.is_file()]
    digest = hashlib.sha256()
    for source in sorted([*files, *(root / "backends").glob("*.py"), *root.glob("*.py")]):
        content = source.read_bytes()
        digest.update(f"{source.relative_to(root)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _bindings() -> str:
    """The versions of what may hold the MLIR bindings; of bindings without one, built by the user, their libraries as they are."""
    found = []
    for package in ("torch-mlir", "mlir-python-bindings"):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{package} {distribution_version(package)}")
    bindings = importlib.import_module("attn_mlir.mlir").ir
    if not found or not bindings.__name__.startswith("torch_mlir"):
        facts = [(path.name, path.stat()) for path in sorted((Path(bindings.__file__).parent / "_mlir_libs").glob("*.so*"))]
        found += [f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in facts]
    return "\n".join(found)


def key_of(*parts: str) -> str:
    """The key of an entry that depends on these texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def find(key: str, suffix: str, read: Callable[[bytes, dict[str, Any]], T]) -> T | None:
    """What `read` makes of the entry, from its code and facts; None where there is none, or `read` raises anything: it is broken then."""
    found = load(key, suffix)
    if found is None:
        return None
    try:
        return read(*found)
    except Exception:  # whatever is wrong with it, what is compiled in its place replaces it
        return None


def load(key: str, suffix: str) -> tuple[bytes, dict[str, Any]] | None:
    """The code, kept in a file with this suffix, and the facts saved with it, or None."""
    folder = directory()
    if folder is None:
        return None
    with contextlib.suppress(*_BROKEN), own_files.opened(folder) as handle:
        if handle is not None:
            return _checked(key, suffix, lambda name: own_files.read(handle, folder, name))
    given = shipped()
    if given is None:
        return None
    with contextlib.suppress(*_BROKEN):
        return _checked(key, suffix, lambda name: (given / name).read_bytes())
    return None


def _checked(key: str, suffix: str, read: Callable[[str], bytes]) -> tuple[bytes, dict[str, Any]]:
    """The entry that `read` gives the files of. Raises one of `_BROKEN` where it is not whole."""
    entry = json.loads(read(f"{key}.json"))
    code, fields = read(f"{key}.{suffix}"), entry["fields"]
    if entry["key"] != key or entry["sha256"] != _hash(key, suffix, code, fields):
        raise ValueError(f"the entry {key} is broken")
    return code, fields


def save(key: str, suffix: str, code: bytes, fields: dict[str, Any]) -> None:
    """Writes an entry; a directory that cannot be written, or that is not this user's alone, is left, with one warning."""
    folder = directory()
    if folder is None:
        return
    entry = {"key": key, "sha256": _hash(key, suffix, code, fields), "fields": fields}
    with contextlib.suppress(OSError), own_files.opened(folder, create=True) as handle:
        if handle is not None:
            own_files.write(handle, folder, f"{key}.{suffix}", code)
            own_files.write(handle, folder, f"{key}.json", json.dumps(entry).encode())


def _hash(key: str, suffix: str, code: bytes, fields: dict[str, Any]) -> str:
    facts = json.dumps(fields, sort_keys=True)
    return hashlib.sha256(f"{key}.{suffix}\0{len(facts)}\0{facts}".encode() + code).hexdigest()
