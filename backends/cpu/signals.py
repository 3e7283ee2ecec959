"""Signal handlers of this process, kept as they are while LLVM writes a file.

LLVM installs handlers of its own for 14 signals, to remove a file that it was interrupted at, and leaves them there. The first signal that
they see makes them put back those of that time: a handler that a program has set since, as for SIGTERM, would be lost without a word.
"""

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_ROOM = 512
"""Bytes that hold a `struct sigaction`: it has 152 with glibc on x86-64, and 16 on macOS."""


@contextmanager
def kept_handlers() -> Iterator[None]:
    """Afterwards signals have the handlers that they had, where only code beneath Python has changed them."""
    before = {number: (signal.getsignal(number), _action(number)) for number in _numbers()}
    try:
        yield
    finally:
        for number, (handler, action) in before.items():
            # Another thread may have set one meanwhile, by Python's own means.
            if signal.getsignal(number) == handler and _action(number).raw != action.raw:
                _sigaction()(number, action, None)


@cache
def _numbers() -> tuple[signal.Signals, ...]:
    """Signals that may have handlers; none on systems without POSIX's calls."""
    never = {getattr(signal, name, None) for name in ("SIGKILL", "SIGSTOP")}
    return tuple(number for number in signal.Signals if number in signal.valid_signals() - never) if hasattr(signal, "sigwait") else ()


@cache
def _sigaction() -> Any:
    function = ctypes.PyDLL(None).sigaction  # with the lock of the interpreter: nothing else of it runs in between
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    return function


def _action(number: int) -> "ctypes.Array[ctypes.c_char]":
    """What the system does at a signal."""
    action = ctypes.create_string_buffer(_ROOM)
    _sigaction()(number, None, action)
    return action
