"""Compiles the candidates of several kernels in processes that all of them share, while others are measured; for tuning_model.py."""

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any

from attn_mlir.backends.tuning.processes import CompileProcess
from attn_mlir.backends.tuning.tuner import Bench
from attn_mlir.backends.tuning.worker import Job

NO_TIME = "no time left"


class Ahead:
    """Processes that compile what was asked for, first come first served; what is urgent comes before."""

    def __init__(self, processes: int, worker: Callable[[], Any] = CompileProcess) -> None:
        self._queue: queue.PriorityQueue[tuple[int, int, Callable[[Any], None]]] = queue.PriorityQueue()
        self._counter = itertools.count()
        self._answers: dict[tuple[Job, str], Future[str]] = {}
        self._workers = [worker() for _ in range(processes)]
        self._closed = False
        self._threads = [threading.Thread(target=self._work, args=(each,), daemon=True) for each in self._workers]
        for thread in self._threads:
            thread.start()

    def add(self, job: Job, text: str, urgent: bool = False) -> "Future[str]":
        """What is wrong with a program, or "", once it is compiled. It is compiled once, however often it is asked for."""
        key = (job, text)
        answer = self._answers.setdefault(key, Future())

        def compile_it(worker: Any) -> None:
            # It may stand in the queue twice, the second time as urgent.
            with contextlib.suppress(RuntimeError):
                if not answer.done() and not answer.running() and answer.set_running_or_notify_cancel():
                    answer.set_result(worker.compile(job, text))

        self._queue.put((0 if urgent else 1, next(self._counter), compile_it))
        return answer

    def close(self) -> None:
        """Ends the processes, also those at work."""
        self._closed = True
        for worker in self._workers:
            worker.kill()
            self._queue.put((-1, next(self._counter), lambda _: None))
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            worker.close()

    def _work(self, worker: Any) -> None:
        while not self._closed:
            self._queue.get()[2](worker)


class Waiting:
    """A bench whose candidates are compiled by `ahead`; those that are not by the `deadline` count as without time."""

    def __init__(self, bench: Bench, ahead: Ahead, job: Job, deadline: float) -> None:
        self._ahead, self._job, self._deadline = ahead, job, deadline
        self.prepare, self.agree, self.time = bench.prepare, bench.agree, bench.time

    def compile(self, texts: Sequence[str], done: Callable[[], None]) -> list[str]:
        """See `Bench.compile`."""
        answers, problems = [self._ahead.add(self._job, text, urgent=True) for text in texts], []
        for answer in answers:
            try:
                problems.append(answer.result(max(self._deadline - time.monotonic(), 0.0)))
            except NotYet:
                problems.append(NO_TIME)
            done()
        return problems
