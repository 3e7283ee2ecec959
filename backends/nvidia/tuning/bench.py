"""Compiles a tuner's candidates in processes of their own, and measures them on the current GPU."""

import contextlib
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from attn_mlir.backends import disk_cache
from attn_mlir.backends.allocation import empty
from attn_mlir.backends.nvidia.tuning.trial import Trial
from attn_mlir.backends.nvidia.tuning.worker import Job
from attn_mlir.mlir import LOCK

_FLUSH_BYTES = 256 << 20
"""More than the L2 cache of any GPU."""
_WAIT_CYCLES = 200_000
"""How long the GPU is kept busy while the host submits what is measured."""
_TOLERANCE = 0.02


class GpuBench:
    """The `Bench` of a program: `job` says which derivative of it is tuned, `inputs` what it is run on.

    Its processes live until `close`.
    """

    def __init__(self, job: Job, inputs: Sequence[Any], layout: str, processes: int = 0) -> None:
        self._job, self._inputs, self._layout = job, list(inputs), layout
        self._processes = processes or max(os.cpu_count() or 1, 1)
        self._flush: torch.Tensor | None = None
        self._trial = Trial(job, inputs, layout)
        self._workers: list[_Worker] = []

    def close(self) -> None:
        """Ends the process that runs candidates first, and those that compile."""
        self._trial.close()
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

    def prepare(self, text: str) -> Callable[[], Any]:
        """See `Bench.prepare`. The program ran before, in a process of its own, and came to its end there."""
        problem = self._trial.run(text)
        if problem:
            raise RuntimeError(problem)
        with LOCK:
            program = self._job.compile(text)
        return lambda: program.run(self._inputs, self._layout)

    def agree(self, results: Any, reference: Any) -> bool:
        """See `Bench.agree`."""
        return all(_close(made, wanted) for made, wanted in zip(results, reference, strict=True))

    def time(self, call: Callable[[], Any], repeats: int) -> float:
        """See `Bench.time`."""
        if self._flush is None:
            self._flush = empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        times = []
        for number in range(repeats + 1):
            self._flush.zero_()
            torch.cuda._sleep(_WAIT_CYCLES)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            end.synchronize()
            if number:
                times.append(begin.elapsed_time(end))
        return statistics.median(times)


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
    """A process that compiles; started anew when it died."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process: subprocess.Popen[str] | None = None

    def compile(self, text: str) -> str:
        if self._process is None:
            command = [sys.executable, "-m", "attn_mlir.backends.nvidia.tuning.worker"]
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


def _close(made: torch.Tensor, wanted: torch.Tensor) -> bool:
    if made.shape != wanted.shape:
        return False
    made, wanted = made.float(), wanted.float()
    finite = torch.isfinite(wanted)
    if not bool((torch.isfinite(made) == finite).all()):
        return False
    difference, size = (made - wanted)[finite], wanted[finite]
    return bool(difference.norm() <= _TOLERANCE * size.norm() + 1e-6)
