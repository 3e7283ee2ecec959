"""Measures a tuner's candidates on the CPU, after other processes lowered them."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from attn_mlir.backends.tuning.agreement import agree
from attn_mlir.backends.tuning.processes import Compilers, cores
from attn_mlir.backends.tuning.worker import Job
from attn_mlir.mlir import LOCK

_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
_ROUNDED = 2e-2
"""By the type of q: how far results of two schedules may be apart; 16-bit weights are rounded in other places."""
_MANY = 4
"""So many cores are worth processes that compile."""
_SAMPLE = 2e-3
"""Seconds of a sample at least: shorter calls are repeated."""


class CpuBench(Compilers):
    """The `Bench` of a program: `job` says which derivative of it is tuned, `inputs` what it is run on."""

    def __init__(self, job: Job, inputs: Sequence[Any], layout: str, processes: int = 0) -> None:
        super().__init__(job, processes)
        self._inputs, self._layout = list(inputs), layout
        self._here = not processes and cores() < _MANY
        self._compiled: dict[str, Any] = {}
        # A call on one thread runs in this one, whose own time other work on the machine does not change.
        self._clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

    def compile(self, texts: Sequence[str], done: Callable[[], None]) -> list[str]:
        """See `Bench.compile`. With few cores, in this process: others would take longer to start."""
        if not self._here:
            return super().compile(texts, done)
        problems = []
        for text in texts:
            try:
                with LOCK:
                    self._compiled[text] = self._job.compile(text)
                problems.append("")
            except Exception as error:  # whatever is wrong with one candidate, the others are compiled
                lines = str(error).strip().splitlines()
                problems.append(f"{type(error).__name__}: {lines[0] if lines else ''}"[:200])
            done()
        return problems

    def prepare(self, text: str) -> Callable[[], Any]:
        """See `Bench.prepare`."""
        compiled = self._compiled.pop(text, None)
        if compiled is None:
            with LOCK:
                compiled = self._job.compile(text)
        return lambda: compiled.run(self._inputs, self._layout)

    def agree(self, results: Any, reference: Any) -> bool:
        """See `Bench.agree`."""
        return agree(results, reference, _TOLERANCE.get(self._inputs[0].dtype, _ROUNDED))

    def time(self, call: Callable[[], Any], repeats: int) -> float:
        """See `Bench.time`: the best of the samples, since other work on the machine can only add to them; caches are warm."""
        start = self._clock()
        call()
        calls = max(1, min(1000, round(_SAMPLE / max(self._clock() - start, 1e-7))))
        best = float("inf")
        for _ in range(repeats):
            start = self._clock()
            for _ in range(calls):
                call()
            best = min(best, (self._clock() - start) / calls)
        return 1e3 * best
