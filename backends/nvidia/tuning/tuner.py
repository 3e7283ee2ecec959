"""Tunes the kernels of a program: candidates are compiled in parallel, checked, measured, and the winner is kept in a tune file.

What compiles and what measures is given (`Bench`), so that all of this runs without a GPU, too.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.backends.nvidia.tuning import space
from attn_mlir.backends.nvidia.tuning.choices import with_choices
from attn_mlir.backends.nvidia.tuning.facts import KernelFacts
from attn_mlir.backends.nvidia.tuning.model import Work
from attn_mlir.backends.nvidia.tuning.progress import Progress
from attn_mlir.backends.nvidia.tuning.store import Key, TuneFile

_FINALISTS, _ROUNDS = 4, 7
_MARGIN = 0.99
"""A candidate replaces the untuned schedule when it takes less than this part of its time."""


@dataclass(frozen=True)
class Tunable:
    """A kernel of a program: its name, what it is like, the problem it is run on, and the key of its result."""

    name: str
    facts: KernelFacts
    work: Work
    key: Key


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


@dataclass
class Report:
    """What tuning one kernel came to. `failed`: reasons of candidates that were skipped, by how many there were."""

    kernel: str
    choices: Fields
    ms: float = 0.0
    untuned_ms: float = 0.0
    tried: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    found: bool = False
    """Whether it was in the tune file, so that nothing was measured."""

    def __str__(self) -> str:
        told = ", ".join(f"{name}={value}" for name, value in self.choices.items())
        if self.found:
            return f"{self.kernel}: {told} (from the tune file)"
        skipped = f", {sum(self.failed.values())} skipped ({'; '.join(self.failed)})" if self.failed else ""
        return f"{self.kernel}: {told}: {self.ms:.3f} ms, untuned {self.untuned_ms:.3f} ms; {self.tried} tried{skipped}"


def tune(
    text: str,
    kernels: Sequence[Tunable],
    bench: Bench,
    file: TuneFile,
    target: NvidiaTarget,
    measure: bool = True,
    known: Mapping[str, Fields] | None = None,
    count: int = 16,
    quiet: bool = False,
) -> tuple[dict[str, Fields], list[Report]]:
    """The best choices for the kernels of a program, by their names, in addition to the `known` ones, and how they were found.

    Without `measure`, only those that the file has. `count` candidates are measured for each kernel, besides the untuned schedule and
    single changes of the best. The kernels are tuned one after another, each with the choices of those before.
    """
    chosen = dict(known or {})
    reports = []
    for kernel in kernels:
        found = file.find(kernel.key)
        if found is not None:
            reports.append(Report(kernel.name, found, found=True))
        elif measure:
            report = _tune_kernel(text, chosen, kernel, bench, target, count, quiet)
            if report is None:
                continue
            told = {"kernel": kernel.name, "ms": report.ms, "untuned_ms": report.untuned_ms, "tried": report.tried}
            file.add(kernel.key, report.choices, **told, failed=sum(report.failed.values()), reasons=report.failed)
            reports.append(report)
        else:
            continue
        chosen[kernel.name] = reports[-1].choices
    return chosen, reports


def _tune_kernel(
    text: str, chosen: dict[str, Fields], kernel: Tunable, bench: Bench, target: NvidiaTarget, count: int, quiet: bool
) -> Report | None:
    """None where there is nothing to choose, or nothing runs. First the blocks, then single changes of the best that was found."""
    search = _Search(text, chosen, kernel, bench, quiet)
    candidates = space.to_measure(kernel.facts, target, kernel.work, count)
    if len(candidates) < 2:
        return None
    search.measure(candidates)
    if not search.times:
        return None
    fastest = min(search.times, key=lambda number: search.times[number])
    search.measure(space.refined(kernel.facts, target, kernel.work, search.candidates[fastest]))
    return search.decide()


class _Search:
    """What was tried for one kernel. Candidate 0 is the untuned schedule."""

    def __init__(self, text: str, chosen: dict[str, Fields], kernel: Tunable, bench: Bench, quiet: bool) -> None:
        self._text, self._chosen, self._name, self._bench, self._quiet = text, chosen, kernel.name, bench, quiet
        self._reference: Any = None
        self._calls: dict[int, Callable[[], Any]] = {}
        self._failed: dict[str, int] = {}
        self.candidates: list[Fields] = []
        self.times: dict[int, float] = {}

    def measure(self, choices: Sequence[Fields]) -> None:
        """Compiles candidates, then runs, checks and measures each."""
        first = len(self.candidates)
        self.candidates += choices
        texts = [with_choices(self._text, {**self._chosen, self._name: each}) for each in choices]
        with Progress(f"{self._name}: compiling", len(texts), self._quiet) as progress:
            problems = self._bench.compile(texts, progress.step)
        with Progress(f"{self._name}: measuring", len(texts), self._quiet) as progress:
            for number, (text, problem) in enumerate(zip(texts, problems, strict=True), first):
                problem = problem or self._try(text, number)
                if problem:
                    self._failed[problem] = self._failed.get(problem, 0) + 1
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

    def decide(self) -> Report:
        """The best few in turn, since the first kernel timed has the higher clock; the untuned schedule takes part."""
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
        untuned = medians.get(0, 0.0)
        return Report(self._name, dict(self.candidates[winner]), medians[winner], untuned, len(self.candidates), self._failed)
