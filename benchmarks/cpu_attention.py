"""Attention on the CPU, side by side with PyTorch: python benchmarks/cpu_attention.py [--markdown] [--json FILE].

Every result is compared with the formula in float64 before it is timed. Then the systems take turns, round by round,
and medians over the rounds are reported, so that whatever else the machine does meets all of them. With --backward, gradients
are measured instead. The docs' page docs/performance.md says what the columns mean.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cpu_gradients
import torch
from cpu_cases import Case, Problem, System, cases
from cpu_machine import describe, measured_bandwidth, measured_peak, theoretical_peak
from cpu_report import markdown, text

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def error_bound(case: Case, reference: torch.Tensor, eager: torch.Tensor) -> float:
    """The largest error allowed: 1e-5 relative in f32; in bf16 twice (softcap: 3 times) what PyTorch's formula has, and rounding."""
    largest = reference.abs().max().item()
    if case.dtype == torch.float32:
        return 1e-5 * max(largest, 1.0)
    factor = 3 if case.kind == "softcap" else 2
    return factor * error(eager, reference) + torch.finfo(case.dtype).eps / 2 * largest


def error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest absolute difference; inf where the result has a NaN or another shape."""
    if result.shape != reference.shape:
        return float("inf")
    largest = (result.double() - reference).abs().max().item()
    return largest if largest == largest else float("inf")


def prepare(system: System, reference: torch.Tensor, bound: float) -> dict[str, Any]:
    """The first call's time and the error; "reason" where the system fails or is wrong."""
    # What the allocator hands out next holds NaN: a result that was never written cannot look right.
    poison = torch.full_like(reference, torch.nan, dtype=torch.float32)
    del poison
    start = time.perf_counter()
    try:
        result = system()
    except Exception as failure:
        return {"reason": f"fails: {type(failure).__name__}: {str(failure).strip().splitlines()[0][:100] if str(failure) else ''}"}
    found = {"first_s": time.perf_counter() - start, "error": error(result, reference)}
    return found if found["error"] <= bound else {**found, "reason": f"wrong: error {found['error']:.1e}, allowed {bound:.1e}"}


def in_turn(systems: dict[str, System], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Seconds a call: one sample for each system and round, over as many calls as fill `seconds`."""
    calls = {}
    for name, system in systems.items():
        system()
        start = time.perf_counter()
        system()
        calls[name] = max(1, min(10_000, round(seconds / max(time.perf_counter() - start, 1e-7))))
    samples: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, system in systems.items():
            system()  # wakes this system's threads, while those of the one before go to sleep
            start = time.perf_counter()
            for _ in range(calls[name]):
                system()
            samples[name].append((time.perf_counter() - start) / calls[name])
    return samples


def candidates(problem: Problem, flex: bool) -> dict[str, tuple[str, System] | str]:
    """How each system is asked, and the call; or why it is not."""
    made: dict[str, tuple[str, System] | str] = {"attn_mlir": ("native", problem.ours()), "sdpa": problem.sdpa()}
    compiled = problem.flex() if flex else "left out of this run"
    made["flex"] = compiled if isinstance(compiled, str) else ("native", compiled)
    if isinstance(made["sdpa"], str):
        made["eager"] = ("dense", lambda: problem.eager(problem.case.dtype))
    return made


def run_case(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """Checks and times one case."""
    problem = Problem(case)
    reference = problem.eager(torch.float64)
    bound = error_bound(case, reference, problem.eager(case.dtype))
    found: dict[str, dict[str, Any]] = {}
    systems: dict[str, System] = {}
    for name, candidate in candidates(problem, args.flex).items():
        if isinstance(candidate, str):
            found[name] = {"reason": candidate}
            continue
        how, system = candidate
        found[name] = {"how": how, **prepare(system, reference, bound)}
        if "reason" not in found[name]:
            systems[name] = system
    for name, samples in in_turn(systems, args.rounds, args.seconds).items():
        found[name] |= {"ms": 1e3 * statistics.median(samples), "samples_ms": [1e3 * s for s in samples]}
    read = sum(t.numel() * t.element_size() for t in (problem.q, problem.k, problem.v))
    described = {"case": case.name, "group": case.group, "element": case.element, "flops": problem.flops, "bytes": read}
    return {**described, "bound": bound, "systems": found}


def compare(result: dict[str, Any], limits: dict[str, Any]) -> None:
    """Adds the floors, and where attn-mlir stands between them and the fastest other system."""
    peak = limits[result["element"]]
    memory = 1e-6 * result["bytes"] / limits["bandwidth"]
    result["floor_ms"] = max(1e-6 * result["flops"] / peak["measured_gflops"], memory)
    if peak["theoretical_gflops"]:
        result["theoretical_floor_ms"] = max(1e-6 * result["flops"] / peak["theoretical_gflops"], memory)
    ours = result["systems"]["attn_mlir"].get("ms")
    peers = [system["ms"] for name, system in result["systems"].items() if name != "attn_mlir" and "ms" in system]
    if ours is not None:
        result |= {"gflops": 1e-6 * result["flops"] / ours, "gap": ours / result["floor_ms"], "ratio": min(peers) / ours if peers else None}


def measured_limits(threads: int, seconds: float) -> dict[str, Any]:
    """What the machine can do at most."""
    limits: dict[str, Any] = {"bandwidth": measured_bandwidth(seconds)}
    for element, dtype in DTYPES.items():
        limits[element] = {"measured_gflops": measured_peak(dtype, seconds), "theoretical_gflops": theoretical_peak(dtype, threads)}
    return limits


def measure_again(limits: dict[str, Any], threads: int, seconds: float) -> None:
    """The limits once more, for the better of two moments."""
    again = measured_limits(threads, seconds)
    limits["bandwidth"] = max(limits["bandwidth"], again["bandwidth"])
    for element in DTYPES:
        limits[element]["measured_gflops"] = max(limits[element]["measured_gflops"], again[element]["measured_gflops"])


def call_overhead(args: argparse.Namespace) -> dict[str, float]:
    """Microseconds of a warm call with next to nothing to compute."""
    problem = Problem(Case("overhead", "full", 1, 1, 1, 1, 1, 16, torch.float32))
    systems = {name: made[1] for name, made in candidates(problem, args.flex).items() if not isinstance(made, str)}
    for name in list(systems):
        try:
            systems[name]()
        except Exception:
            del systems[name]  # the cases say why
    return {name: 1e6 * statistics.median(samples) for name, samples in in_turn(systems, args.rounds, args.seconds).items()}


def common_arguments(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """The options that benchmarks on a CPU have in common."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small cases only: tests the benchmark itself")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases with TEXT in their name, such as 'causal' or 'gla'")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=float, default=0.05, help="how long one sample takes at least")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, each sample too, to FILE")
    parser.add_argument("--markdown", action="store_true", help="print the section for docs/performance.md")
    return parser


