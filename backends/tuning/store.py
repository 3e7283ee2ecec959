"""The tune file: what a tuner found, as JSON under keys of everything that it depends on.

    {"format": "attn-mlir tuning", "version": 1, "entries": {KEY: {"kernel": ..., "choices": {...}, "ms": ..., ...}}}

KEY is a hash of `Key`, whose fields stand in the entry, too. A file that is damaged or of another program is reported by a warning and
counts as empty; it is never overwritten.
"""

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attn_mlir.backends.fields import Fields, as_called_now

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

_FORMAT, _VERSION = "attn-mlir tuning", 1
_WORD = re.compile(r"[\w.-]*")


@dataclass(frozen=True)
class Key:
    """What a result holds for. `ir` is the sha256 of the kernel's IR before tiling, `length` a power of two."""

    ir: str
    arch: str
    element: str
    head_dims: tuple[int, int]
    length: int
    versions: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """The name of the entry."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]


def bucket(length: int) -> int:
    """The power of two at or above a length: lengths of one bucket share a schedule."""
    return 1 << max(length - 1, 0).bit_length()


class TuneFile:
    """The entries of one tune file. An empty path keeps them in memory only."""

    def __init__(self, path: str | Path = "") -> None:
        self._path = Path(path) if str(path) else None
        self._foreign = False
        self._entries = self._read()

    def find(self, key: Key) -> Fields | None:
        """The choices that were found best, or None."""
        entry = self._entries.get(key.digest)
        return None if entry is None else as_called_now(entry["choices"])

    def add(self, key: Key, choices: Fields, **told: Any) -> None:
        """Keeps a result and writes the file. `told` are further things to know of it."""
        self._entries[key.digest] = {**told, **asdict(key), "versions": dict(key.versions), "choices": choices}
        if self._path is None or self._foreign:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with _alone(self._path.parent):
                # What other processes found in the meantime stays.
                self._entries = {**self._read(), **self._entries}
                if self._foreign:
                    return
                form = {"format": _FORMAT, "version": _VERSION, "entries": self._entries}
                _write(self._path, json.dumps(form, indent=1) + "\n")
        except OSError as error:
            warnings.warn(f"the tune file {self._path} cannot be written: {error}", stacklevel=2)

    def _read(self) -> dict[str, dict[str, Any]]:
        if self._path is None:
            return {}
        try:
            if not stat.S_ISREG(self._path.stat().st_mode):  # reading a pipe would wait for whoever writes to it
                return self._refused("is no file")
            text = self._path.read_text()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            return self._refused(f"cannot be read: {error}")
        if not text.strip():
            return {}
        try:
            form = json.loads(text)
        except (ValueError, RecursionError) as error:
            return self._refused(f"is not JSON: {error}")
        if not isinstance(form, dict) or form.get("format") != _FORMAT:
            return self._refused(f'is not a tune file of attn-mlir ("format": "{_FORMAT}" is missing)')
        if form.get("version") != _VERSION:
            return self._refused(f"has version {form.get('version')!r}, this attn-mlir reads {_VERSION}")
        entries = form.get("entries")
        if not isinstance(entries, dict):
            return self._refused("has no entries")
        kept = {digest: entry for digest, entry in entries.items() if _is_entry(entry)}
        if len(kept) < len(entries):
            warnings.warn(f"the tune file {self._path} has {len(entries) - len(kept)} damaged entries, which are left out", stacklevel=3)
        return kept

    def _refused(self, why: str) -> dict[str, dict[str, Any]]:
        if not self._foreign:
            warnings.warn(f"the tune file {self._path} {why}; it is left as it is and not used", stacklevel=4)
        self._foreign = True
        return {}


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While it lasts, no other thread or process that asks for the same is in here; where the system has no locks, nothing is sure."""
    handle = os.open(folder, os.O_RDONLY) if fcntl is not None else -1
    try:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if handle >= 0:
            os.close(handle)


def _write(path: Path, text: str) -> None:
    """Writes a file that other processes see whole or not at all. Raises OSError, and then leaves nothing."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _is_entry(entry: Any) -> bool:
    """Whether it holds choices: numbers and words, which is all that may get into a program."""
    choices = entry.get("choices") if isinstance(entry, dict) else None
    if not isinstance(choices, dict) or not all(_WORD.fullmatch(name) for name in choices):
        return False
    return all(_WORD.fullmatch(v) if isinstance(v, str) else type(v) is int and abs(v) < 1 << 63 for v in choices.values())
