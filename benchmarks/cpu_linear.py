"""Linear attention on the CPU, side by side with the chunked formula in eager PyTorch: python benchmarks/cpu_linear.py [--markdown].

Results and gradients are compared with the same formula in float64 before anything is timed. Then both take turns, round by round, and
medians over the rounds are reported. The formula runs with the chunk that is fastest for it in each case. Where there are fewer heads than
threads, so that sequences are cut into segments, whole sequences (segment_size=0) take turns, too.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from cpu_attention import common_arguments, in_turn
from cpu_linear_cases import Case, cases, chunked
from cpu_machine import describe, measured_bandwidth, measured_peak
from cpu_report import table

from attn_mlir import linear_attention

MEASURES = {"forward": "forward", "backward": "backward", "both": "forward + backward"}
COLUMNS = ("case", "measure", "attn-mlir, ms", "eager, ms", "x eager", "GFLOP/s", "floor, ms", "x floor", "whole, ms")
_CHUNKS = (16, 32, 64, 128)
_BOUND = 2e-5


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest number; inf where there is a NaN."""
    largest = ((got.double() - wanted).abs().max() / wanted.abs().max()).item()
    return largest if largest == largest else float("inf")


def gradients(run: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], upstream: torch.Tensor) -> list[torch.Tensor]:
    """The output, and the gradients of all inputs."""
    leaves = [x.detach().to(upstream.dtype).requires_grad_() for x in inputs]
    o = run(*leaves)
    return [o.detach(), *torch.autograd.grad(o, leaves, upstream)]


def calls(run: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], upstream: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """What is timed, by measure."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    kept = run(*leaves)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return run(*inputs)

    return {
        "forward": forward,
        "backward": lambda: torch.autograd.grad(kept, leaves, upstream, retain_graph=True),
        "both": lambda: torch.autograd.grad(run(*leaves), leaves, upstream),
    }


def fastest_chunk(case: Case, inputs: Sequence[torch.Tensor], upstream: torch.Tensor) -> int:
    """The chunk with which the formula takes the least time, forward and backward."""
    best, found = float("inf"), 0
    for size in [size for size in _CHUNKS if case.length % size == 0 and size <= case.longest_eager]:
        call = calls(lambda *x, size=size: chunked(*x, chunk=size), inputs, upstream)["both"]
        for _ in range(2):
            start = time.perf_counter()
            call()
            taken = time.perf_counter() - start
            if taken < best:
                best, found = taken, size
    return found


def run_case(case: Case, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Checks and times one case: a result for each measure."""
    inputs = case.inputs()
    upstream = torch.randn(case.output_shape, generator=torch.Generator().manual_seed(1))
    wanted = gradients(lambda *x: chunked(*x, chunk=min(case.length, 16)), inputs, upstream.double())
    got = gradients(linear_attention, inputs, upstream)
    errors = [error(g, w) for g, w in zip(got, wanted, strict=True)]
    if max(errors) > _BOUND:
        return [{"case": case.name, "measure": m, "reason": f"wrong: errors {', '.join(f'{e:.1e}' for e in errors)}"} for m in MEASURES]
    ours, results = calls(linear_attention, inputs, upstream), []
    chunk = fastest_chunk(case, inputs, upstream)
    ways = {"attn_mlir": ours, "eager": calls(lambda *x: chunked(*x, chunk=chunk), inputs, upstream)}
    if case.heads < torch.get_num_threads():
        ways["whole"] = calls(lambda *x: linear_attention(*x, segment_size=0), inputs, upstream)
    for measure in MEASURES:
        samples = in_turn({name: way[measure] for name, way in ways.items()}, args.rounds, args.seconds)
        times = {name: 1e3 * statistics.median(values) for name, values in samples.items()}
        results.append({
            "case": case.name, "measure": measure, "chunk": chunk, "errors": errors, "ms": times, "flops": case.flops(measure),
            "bytes": case.bytes(measure), "samples_ms": {name: [1e3 * s for s in values] for name, values in samples.items()},
        })  # fmt: skip
        print(f"{case.name}, {MEASURES[measure]}: {times['attn_mlir']:.2f} ms, eager {times['eager']:.2f} ms", file=sys.stderr, flush=True)
    return results


def row(result: dict[str, Any], peak: float, bandwidth: float) -> list[str]:
    """The cells of one line."""
    if "reason" in result:
        return [result["case"], MEASURES[result["measure"]], result["reason"], *["-"] * 6]
    ours, eager = result["ms"]["attn_mlir"], result["ms"]["eager"]
    floor = max(1e-6 * result["flops"] / peak, 1e-6 * result["bytes"] / bandwidth)
    numbers = [f"{ours:.2f}", f"{eager:.2f} ({result['chunk']})", f"{eager / ours:.2f}", f"{1e-6 * result['flops'] / ours:.0f}"]
    whole = f"{result['ms']['whole']:.2f}" if "whole" in result["ms"] else "-"
    return [result["case"], MEASURES[result["measure"]], *numbers, f"{floor:.2f}", f"{ours / floor:.2f}", whole]


def main() -> int:
    args = common_arguments(__doc__, rounds=7).parse_args()
    torch.set_num_threads(args.threads)
    seconds = 0.02 if args.quick else 0.5
    machine = describe(args.threads)
    peak, bandwidth = measured_peak(torch.float32, seconds), measured_bandwidth(seconds)
    with tempfile.TemporaryDirectory() as fresh:
        os.environ["ATTN_MLIR_CACHE"] = fresh
        results = [result for case in cases(args.quick) if args.only in case.name for result in run_case(case, args)]
    peak, bandwidth = max(peak, measured_peak(torch.float32, seconds)), max(bandwidth, measured_bandwidth(seconds))
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "peak": peak, "bandwidth": bandwidth, "results": results}, indent=1) + "\n")
    lines = [
        f"{machine['date']}, commit {machine['commit']}, PyTorch {machine['torch']}, Python {machine['python']}",
        f"{machine['cpu']} ({machine['simd']}), {machine['threads']} threads, load {machine['load']} before the run",
        f"peak f32: {peak:.0f} GFLOP/s by PyTorch's matrix product; memory: {bandwidth:.0f} GB/s read",
    ]
    cells = table([row(result, peak, bandwidth) for result in results], COLUMNS)
    print("\n".join(["## Linear attention", "", *(f"- {line}" for line in lines), "", cells] if args.markdown else [*lines, "", cells]))
    return 1 if any("reason" in result for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
