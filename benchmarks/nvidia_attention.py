"""Attention on an NVIDIA GPU, side by side with every other system that is installed: python benchmarks/nvidia_attention.py.

Every result is compared with the formula in float32 on slices of heads before it is timed. Then the systems take turns, round by
round, in another order each round: the card is limited by power, so what is timed first gets the boost clock, and what comes after a
kernel that needs less power gets a higher clock. Only what is measured in turn compares. docs/performance-nvidia.md says what the
columns mean.

    --parts forward,backward,variants,latency,overhead,memory    what to measure (all; "forward" takes about 100 s)
    --rows 1-4,9     rows of the table        --only TEXT    cases with TEXT in their name
    --systems attn_mlir,cudnn                 --flex-all     FlexAttention in every row (it compiles for seconds in each)
    --quick          small shapes             --json FILE    everything, each sample too      --markdown
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nvidia_report
import torch
from nvidia_cases import Case, Problem, table_cases, variant_cases
from nvidia_machine import describe, latency, launch_overhead, peak_memory
from nvidia_systems import NAMES, Forward, systems

Call = Callable[[], Any]
PARTS = ("forward", "backward", "variants", "latency", "overhead", "memory")
_ROOT = Path(__file__).resolve().parent


def in_turn(calls: dict[str, Call], rounds: int, launches: int, device: str) -> dict[str, list[float]]:
    """Milliseconds a launch: a sample for each system and round, over `launches` launches after one that is not timed."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name in order_of(list(calls), number):
            call = calls[name]
            call()
            taken = _timed(call, launches, device)
            if number:  # the first round warms up
                samples[name].append(taken / launches)
    return samples


def order_of(names: Sequence[str], number: int) -> list[str]:
    """The order of round `number`: each system comes first equally often, and each before and after each of its neighbours."""
    first = number // 2 % max(1, len(names))
    turned = [*names[first:], *names[:first]]
    return turned[::-1] if number % 2 else turned


def _timed(call: Call, launches: int, device: str) -> float:
    if device == "cpu":  # for tests of this script
        start = time.perf_counter()
        for _ in range(launches):
            call()
        return 1e3 * (time.perf_counter() - start)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(launches):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def call_of(problem: Problem, forward: Forward) -> Call:
    """What is timed: the forward pass, or the backward pass alone."""
    q, k, v = problem.inputs
    if not problem.backward:
        return lambda: forward(q, k, v)
    o = forward(q, k, v)
    return lambda: torch.autograd.grad(o, (q, k, v), problem.do, retain_graph=True)


def prepare(problem: Problem, forward: Forward) -> tuple[dict[str, Any], Call | None]:
    """The first call's time and the error; the call to time, or a "reason" where the system fails or is wrong."""
    # What the allocator hands out next holds NaN: a result that was never written cannot look right.
    poison = [torch.full_like(problem.q, torch.nan) for _ in range(4)]
    del poison
    start = time.perf_counter()
    try:
        call = call_of(problem, forward)
        o = forward(*problem.inputs).detach() if problem.backward else call()
        results = [o, *(call() if problem.backward else ())]
        if problem.device != "cpu":
            torch.cuda.synchronize()
    except Exception as failure:
        lines = str(failure).strip().splitlines() or [""]
        return {"reason": f"fails: {type(failure).__name__}: {lines[0][:160]}"}, None
    found: dict[str, Any] = {"first_s": time.perf_counter() - start}
    found["error"], wrong = problem.check(results)
    return (found | {"reason": wrong}, None) if wrong else (found, call)


