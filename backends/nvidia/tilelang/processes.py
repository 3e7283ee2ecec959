"""Processes that have imported TileLang, which takes seconds: each lowers one program after another, and ends after a time without any."""

import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from attn_mlir import forks
from attn_mlir.errors import CompileError

RUNNER = """
import importlib.util, json, os, select, sys, traceback
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what TileLang prints is no reply

def lower(path, arch):
    spec = importlib.util.spec_from_file_location("program", path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    lowered = program.lower(arch)
    (function,) = lowered.device_mod.functions.values()
    shared = int(function.attrs["dyn_shared_memory_buf"]) if "dyn_shared_memory_buf" in function.attrs else 0
    return {"source": lowered.kernel_source, "shared": shared, "entry": str(function.attrs["global_symbol"])}

while select.select([0], [], [], float(sys.argv[1]))[0]:
    line = sys.stdin.readline()
    if not line:
        break
    try:
        reply = lower(*json.loads(line))
    except Exception:
        reply = {"error": traceback.format_exc()}
    print(json.dumps(reply), file=replies, flush=True)
"""
_IDLE = 60.0
"""Seconds after which a process without work ends: its memory is some 500 MB."""
_LOOKS = 1.0
"""Seconds between looks whether this process ends."""
_SETTINGS = ("TILELANG", "TVM", "CUDA")
"""Variables of the environment that start like this are settings of TileLang, and a process has those with which it was started."""


class Process:
    """One process. It ends with this one, too, as its standard input does."""

    def __init__(self) -> None:
        self.settings = settings()
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        command = [sys.executable, "-c", RUNNER, str(_IDLE)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)

    def lower(self, path: str, arch: str, limit: float, wanted: Callable[[], bool]) -> dict[str, Any]:
        """See `run`. Raises EOFError where the process has ended, and CompileError after `limit` seconds, or where nobody waits."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{json.dumps([path, arch])}\n".encode())
            self._process.stdin.flush()
        except OSError:
            raise EOFError from None
        end, reply = time.monotonic() + limit, b""
        while not reply.endswith(b"\n"):
            left = end - time.monotonic()
            if not select.select([self._process.stdout], [], [], max(0.0, min(left, _LOOKS)))[0]:
                # Python waits for all threads before it ends.
                ends = _ends(wanted)
                if left > _LOOKS and not ends:
                    continue
                self._process.kill()
                self._process.wait()
                raise CompileError("the program ended meanwhile" if ends else f"TileLang took longer than {limit:.0f} s")
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                self._process.wait()
                raise EOFError
            reply += part
        return json.loads(reply)

    def said(self) -> str:
        """What it has printed."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


_WAITING: list[Process] = []
"""Those without work; taking one out and putting it back are single steps, which threads cannot come between."""
forks.in_child(_WAITING.clear)


def settings() -> tuple[tuple[str, str], ...]:
    """What TileLang's output depends on in the environment."""
    return tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(_SETTINGS)))


def run(path: str, arch: str, limit: float, wanted: Callable[[], bool] = lambda: True) -> dict[str, Any]:
    """Lowers the program at `path`: its "source", "entry" and bytes of "shared" memory, or "error".

    Raises CompileError after `limit` seconds, and where this program ends while nobody waits for it: it is not `wanted`.
    """
    if _ends(wanted):
        raise CompileError("the program has ended")
    while (process := _waiting()) is not None:
        try:
            return _done(process, process.lower(path, arch, limit, wanted))
        except EOFError:  # it had ended, as it was idle; if this program ended it, a new one says so
            continue
    process = Process()
    try:
        return _done(process, process.lower(path, arch, limit, wanted))
    except EOFError:
        return {"error": process.said()}


def _ends(wanted: Callable[[], bool]) -> bool:
    """Whether this program ends, which a thread that nobody waits for has to let it do."""
    return not threading.main_thread().is_alive() and not wanted()


def _waiting() -> Process | None:
    try:
        process = _WAITING.pop()
    except IndexError:
        return None
    return process if process.settings == settings() else _waiting()


def _done(process: Process, reply: dict[str, Any]) -> dict[str, Any]:
    _WAITING.append(process)
    return reply
