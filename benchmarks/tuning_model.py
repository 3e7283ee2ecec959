"""How well the tuner's model ranks schedules: python benchmarks/tuning_model.py [--device cuda|cpu] [--seconds 420] [--json FILE].

For each problem all schedules that fit are compiled, checked against the untuned one, and timed; the model's order is compared with the
clock's. "top 5" is the time of the best of the model's first five over that of the best of all; "default" that of the untuned schedule,
"default/tuned" that over the tuner's choice: both are timed in turn. A CPU is timed on one thread by its own time (`--threads 1`, as
is usual here), so that other work on the machine does not count. A problem for which there is no time left is left out.
"""

import argparse
import contextlib
import json
import math
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attn_mlir.backends.tuning.processes import shared_cache
from attn_mlir.backends.tuning.ranking import best_within, spearman
from attn_mlir.backends.tuning.space import ranked
from attn_mlir.backends.tuning.tuner import Search
from attn_mlir.driver import tuner_of
from attn_mlir.reference.inputs import Sizes
from attn_mlir.tools.plot import scatter
from attn_mlir.tools.problems import Problem, columns_of, ready_made


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
    """The bar shapes, the most important first: 16384 tokens, H x D = 2048."""
    shapes = [(128, 16), (64, 32)]
    return [
        Case("softmax", causal, function, "bf16", dim, Sizes(4, heads, heads, 4096, 4096))
        for function in ("attention", "attention_bwd")
        for dim, heads in shapes
        for causal in (True, False)
    ]


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


def measure(case: Case, device: str, most: int, deadline: float, seed: int) -> list[dict[str, Any]]:
    """One row of the report for each kernel of a case that has something to choose."""
    text = ready_made(case.name, case.element, case.dim, case.dim, case.causal)
    problem, tuner = Problem(text, case.sizes, device), tuner_of(device)
    job = problem.job(case.function)
    known, kernels = tuner.kernels(text, job, problem.shapes(columns_of(text)), "")
    found = []
    with contextlib.closing(tuner.bench(job, problem.inputs(case.function), "bhsd")) as bench:
        for kernel in kernels:
            if time.monotonic() > deadline:
                break
            candidates = [each.choices for each in ranked(kernel.space)]
            if most and len(candidates) > most:  # the model's first, and others by chance
                candidates = candidates[:5] + random.Random(seed).sample(candidates[5:], most - 5)
            search = Search(text, known, kernel, bench, tuner.write, quiet=True)
            start = time.monotonic()
            search.measure([kernel.space.untuned(), *candidates])
            decided = search.decide() if search.times else None
            trials = search.trials()
            found.append(row(f"{case.label} {kernel.name}", trials, decided, time.monotonic() - start))
            print(told(found[-1]), flush=True)
    return found


def row(label: str, trials: list[Any], decided: Any, seconds: float) -> dict[str, Any]:
    """What one kernel comes to; the first trial is the untuned schedule."""
    measured = [trial for trial in trials[1:] if not trial.problem]
    result: dict[str, Any] = {"case": label, "measured": len(measured), "failed": sum(bool(t.problem) for t in trials), "seconds": seconds}
    result["trials"] = [{"choices": t.choices, "predicted_ms": t.predicted_ms, "ms": t.ms, "problem": t.problem} for t in trials]
    if decided is None or len(measured) < 2:
        return {**result, "reason": "fewer than two schedules ran"}
    predicted, times = [t.predicted_ms for t in measured], [t.ms for t in measured]
    return {
        **result,
        "spearman": spearman(predicted, times),
        "top5": best_within(predicted, times, 5),
        "best": min(measured, key=lambda t: t.ms).choices,
        "tuned": decided.choices,
        "gain": decided.untuned_ms / decided.ms if decided.untuned_ms else math.nan,
        "untuned_ms": decided.untuned_ms,
    }


def told(result: dict[str, Any]) -> str:
    """A line of the table."""
    if "reason" in result:
        return f"{result['case']:<68} {result['reason']}"
    return (
        f"{result['case']:<68} {result['measured']:>4} {result['spearman']:>9.2f} {result['top5']:>7.3f} {result['untuned_ms']:>9.3f} "
        f"{result['gain']:>13.3f}"
    )


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--seconds", type=float, default=420.0, help="no further kernel is begun after so long")
    add("--per-kernel", type=int, default=0, metavar="N", help="candidates of a kernel: the model's first 5 and others by chance; 0: all")
    add("--only", default="", metavar="TEXT", help="only cases with TEXT in their name, such as 'bwd'")
    add("--threads", type=int, default=1, help="on a CPU")
    add("--quick", action="store_true", help="small cases: tests the benchmark itself")
    add("--seed", type=int, default=0)
    add("--json", type=Path, metavar="FILE", help="write everything to FILE")
    add("--plot", type=Path, metavar="FILE", help="draw predicted against measured times to an SVG file")
    args = parser.parse_args(given)
    torch.set_num_threads(args.threads)
    deadline = time.monotonic() + args.seconds
    cases = cpu_cases(args.quick) if args.device == "cpu" else gpu_cases()
    print(f"{'kernel':<68} {'n':>4} {'Spearman':>9} {'top 5':>7} {'default':>9} {'default/tuned':>13}")
    results, left = [], []
    with shared_cache():
        for case in cases:
            if args.only not in case.label:
                continue
            if time.monotonic() > deadline:
                left.append(case.label)
                continue
            results += measure(case, args.device, args.per_kernel, deadline, args.seed)
    summary(results, left)
    if args.json:
        args.json.write_text(json.dumps({"device": args.device, "results": results}, indent=1) + "\n")
    if args.plot:
        points = {r["case"]: [(t["predicted_ms"], t["ms"]) for t in r["trials"] if not t["problem"]] for r in results}
        args.plot.write_text(scatter(points, "predicted ms", "measured ms"))
    return 0


def summary(results: list[dict[str, Any]], left: list[str]) -> None:
    """The bars, at the end."""
    good = [r for r in results if "spearman" in r]
    if good:
        print(
            f"{len(good)} kernels: rank correlation {min(r['spearman'] for r in good):.2f} at least, "
            f"{sum(r['spearman'] for r in good) / len(good):.2f} on average; the model's top 5 are within 2 % of the best in "
            f"{sum(r['top5'] <= 1.02 for r in good)}; default / tuned {max(r['gain'] for r in good):.3f} at most"
        )
    for label in left:
        print(f"no time left for: {label}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