def arguments() -> argparse.Namespace:
    parser = common_arguments(__doc__, rounds=9)
    parser.add_argument("--no-flex", dest="flex", action="store_false", help="leave FlexAttention out, which takes long to compile")
    parser.add_argument("--backward", action="store_true", help="gradients instead of results: forward and backward, and backward alone")
    return parser.parse_args()


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The whole report."""
    machine = describe(args.threads)
    seconds = 0.05 if args.quick else 1.0
    limits = measured_limits(args.threads, seconds)
    overhead = call_overhead(args)
    results = []
    for case in cases(args.quick):
        if args.only in case.name:
            result = run_case(case, args)
            results.append(result)
            systems = result["systems"].items()
            told = [f"{name} {found['ms']:.3f} ms" if "ms" in found else f"{name} {found['reason']}" for name, found in systems]
            print(f"{case.name}: {'; '.join(told)}", file=sys.stderr, flush=True)
    measure_again(limits, args.threads, seconds)
    for result in results:
        compare(result, limits)
    return {"machine": machine, "limits": limits, "call_us": overhead, "results": results}


def measure_gradients(args: argparse.Namespace) -> dict[str, Any]:
    """The report of --backward."""
    machine = describe(args.threads)
    seconds = 0.05 if args.quick else 1.0
    limits = measured_limits(args.threads, seconds)
    reason = cpu_gradients.flex_reason() if args.flex else "left out of this run"
    results = cpu_gradients.measure(args, in_turn)
    measure_again(limits, args.threads, seconds)
    for result in results:
        cpu_gradients.compare(result, limits)
    return {"machine": machine, "limits": limits, "call_us": {}, "results": [], "gradients": results, "flex_reason": reason}


def main() -> int:
    args = arguments()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as fresh:
        # Empty caches, so that first calls compile.
        os.environ["ATTN_MLIR_CACHE"] = str(Path(fresh) / "attn-mlir")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(fresh) / "inductor")
        report = measure_gradients(args) if args.backward else measure(args)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(markdown(report) if args.markdown else text(report))
    failed = [r["case"] for r in [*report["results"], *report.get("gradients", [])] if "ms" not in r["systems"]["attn_mlir"]]
    if failed:
        print(f"attn-mlir fails: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
