"""How well the tuner's model ranks schedules: python benchmarks/tuning_model.py [--device cuda|cpu] [--seconds 420] [--json FILE].

For each problem all schedules that fit are compiled, checked against the untuned one, and timed; the model's order is compared with the
clock's. "top 5" is the time of the best of the model's first five over that of the best of all; "default" that of the untuned schedule,
"default/tuned" that over the tuner's choice, single changes of the best blocks among them: both are timed in turn. On a GPU --processes
compile what comes next while schedules are measured. The untuned schedule and the model's first five are measured first, the others in
an order by chance, until the time is over ("of": how many there are). The bar shapes come first.

The file of --json and the picture of --plot are written as it goes, so that a run that was cut is there, too: --read FILE.json prints its
table. A CPU is timed on one thread by its own time (`--threads 1`, as is usual here), so that other work on the machine does not count.
"""

import argparse
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tuning_ahead import Ahead, Waiting
from tuning_report import row_of, summary, told, write

from attn_mlir.backends.fields import Fields
from attn_mlir.backends.gpu.bench import GpuBench
from attn_mlir.backends.tuning.processes import cores, shared_cache
from attn_mlir.backends.tuning.report import TuneReport
from attn_mlir.backends.tuning.space import Tunable, ranked
from attn_mlir.backends.tuning.tuner import Search
from attn_mlir.driver import tuner_of
from attn_mlir.errors import AttnError
from attn_mlir.reference.inputs import Sizes
from attn_mlir.tools.problems import TuneProblem, columns_of, ready_made

_AT_ONCE = 8
"""So many schedules are measured between two looks at the clock."""


@dataclass(frozen=True)
class Case:
    """A kernel of an attention by name, its function, and its sizes."""

    name: str
    causal: bool
    function: str
    element: str
    dim: int
    sizes: Sizes

    @property
    def label(self) -> str:
        kind = f"{self.name}{' causal' if self.causal else ''} {self.function.removeprefix('attention_')}"
        s = self.sizes
        return f"{kind} {self.element} B{s.batch} H{s.heads} S{s.q_len} D{self.dim}"


def gpu_cases() -> list[Case]:
    """The bar shapes, the most important first: 16384 tokens, H x D = 2048; then chunk scans."""
    shapes, functions = [(128, 16), (64, 32)], ("attention", "attention_bwd")
    softmax = [
        Case("softmax", causal, function, "bf16", dim, Sizes(4, heads, heads, 4096, 4096))
        for dim, heads in shapes
        for causal in (True, False)
        for function in functions
    ]
    return [*softmax, *(Case("linear", False, function, "bf16", 128, Sizes(4, 16, 16, 4096, 4096)) for function in functions)]


def cpu_cases(quick: bool) -> list[Case]:
    """Forward, backward and chunk scans, in f32 and bf16."""
    length = 256 if quick else 1024
    sizes = Sizes(1, 4, 4, length, length)
    found = [
        Case("softmax", causal, function, element, dim, sizes)
        for element in ("f32", "bf16")
        for function in ("attention", "attention_bwd")
        for dim, causal in ((64, True), (128, False))
    ]
    return [*found, *(Case("linear", False, function, "f32", 64, sizes) for function in ("attention", "attention_bwd"))]


class Measuring:
    """The kernels of one case: what is asked of the processes that compile, and what measures."""

    def __init__(self, case: Case, device: str, most: int, seed: int) -> None:
        self.case, self._most, self._seed = case, most, seed
        self._text = ready_made(case.name, case.element, case.dim, case.dim, case.causal)
        self._problem, self._tuner = TuneProblem(self._text, case.sizes, device), tuner_of(device)
        self._job = self._problem.job(case.function)
        self._known, self.kernels = self._tuner.kernels(self._text, self._job, self._problem.shapes(columns_of(self._text)), "")
        self._bench: Any = None
        self._began = 0.0

    def candidates(self, kernel: Tunable) -> list[Fields]:
        """The untuned schedule, the model's first 5, and the others by chance."""
        order = [each.choices for each in ranked(kernel.space)]
        others = order[5:]
        random.Random(self._seed).shuffle(others)
        return [kernel.space.untuned(), *order[:5], *(others[: max(self._most - 5, 0)] if self._most else others)]

    def compile_ahead(self, ahead: Ahead) -> None:
        """Asks for all that will be measured."""
        for kernel in self.kernels:
            for choices in self.candidates(kernel):
                ahead.add(self._job, self._tuner.write(self._text, {**self._known, kernel.name: choices}))

    def start(self, ahead: Ahead | None, deadline: float) -> None:
        """Makes the inputs, for which a backward pass needs a forward pass."""
        if ahead is not None and self.case.function == "attention_bwd":
            ahead.add(self._problem.job("attention_fwd"), self._text, urgent=True).result(max(deadline - time.monotonic(), 0.0))
        self._bench = self._tuner.bench(self._job, self._problem.inputs(self.case.function), "bhsd")

    def warm_up(self) -> None:
        """Starts the process that runs candidates first, where there is one, which takes seconds."""
        if isinstance(self._bench, GpuBench):
            self._bench.start()

    def close(self) -> None:
        """Ends what `start` started."""
        if self._bench is not None:
            self._bench.close()

    def run(self, ahead: Ahead | None, deadline: float, tell: Callable[[dict[str, Any]], None]) -> None:
        """Measures all kernels; `tell` gets the row of each, again and again while it grows."""
        bench = self._bench if ahead is None else Waiting(self._bench, ahead, self._job, deadline)
        for kernel in self.kernels:
            candidates, space = self.candidates(kernel), kernel.space
            search = Search(self._text, self._known, kernel, bench, self._tuner.write, quiet=True)
            self._began = time.monotonic()
            while len(search.candidates) < len(candidates) and time.monotonic() < deadline:
                done = len(search.candidates)
                search.measure(candidates[done : done + (_AT_ONCE if done else 6)])
                tell(self._row(search))
            refined: list[Fields] = []
            if search.times and time.monotonic() < deadline:
                refined = [*space.refined(search.candidates[min(search.times, key=lambda number: search.times[number])])]
                search.measure(refined)
            if search.candidates:
                tell(self._row(search, len(refined), search.decide()))

    def _row(self, search: Search, refined: int = 0, decided: TuneReport | None = None) -> dict[str, Any]:
        kernel = search.kernel
        seconds = time.monotonic() - self._began
        return row_of(f"{self.case.label} {kernel.name}", len(ranked(kernel.space)), search.trials(), refined, decided, seconds)


