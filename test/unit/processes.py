"""Processes of tests as forks of one that has imported torch and attn-mlir, once for each worker: a new one takes 2.3 s to do so.

Nothing else ran in that process, so that a fork of it is nearly as a new process is. Tests of what an import itself does start one of
their own, and tests of forks: here OpenMP is called by another thread from the start (`backends.cpu.jit`). What torch and attn-mlir read of
the environment as they are imported (OMP_NUM_THREADS, ATTN_MLIR_POISON) is that of the first user's.
"""

import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

_IMPORTED = ["torch", "attn_mlir", "attn_mlir.mlir", "attn_mlir.registry", "attn_mlir.backends.cpu.driver", "attn_mlir.runtime.dispatch"]


@cache
def context() -> Any:
    """The context of `multiprocessing` that forks from it, or starts new processes on systems without forks."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(_IMPORTED)
    return made


def pool(start: Callable[..., Any], *arguments: Any) -> ProcessPoolExecutor:
    """A process that has called `start`, in the environment that there is now."""
    return ProcessPoolExecutor(1, context(), _started, (dict(os.environ), start, arguments))


def _started(environment: Mapping[str, str], start: Callable[..., Any], arguments: Sequence[Any]) -> None:
    _surround(environment)
    start(*arguments)


def _surround(environment: Mapping[str, str]) -> None:
    """Gives this process an environment: the process that it is a fork of has that of its first user.

    Python's collector leaves alone what that one has imported: to look at it copies its pages. See `test/conftest.py`.
    """
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    os.environ.clear()
    os.environ.update(environment)


def run_python(
    *arguments: Any, env: Mapping[str, str] | None = None, cwd: Path | None = None, check: bool = False, timeout: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run([sys.executable, *arguments])` gives, of "-c" with a text, "-m" with a module, or a script, and their arguments.

    Raises CalledProcessError as that does with `check`, and TimeoutExpired.
    """
    words = [str(word) for word in arguments]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        given = (words, dict(os.environ if env is None else env), str(cwd or Path.cwd()), str(out), str(err))
        process = context().Process(target=_run, args=given)
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout)
        done = subprocess.CompletedProcess([sys.executable, *words], process.exitcode, out.read_text(), err.read_text())
    if check:
        done.check_returncode()
    return done


def _run(words: list[str], environment: Mapping[str, str], folder: str, out: str, err: str) -> None:
    """The process."""
    for number, path in ((1, out), (2, err)):
        with open(path, "wb") as file:
            os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False, buffering=1) for number in (1, 2))
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    _surround(environment)
    os.chdir(folder)
    sys.exit(_main(words))


def _main(words: list[str]) -> int:
    try:
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(words[1], "<string>", "exec"), vars(main))
        elif words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
