"""Runs the tools of lit tests in forks of one process that has imported them: a new process takes 0.6 s to do so, a fork nothing.

`start` is what lit.cfg.py calls. Each call of a tool is a process of its own, as it would be without this.
"""

import atexit
import contextlib
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from pathlib import Path

from lit_client import CODE

_TOOLS = ("attn_opt", "attn_run", "attn_translate", "attn_tune", "attn_fmha", "attn_generate")


def start(python: str, environment: dict[str, str]) -> str | None:
    """Starts a server that ends with this process; returns the command of which a tool's name and arguments are the rest.

    None where a system has no forks: tools are processes then.
    """
    if not hasattr(os, "fork"):
        return None
    folder = tempfile.mkdtemp(prefix="attn-lit-")
    place = os.path.join(folder, "server")
    folder_of_this = str(Path(__file__).resolve().parent)
    serve = f"import sys; sys.path.insert(0, {folder_of_this!r}); import lit_server; lit_server.serve({place!r})"
    process = subprocess.Popen([python, "-c", serve], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None and process.stdin is not None
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError("the server of lit's tools does not start; lit --param processes=1 does without")
    owner, ends = os.getpid(), process.stdin

    def stop() -> None:
        if os.getpid() == owner:  # not in lit's workers
            ends.close()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    return f"{python} -S -I {folder_of_this}/lit_client.py {place}"


def serve(place: str, more: Mapping[str, Callable[[], object]] = types.MappingProxyType({})) -> None:
    """Answers calls of the tools, and of `more`, at a socket until standard input ends; those of filecheck at one beside it.

    The process that does so is a fork from before the tools are imported: it has less memory whose pages each fork takes along.
    """
    with contextlib.suppress(ImportError):
        check = importlib.import_module("filecheck.main").main
        ready, is_ready = os.pipe()
        if os.fork() == 0:
            os.close(1)
            return _answer(f"{place}.check", {"filecheck": check}, is_ready)
        os.read(ready, 1)
    tools = {**more, **{name: importlib.import_module(f"attn_mlir.tools.{name}").main for name in _TOOLS}}
    from attn_mlir.dialects import loaded
    from attn_mlir.registry import registry

    known = registry()
    for name in known.passes:
        known.load(name)
    with loaded():
        pass  # declares the dialects, which each tool would do otherwise
    _answer(place, tools, 1)


def _answer(place: str, tools: Mapping[str, Callable[[], object]], told: int) -> None:
    """Writes "ready" to a file, and answers calls at a socket."""
    gc.collect()
    gc.freeze()  # so that forks don't copy what a collection would only look at
    gc.set_threshold(20_000, 10, 10)  # nor look through handles of IR again and again, as in `conftest.py`
    ended, wakes = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    running: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(place)
        listener.listen(64)
        os.write(told, b"ready\n")
        while 0 not in (ready := select.select([listener, 0, ended], [], [])[0]):
            if ended in ready:
                os.read(ended, 1 << 16)
                _tell(running)
            if listener in ready:
                connection, _ = listener.accept()
                tool = os.fork()
                if tool == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os._exit(_run(*_request(connection), tools))
                running[tool] = connection


def _tell(running: dict[int, socket.socket]) -> None:
    """Answers the clients whose tools have ended."""
    while running:
        tool, status = os.waitpid(-1, os.WNOHANG)
        if not tool:
            return
        connection = running.pop(tool, None)
        if connection is None:  # the one that answers for filecheck
            continue
        with connection, contextlib.suppress(OSError):  # a client that was ended hears nothing
            connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(CODE, "big", signed=True))


def _request(connection: socket.socket) -> tuple[list[str], list[int]]:
    """What a client asks for, and its files."""
    head, files, _, _ = socket.recv_fds(connection, CODE, 3)
    request = b""
    while len(request) < int.from_bytes(head, "big"):
        part = connection.recv(1 << 16)
        if not part:
            os._exit(1)
        request += part
    return request.decode(errors="surrogateescape").split("\0"), files


def _run(request: list[str], files: list[int], tools: Mapping[str, Callable[[], object]]) -> int:
    """What `python -m` does with a tool: its exit code."""
    count, folder, *rest = request
    (name, *words), variables = rest[: int(count)], rest[int(count) :]
    os.environ.clear()
    os.environ.update(dict(each.split("=", 1) for each in variables))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    # Made again, as a new process makes them: those that there are know what the server's own files can do.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(folder)
    sys.argv = [name, *words]
    try:
        code = tools[name]()
    except SystemExit as error:
        code = error.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code or 0) & 255  # type: ignore[call-overload]