def run_case(case: Case, args: argparse.Namespace, backward: bool) -> dict[str, Any]:
    """Checks and times one case."""
    problem = Problem(case, args.device, backward)
    found: dict[str, dict[str, Any]] = {}
    calls: dict[str, Call] = {}
    for name, forward in systems(problem, args.systems, args.flex_all).items():
        if isinstance(forward, str):
            found[name] = {"reason": forward}
            continue
        found[name], call = prepare(problem, forward)
        if call is not None:
            calls[name] = call
    for name, samples in in_turn(calls, args.rounds, args.launches, args.device).items():
        middle = statistics.median(samples)
        found[name] |= {"ms": middle, "tflops": 1e-9 * case.flops(backward) / middle, "samples_ms": samples}
    described = {"case": case.name, "kind": case.kind, "direction": "backward" if backward else "forward"}
    shape = {"batch": case.batch, "heads": case.heads, "kv_heads": case.kv_heads, "length": case.length, "dim": case.dim}
    work = {"flops": case.flops(backward), "bytes": case.bytes(backward), "exponentials": case.exponentials}
    return {**described, **shape, **work, "systems": found}


def run_cases(cases: Sequence[Case], args: argparse.Namespace, backward: bool) -> list[dict[str, Any]]:
    results = []
    for case in cases:
        if args.only not in case.name:
            continue
        start = time.perf_counter()
        result = run_case(case, args, backward)
        results.append(result)
        told = [f"{name} {s['tflops']:.0f}" if "ms" in s else f"{name}: {s['reason']}" for name, s in result["systems"].items()]
        taken = time.perf_counter() - start
        print(f"{result['direction']} {case.name} [{taken:.1f} s]: {'; '.join(told)}", file=sys.stderr, flush=True)
        gc.collect()
        if args.device != "cpu":
            torch.cuda.empty_cache()
    return results


def rows_of(text: str, count: int) -> list[int]:
    """Numbers of rows, from 0, of a text such as "1-4,9"; all for an empty one."""
    if not text:
        return list(range(count))
    chosen: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        chosen += range(int(first) - 1, int(last or first))
    return [number for number in chosen if 0 <= number < count]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), metavar="LIST")
    parser.add_argument("--rows", default="", metavar="LIST")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--systems", default=",".join(NAMES), metavar="LIST")
    parser.add_argument("--flex-all", action="store_true")
    parser.add_argument("--quick", action="store_true", help="small shapes: tests the benchmark itself")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="print the tables for docs/performance-nvidia.md")
    args = parser.parse_args(given)
    args.parts, args.systems = args.parts.split(","), args.systems.split(",")
    for given_names, known in ((args.parts, PARTS), (args.systems, tuple(NAMES))):
        if unknown := [name for name in given_names if name not in known]:
            parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    return args


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The whole report."""
    table = table_cases(args.quick)
    report: dict[str, Any] = {"machine": describe(args.device)}
    table = [table[number] for number in rows_of(args.rows, len(table))]
    for direction in ("forward", "backward"):
        if direction in args.parts:
            report[direction] = run_cases(table, args, direction == "backward")
    if "variants" in args.parts:
        # Softmax at their shape comes first: rows that nobody else computes are compared with it.
        shapes = {(case.batch, case.length, case.dim) for case in variant_cases(args.quick)}
        cases = [c for c in table_cases(args.quick) if c.kind == "causal" and (c.batch, c.length, c.dim) in shapes]
        found = [result for backward in (False, True) for result in run_cases([*cases, *variant_cases(args.quick)], args, backward)]
        report["variants"] = found
    if "latency" in args.parts:
        report["latency"] = latency(args.device)
    if "overhead" in args.parts:
        report["overhead"] = launch_overhead(args.device)
    if "memory" in args.parts:
        report["memory"] = peak_memory(args.device, args.quick)
    reference = json.loads((_ROOT / "h200_reference.json").read_text())
    nvidia_report.compare(report, reference)
    return report


def main(given: Sequence[str] | None = None) -> int:
    args = arguments(given)
    if args.device != "cpu" and not torch.cuda.is_available():
        print("no NVIDIA GPU: torch.cuda.is_available() is false", file=sys.stderr)
        return 1
    report = measure(args)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(nvidia_report.markdown(report) if args.markdown else nvidia_report.text(report))
    results = [r for part in ("forward", "backward", "variants") for r in report.get(part, [])]
    failed = [f"{r['direction']} {r['case']}" for r in results if "ms" not in r["systems"].get("attn_mlir", {"ms": 0})]
    if failed:
        print(f"attn-mlir fails: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
