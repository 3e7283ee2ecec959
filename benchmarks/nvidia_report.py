"""The results of the NVIDIA benchmark as text: ratios to the best other system, to the published bar and to the floor."""

from collections.abc import Sequence
from typing import Any

from cpu_report import table
from nvidia_cases import WITHOUT_PEERS
from nvidia_systems import NAMES, OURS

Json = dict[str, Any]
_TENSOR_FLOPS, _EXPONENTIALS, _MULTIPROCESSORS, _CLOCK, _BANDWIDTH = 4096.0, 16.0, 132, 1.83e9, 4.8e12
"""Of an H200: 16-bit matrix FLOPs and exponentials a cycle and multiprocessor, multiprocessors, the data sheet's clock, bytes a second."""
_SHORT = {"attn_mlir_tilelang": "TileLang", "flash": "FA2", "flex": "Flex"}


def floor_ms(flops: float, exponentials: float, moved: float) -> float:
    """The least time that a shape can take: the largest of its matrix FLOPs, its exponentials and its bytes."""
    cycles = max(flops / _TENSOR_FLOPS, exponentials / _EXPONENTIALS) / _MULTIPROCESSORS
    return 1e3 * max(cycles / _CLOCK, moved / _BANDWIDTH)


def compare(report: Json, reference: Json) -> None:
    """Adds to each result: "floor_ms", "gap", "ratio" to the best other system measured, "bar", and what the bar was reached by."""
    softmax: dict[str, float] = {}
    for part in ("forward", "backward", "variants"):
        for result in report.get(part, []):
            systems, direction = result["systems"], result["direction"]
            ours = systems.get("attn_mlir", {}).get("tflops")
            result["floor_ms"] = floor_ms(result["flops"], result["exponentials"], result["bytes"])
            if part == "variants" and result["kind"] == "causal" and ours:
                softmax[direction] = ours
            if ours is None:
                continue
            result["gap"] = systems["attn_mlir"]["ms"] / result["floor_ms"]
            peers = {name: s["tflops"] for name, s in systems.items() if name not in OURS and "tflops" in s}
            if result["kind"] in WITHOUT_PEERS and softmax.get(direction):
                result |= {"bar": ours / softmax[direction], "bar_by": "own softmax"}
                continue
            if peers:
                best = max(peers, key=lambda name: peers[name])
                result |= {"ratio": ours / peers[best], "best_peer": best}
            published = reference[direction].get(result["case"]) or reference["variants"].get(result["kind"], {}).get(direction, {})
            _add_bar(result, ours, peers, published)


def _add_bar(result: Json, ours: float, peers: dict[str, float], published: dict[str, float]) -> None:
    """ours / bar. Where the bar's system is not installed: ours / another one here, times what that one has of the bar in the table."""
    if not published:
        return
    missing = {name: value for name, value in published.items() if name not in peers}
    candidates = [(ours / peers[name], name) for name in published if name in peers]
    yardstick = next((name for name in ("cudnn", "flex", "flash") if name in peers and name in published), None)
    if yardstick is not None:
        for name, value in missing.items():
            candidates.append((ours / peers[yardstick] * published[yardstick] / value, f"{name} via {yardstick}"))
    if candidates:
        ratio, by = min(candidates)
        result |= {"bar": ratio, "bar_by": by}


def header(report: Json) -> list[str]:
    """The machine, a line each."""
    machine = report["machine"]
    lines = [f"{machine['date']}, commit {machine['commit']}, {machine['gpu']}, PyTorch {machine['torch']}"]
    if "driver_version" in machine:
        lines.append(
            f"driver {machine['driver_version']}, CUDA {machine['cuda']}, cuDNN {machine['cudnn']}, "
            f"power limit {machine['power.limit']}, clock at most {machine['clocks.max.sm']}"
        )
    if "matmul_tflops" in machine:
        lines.append(f"fp16 matrix product {machine['matmul_tflops']:.0f} TFLOP/s; copy {machine['copy_gbps']:.0f} GB/s read and written")
    return lines


