"""Compiles a tuner's candidates in processes of their own (see `worker`), which stay for further ones."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from attn_mlir.backends import disk_cache
from attn_mlir.backends.tuning.worker import Job

_LAST = 4096
"""Bytes at the end of what a process wrote to stderr that are looked at."""


class Compilers:
    """As many processes as are useful, each of which compiles one program at a time; they live until `close`."""

    def __init__(self, job: Job, processes: int = 0) -> None:
        self._job = job
        self._processes = processes or cores()
        self._workers: list[CompileProcess] = []

    def close(self) -> None:
        """Ends the processes."""
        for worker in self._workers:
            worker.close()

    def compile(self, texts: Sequence[str], done: Callable[[], None]) -> list[str]:
        """See `Bench.compile`."""
        jobs: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(len(texts)):
            jobs.put(number)
        problems = [""] * len(texts)

        def work(worker: CompileProcess) -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    number = jobs.get_nowait()
                    problems[number] = worker.compile(self._job, texts[number])
                    done()

        count = min(self._processes, len(texts))
        self._workers += [CompileProcess() for _ in range(count - len(self._workers))]
        threads = [threading.Thread(target=work, args=(worker,)) for worker in self._workers[:count]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return problems


@contextlib.contextmanager
def shared_cache() -> Iterator[None]:
    """A disk cache that worker processes and this one share: the user's, or, where that is off, one for the time being."""
    if disk_cache.directory() is not None:
        yield
        return
    before = os.environ.get("ATTN_MLIR_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ATTN_MLIR_CACHE"] = folder
        try:
            yield
        finally:
            os.environ["ATTN_MLIR_CACHE"] = before or "off"


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LastWords:
    """What a process writes to stderr: a file for it, of which the last line tells why it died."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()

    def told(self) -> str:
        """`: ` and the last line, or "" where nothing was written."""
        self.file.seek(max(0, self.file.seek(0, os.SEEK_END) - _LAST))
        lines = [line.strip() for line in self.file.read().decode(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1][:160]}" if lines else ""

    def close(self) -> None:
        """Drops the file."""
        self.file.close()


class CompileProcess:
    """A process that compiles; it is started when it is first needed, and again after it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._said: LastWords | None = None

    def compile(self, job: Job, text: str) -> str:
        """What is wrong with a program, or ""."""
        if self._process is None:
            command = [sys.executable, "-m", "attn_mlir.backends.tuning.worker"]
            path = os.pathsep.join(part for part in sys.path if part)
            environment = {**os.environ, "PYTHONPATH": path}
            self._said = LastWords()
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said.file, text=True, env=environment
            )
        process, said = self._process, self._said
        assert process.stdin is not None and process.stdout is not None and said is not None
        try:
            process.stdin.write(json.dumps({**asdict(job), "text": text}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())
        except (OSError, ValueError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            told = said.told()
            self.close()
            return f"the compiling process died{told}"

    def kill(self) -> None:
        """Ends the process at once, also while another thread waits for it."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
                self._process.communicate(timeout=10)
            self._process.kill()
            self._process.wait()
        if self._said is not None:
            self._said.close()
        self._process = self._said = None
