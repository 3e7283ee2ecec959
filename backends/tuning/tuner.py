"""Tunes the kernels of a program: candidates are compiled in parallel, checked, measured, and the winner is kept in a tune file.

What compiles and what measures is given (`Bench`), so that all of this runs on any machine.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from attn_mlir.backends.fields import Fields
from attn_mlir.backends.tuning.progress import Progress
from attn_mlir.backends.tuning.report import Trial, TuneReport
from attn_mlir.backends.tuning.space import Tunable, predicted_ms, to_measure
from attn_mlir.backends.tuning.store import TuneFile

_FINALISTS, _ROUNDS = 4, 7
_MARGIN = 0.99
"""A candidate replaces the untuned schedule when it takes less than this part of its time."""


Write = Callable[[str, Mapping[str, Fields]], str]
"""Makes of a module's text one with choices for its kernels."""


class Bench(Protocol):
    """Compiles and measures programs, which are given as text."""

    def compile(self, texts: Sequence[str], done: Callable[[], None]) -> list[str]:
        """Compiles programs in parallel, calling `done` after each; what is wrong with each, or ""."""
        ...

    def prepare(self, text: str) -> Callable[[], Any]:
        """A function that runs a compiled program once and returns its results. Raises where it cannot run."""
        ...

    def agree(self, results: Any, reference: Any) -> bool:
        """Whether two candidates' results are the same up to rounding."""
        ...

    def time(self, call: Callable[[], Any], repeats: int) -> float:
        """Milliseconds of a call: the median of `repeats`, each with cold caches."""
        ...


def tune(
    text: str,
    kernels: Sequence[Tunable],
    bench: Bench,
    file: TuneFile,
    write: Write,
    *,
    measure: bool = True,
    known: Mapping[str, Fields] | None = None,
    count: int = 16,
    quiet: bool = False,
) -> tuple[dict[str, Fields], list[TuneReport]]:
    """The best choices for the kernels of a program, by their names, in addition to the `known` ones, and how they were found.

    Without `measure`, only those that the file has. The model's best `count` are measured for each kernel, besides the untuned schedule and
    single changes of the best. The kernels are tuned one after another, each with the choices of those before. A kernel of which nothing
    ran has a report without choices, and nothing is kept of it.
    """
    chosen = dict(known or {})
    reports = []
    for kernel in kernels:
        found = file.find(kernel.key)
        if found is not None:
            reports.append(TuneReport(kernel.name, found, found=True))
        elif measure:
            report = run(Search(text, chosen, kernel, bench, write, quiet), count)
            if report is None:
                continue
            reports.append(report)
            if not report.choices:
                continue
            told = {"kernel": kernel.name, "ms": report.ms, "untuned_ms": report.untuned_ms, "tried": len(report.trials)}
            file.add(kernel.key, report.choices, **told, failed=sum(report.failed.values()), reasons=report.failed)
        else:
            continue
        chosen[kernel.name] = reports[-1].choices
    return chosen, reports


def run(search: "Search", count: int) -> TuneReport | None:
    """None where there is nothing to choose. First the blocks, then single changes of the best that was found."""
    space = search.kernel.space
    candidates = to_measure(space, count)
    if len(candidates) < 2:
        return None
    search.measure(candidates)
    if not search.times:
        return search.decide()
    fastest = min(search.times, key=lambda number: search.times[number])
    search.measure(space.refined(search.candidates[fastest]))
    return search.decide()


class Search:
    """What was tried for one kernel of a module, whose other kernels have the choices in `chosen`. Candidate 0 is the untuned schedule."""

    def __init__(self, text: str, chosen: Mapping[str, Fields], kernel: Tunable, bench: Bench, write: Write, quiet: bool = False) -> None:
        self.kernel = kernel
        self._text, self._chosen, self._bench, self._write, self._quiet = text, chosen, bench, write, quiet
        self._reference: Any = None
        self._calls: dict[int, Callable[[], Any]] = {}
        self._problems: dict[int, str] = {}
        self.candidates: list[Fields] = []
        self.times: dict[int, float] = {}

    def measure(self, choices: Sequence[Fields]) -> None:
        """Compiles candidates, then runs, checks and measures each."""
        first, name = len(self.candidates), self.kernel.name
        self.candidates += choices
        texts = [self._write(self._text, {**self._chosen, name: each}) for each in choices]
        with Progress(f"{name}: compiling", len(texts), self._quiet) as progress:
            problems = self._bench.compile(texts, progress.step)
        with Progress(f"{name}: measuring", len(texts), self._quiet) as progress:
            for number, (text, problem) in enumerate(zip(texts, problems, strict=True), first):
                problem = problem or self._try(text, number)
                if problem:
                    self._problems[number] = problem
                progress.step()

    def _try(self, text: str, number: int) -> str:
        """What is wrong with a candidate, or ""."""
        try:
            call = self._bench.prepare(text)
            results = call()
            if self._reference is None:
                self._reference = results
            elif not self._bench.agree(results, self._reference):
                return "wrong results"
            self.times[number] = self._bench.time(call, 5)
        except Exception as error:  # a candidate that cannot run is skipped, whatever the reason
            lines = str(error).strip().splitlines()
            return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
        self._calls[number] = call
        return ""

    def trials(self) -> list[Trial]:
        """All that were tried, in order."""
        space = self.kernel.space
        return [
            Trial(choices, predicted_ms(space, choices), self.times.get(number, 0.0), self._problems.get(number, ""))
            for number, choices in enumerate(self.candidates)
        ]

    def decide(self) -> TuneReport:
        """The best few in turn, since the first kernel timed has the higher clock; the untuned schedule takes part."""
        if not self.times:
            return TuneReport(self.kernel.name, {}, trials=self.trials())
        finalists = sorted(self.times, key=lambda number: self.times[number])[:_FINALISTS]
        if 0 in self.times and 0 not in finalists:
            finalists.append(0)
        samples: dict[int, list[float]] = {number: [] for number in finalists}
        for _ in range(_ROUNDS):
            for number in finalists:
                samples[number].append(self._bench.time(self._calls[number], 3))
        medians = {number: statistics.median(taken) for number, taken in samples.items()}
        winner = min(finalists, key=lambda number: medians[number])
        if 0 in medians and medians[winner] > _MARGIN * medians[0]:
            winner = 0
        return TuneReport(self.kernel.name, dict(self.candidates[winner]), medians[winner], medians.get(0, 0.0), trials=self.trials())