def results_table(results: Sequence[Json]) -> str:
    """TFLOP/s of each system, and the ratios."""
    shown = [name for name in NAMES if any("tflops" in r["systems"].get(name, {}) for r in results)] or ["attn_mlir"]
    columns = ["case", *(_SHORT.get(name, NAMES[name]) for name in shown), "ms", "x best peer", "x bar", "bar is", "floor, ms", "x floor"]
    rows = []
    for r in results:
        cells = [_number(r["systems"].get(name, {}).get("tflops"), ".0f") for name in shown]
        last = [_number(r.get("ratio"), ".2f"), _number(r.get("bar"), ".2f"), r.get("bar_by", "-"), f"{r['floor_ms']:.3f}"]
        rows.append([r["case"], *cells, _number(r["systems"].get("attn_mlir", {}).get("ms"), ".3f"), *last, _number(r.get("gap"), ".2f")])
    return table(rows, columns)


def summary(results: Sequence[Json]) -> str:
    """How many rows reach the bar."""
    bars = sorted(r["bar"] for r in results if "bar" in r)
    if not bars:
        return "no bar"
    return f"x bar: least {bars[0]:.2f}, median {bars[len(bars) // 2]:.2f}; {sum(b >= 1 for b in bars)} of {len(bars)} rows at 1.00 or more"


def notes(results: Sequence[Json]) -> list[str]:
    """Why a system has no time somewhere, each reason once with how many cases it has."""
    found: dict[str, list[str]] = {}
    for r in results:
        for name, system in r["systems"].items():
            if "reason" in system:
                found.setdefault(f"{NAMES[name]}: {system['reason']}", []).append(r["case"])
    return [f"{reason} ({len(cases)} of {len(results)}: {cases[0]}{', ...' if len(cases) > 1 else ''})" for reason, cases in found.items()]


def further(report: Json) -> list[str]:
    """Latency, overhead and memory, a line each."""
    lines = []
    for name, found in report.get("latency", {}).items():
        told = found.get("reason") or f"first forward {found['forward_s']:.2f} s, forward and backward {found['both_s']:.2f} s"
        lines.append(f"compile latency, {name}: {told}")
    if "overhead" in report:
        lines.append("host time of a warm call: " + ", ".join(f"{name} {value:.1f} us" for name, value in report["overhead"].items()))
    for found in report.get("memory", []):
        told = found.get("reason") or f"{found['extra_bytes'] / 1e6:.2f} MB, {found['bytes_per_row']:.1f} bytes per row of q and head"
        lines.append(f"memory beyond inputs and outputs, {'backward' if found['backward'] else 'forward'} {found['case']}: {told}")
    return lines


def sections(report: Json) -> list[tuple[str, list[Json]]]:
    """Titles and results of the tables."""
    variants = report.get("variants", [])
    every = [
        ("Forward, TFLOP/s", report.get("forward", [])),
        ("Backward, TFLOP/s", report.get("backward", [])),
        ("Variants, forward, TFLOP/s", [r for r in variants if r["direction"] == "forward"]),
        ("Variants, backward, TFLOP/s", [r for r in variants if r["direction"] == "backward"]),
    ]
    return [(title, results) for title, results in every if results]


def text(report: Json) -> str:
    """Everything, for the terminal."""
    lines = header(report)
    for title, results in sections(report):
        lines += ["", title, results_table(results), summary(results), *notes(results)]
    return "\n".join([*lines, *([""] if further(report) else []), *further(report)])


def markdown(report: Json) -> str:
    """The section "Measurements" of docs/performance-nvidia.md."""
    parts = ["## Measurements on an H200", "", *(f"- {line}" for line in [*header(report), *further(report)]), ""]
    for title, results in sections(report):
        parts += [f"### {title}", "", results_table(results), "", f"- {summary(results)}", *(f"- {note}" for note in notes(results)), ""]
    return "\n".join(parts).rstrip()


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