def measure(batch: list[Measuring], ahead: Ahead | None, deadline: float, tell: Callable[[dict[str, Any]], None]) -> None:
    """Starts what cases need, all at once, then measures one after another. One that fails, out of memory, say, is left out."""
    ready = []
    for each in batch:
        with _kept_going(each.case):
            each.start(ahead, deadline)
            ready.append(each)
    with ThreadPoolExecutor(len(batch)) as pool:
        list(pool.map(Measuring.warm_up, ready))
    for each in ready:
        with _kept_going(each.case), contextlib.closing(each):
            each.run(ahead, deadline, tell)


@contextlib.contextmanager
def _kept_going(case: Case) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, AttnError, TimeoutError) as error:
        print(f"{case.label}: {type(error).__name__}: {error}", file=sys.stderr)


def main(given: list[str] | None = None) -> int:
    """The command; the exit code is 1 where no kernel could be measured."""
    args = parsed(given)
    if args.read:
        found = json.loads(args.read.read_text())
        return summary(found["results"], found["left"])
    torch.set_num_threads(args.threads)
    deadline = time.monotonic() + args.seconds
    cases = [case for case in (cpu_cases(args.quick) if args.device == "cpu" else gpu_cases()) if args.only in case.label]
    results: dict[str, dict[str, Any]] = {}

    def left() -> list[str]:
        return [case.label for case in cases if not any("gain" in r for name, r in results.items() if name.startswith(case.label))]

    def tell(row: dict[str, Any]) -> None:
        if "gain" in row or "reason" in row:
            print(told(row), file=sys.stderr, flush=True)
        results[row["case"]] = row
        write(args, list(results.values()), left())

    with shared_cache(), contextlib.ExitStack() as stack:
        ahead = stack.enter_context(contextlib.closing(Ahead(args.processes))) if args.processes and args.seconds > 0 else None
        everything = [Measuring(case, args.device, args.per_kernel, args.seed) for case in cases]
        if ahead is None:
            batches = [[each] for each in everything]
        else:
            batches = [everything]
            for each in everything:
                each.compile_ahead(ahead)
        for batch in batches:
            if time.monotonic() < deadline:
                measure(batch, ahead, deadline, tell)
    write(args, list(results.values()), left())
    return summary(list(results.values()), left())


def parsed(given: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--seconds", type=float, default=420.0, help="no further schedule is begun after so long")
    add("--per-kernel", type=int, default=0, metavar="N", help="candidates of a kernel: the model's first 5 and others by chance; 0: all")
    add("--only", default="", metavar="TEXT", help="only cases with TEXT in their name, such as 'bwd'")
    add("--processes", type=int, metavar="N", help="that compile ahead; default: 14 at most for a GPU; 0, and on a CPU: none")
    add("--threads", type=int, default=1, help="on a CPU")
    add("--quick", action="store_true", help="small cases: tests the benchmark itself")
    add("--seed", type=int, default=0)
    add("--json", type=Path, metavar="FILE", help="write everything to FILE")
    add("--plot", type=Path, metavar="FILE", help="draw predicted against measured times to an SVG file")
    add("--read", type=Path, metavar="FILE", help="print the table of a file that --json wrote; nothing is measured")
    args = parser.parse_args(given)
    if args.processes is None:
        args.processes = 0 if args.device == "cpu" else max(1, min(14, cores() - 2))
    return args


if __name__ == "__main__":
    raise SystemExit(main())
