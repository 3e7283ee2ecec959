"""Measures a tuner's candidates on the current GPU, after they were compiled in processes of their own."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from attn_mlir.backends.allocation import empty
from attn_mlir.backends.gpu.trial import TrialProcess
from attn_mlir.backends.tuning.agreement import agree
from attn_mlir.backends.tuning.processes import Compilers
from attn_mlir.backends.tuning.worker import Job
from attn_mlir.mlir import LOCK

_FLUSH_BYTES = 256 << 20
"""More than the L2 cache of any GPU."""
_WAIT_CYCLES = 200_000
"""How long the GPU is kept busy while the host submits what is measured."""
_TOLERANCE = 0.02


class GpuBench(Compilers):
    """The `Bench` of a program: `job` says which derivative of it is tuned, `inputs` what it is run on.

    Its processes live until `close`.
    """

    def __init__(self, job: Job, inputs: Sequence[Any], layout: str, processes: int = 0) -> None:
        super().__init__(job, processes)
        self._inputs, self._layout = list(inputs), layout
        self._flush: torch.Tensor | None = None
        self._trial = TrialProcess(job, inputs, layout)

    def start(self) -> None:
        """Starts the process that runs candidates first, which takes seconds; else the first candidate does."""
        self._trial.start()

    def close(self) -> None:
        """Ends the process that runs candidates first, and those that compile."""
        self._trial.close()
        super().close()

    def prepare(self, text: str) -> Callable[[], Any]:
        """See `Bench.prepare`. The program ran before, in a process of its own, and came to its end there."""
        problem = self._trial.run(text)
        if problem:
            raise RuntimeError(f"in a process of its own: {problem}")
        with LOCK:
            program = self._job.compile(text)
        return lambda: program.run(self._inputs, self._layout)

    def agree(self, results: Any, reference: Any) -> bool:
        """See `Bench.agree`."""
        return agree(results, reference, _TOLERANCE)

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
