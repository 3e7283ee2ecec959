"""Files that nobody but this user can have written, in a folder of which the same holds.

Everything is looked at through descriptors: what is checked is what is read, whatever happens to the names meanwhile.
"""

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from attn_mlir.callers import warn

_PARTIAL, _STALE = ".partial", 3600.0
"""How names of files end that are being written; seconds after which whoever wrote one must have died."""
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Of writing: that a disk is full may change, this stays."""
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_WARNED: set[Path] = set()
_SWEPT: set[Path] = set()


@contextlib.contextmanager
def opened(folder: Path, create: bool = False) -> Iterator[int | None]:
    """A descriptor of the folder; None where there is none, or it can't be used, which a warning tells once with the reason."""
    handle = _open_folder(folder, create)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def _open_folder(folder: Path, create: bool) -> int | None:
    try:
        if create and not os.path.isdir(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        if create or not isinstance(error, FileNotFoundError):  # one that is not there yet is made when there is something to write
            unusable(str(folder), error)
        return None
    why = _not_own(os.fstat(handle))
    if not why:
        return handle
    os.close(handle)
    remedy = f"run `chmod go-w {folder}` if all that lies in it is yours" if why.startswith("others") else "choose a folder of your own"
    _warn(folder, f"the kernel cache {folder} is not used, since {why}, and code in it would run as yours: {remedy}")
    return None


def read(handle: int, folder: Path, name: str) -> bytes:
    """The content of a file of an open folder. Raises OSError where there is none, or none that this user alone can have written."""
    # Opening a pipe would wait for somebody who writes to it, and a link may lead anywhere.
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(f"{name} is no file")
        why = _not_own(facts)
        if why:
            _warn(folder, f"{name} in the kernel cache {folder} is not used, since {why}; it is compiled again. Remove such files")
            raise PermissionError(f"{name}: {why}")
        with open(file, "rb", closefd=False) as content:
            return content.read()
    finally:
        os.close(file)


def write(handle: int, folder: Path, name: str, data: bytes) -> None:
    """Writes a file of an open folder, which other processes see whole or not at all. Raises OSError, and then leaves nothing."""
    _scan(handle, folder)
    partial = f".{name}.{secrets.token_hex(4)}{_PARTIAL}"
    try:
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=handle)
    except OSError as error:
        if error.errno in _REFUSED:
            unusable(str(folder), error)
        raise
    try:
        with open(file, "wb") as opened_file:
            opened_file.write(data)
        os.replace(partial, name, src_dir_fd=handle, dst_dir_fd=handle)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial, dir_fd=handle)
        raise


def _not_own(facts: os.stat_result) -> str:
    """Why others could have written what these are the facts of, or ""."""
    if facts.st_uid != os.geteuid():
        return f"it belongs to user {facts.st_uid}, and this is user {os.geteuid()}"
    if facts.st_mode & _OTHERS:
        return f"others may write it (mode {stat.S_IMODE(facts.st_mode):04o})"
    return ""


def unusable(folder: str, error: Exception) -> None:
    """Warns once that nothing is kept in this folder, and why."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    _warn(Path(folder), f"the kernel cache {folder} can't be used ({why}), so every process compiles its kernels again: make it writable")


def _warn(folder: Path, text: str) -> None:
    if folder not in _WARNED:
        _WARNED.add(folder)
        warn(f"{text}, or set ATTN_MLIR_CACHE to another folder, or to 'off'", RuntimeWarning)


def _scan(handle: int, folder: Path) -> None:
    """Removes what processes that died left half written, once in this process."""
    if folder in _SWEPT:
        return
    _SWEPT.add(folder)
    with contextlib.suppress(OSError):
        for name in os.listdir(handle):
            if name.startswith(".") and name.endswith(_PARTIAL):
                with contextlib.suppress(OSError):
                    if time.time() - os.stat(name, dir_fd=handle, follow_symlinks=False).st_mtime > _STALE:
                        os.unlink(name, dir_fd=handle)
