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


class Compilers:
    """As many processes as are useful, each of which compiles one program at a time; they live until `close`."""

    def __init__(self, job: Job, processes: int = 0) -> None:
        self._job = job
        self._processes = processes or max(os.cpu_count() or 1, 1)
        self._workers: list[_Worker] = []

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

        def work(worker: _Worker) -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    number = jobs.get_nowait()
                    problems[number] = worker.compile(texts[number])
                    done()

        count = min(self._processes, len(texts))
        self._workers += [_Worker(self._job) for _ in range(count - len(self._workers))]
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


class _Worker:
    """A process that compiles; started again when it died."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process: subprocess.Popen[str] | None = None

    def compile(self, text: str) -> str:
        if self._process is None:
            command = [sys.executable, "-m", "attn_mlir.backends.tuning.worker"]
            path = os.pathsep.join(part for part in sys.path if part)
            environment = {**os.environ, "PYTHONPATH": path}
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps({**asdict(self._job), "text": text}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())
        except (OSError, ValueError):
            self.close()
            return "the compiling process died"

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._process.communicate(timeout=10)
            self._process.kill()
            self._process.wait()
        self._process = None
