"""A clock for the tuner that needs no GPU."""

from collections.abc import Callable, Sequence
from typing import Any

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia.tuning.choices import choices_in
from attn_mlir.backends.nvidia.tuning.program import TUNER
from attn_mlir.backends.tuning import program
from attn_mlir.backends.tuning.worker import Job
from attn_mlir.mlir import ir
from contexts import loaded_context


def tune_module(text: str, job: Job, inputs: Sequence[Any], **options: Any) -> dict[str, Fields]:
    """The choices that a tuner for NVIDIA GPUs finds."""
    return program.tune_module(TUNER, text, job, inputs, **options)[0]


class FakeBench:
    """Times from a function of the choices of `kernel`; if none is given, of that whose name comes last.

    Programs are texts, results choices.
    """

    def __init__(self, time: Callable[[Fields], float], problem: Callable[[Fields], str] = lambda _: "", kernel: str = "") -> None:
        self._time, self._problem, self._kernel = time, problem, kernel
        self._known: dict[str, Fields] = {}
        self.compiled: list[Fields] = []
        self.timed = 0

    def compile(self, texts: Sequence[str], done: Callable[[], None]) -> list[str]:
        for text in texts:
            self.compiled.append(self._choices(text))
            done()
        return [self._problem(self._choices(text)) for text in texts]

    def prepare(self, text: str) -> Callable[[], Any]:
        return lambda: self._choices(text)

    def agree(self, results: Any, reference: Any) -> bool:
        return results.get("stages") != 3

    def time(self, call: Callable[[], Any], repeats: int) -> float:
        self.timed += 1
        return self._time(call())

    def _choices(self, text: str) -> Fields:
        if text not in self._known:
            with loaded_context():
                choices = choices_in(ir.Module.parse(text).operation)
                self._known[text] = choices[self._kernel or max(choices)]
        return self._known[text]
