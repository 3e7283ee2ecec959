"""The results of the CPU benchmark as text: for the terminal, and as the section of docs/performance.md."""

from collections.abc import Sequence
from typing import Any

import cpu_gradients

SYSTEMS = {"attn_mlir": "attn-mlir", "sdpa": "SDPA", "flex": "FlexAttention", "eager": "eager"}
GROUPS = {
    "main": "Softmax, causal and full",
    "custom": "Custom attention",
    "short": "Short sequences",
    "decode": "Decoding, one query",
}
_MEASURES = ("GFLOP/s", "x best peer", "floor, ms", "x floor", "first call, s", "Flex' first, s")
COLUMNS = ("case", *(f"{name}, ms" for name in SYSTEMS.values()), *_MEASURES)


def row(result: dict[str, Any]) -> list[str]:
    """The cells of one case."""
    systems = result["systems"]
    first = [f"{systems[name]['first_s']:.2f}" if "first_s" in systems.get(name, {}) else "-" for name in ("attn_mlir", "flex")]
    return [
        result["case"],
        *(_time(systems.get(name, {})) for name in SYSTEMS),
        _number(result.get("gflops"), ".0f"),
        _number(result.get("ratio"), ".2f"),
        _number(result["floor_ms"], ".3f"),
        _number(result.get("gap"), ".2f"),
        *first,
    ]


def notes(results: list[dict[str, Any]]) -> list[str]:
    """Why a system has no time somewhere, each reason once with its cases."""
    found: dict[str, list[str]] = {}
    for result in results:
        for name, system in result["systems"].items():
            if "reason" in system:
                found.setdefault(f"{SYSTEMS[name]}: {system['reason']}", []).append(result["case"].split()[0])
    return [f"{reason} ({', '.join(dict.fromkeys(cases))})" for reason, cases in found.items()]


def table(rows: list[list[str]], columns: Sequence[str] = COLUMNS) -> str:
    """A Markdown table whose columns line up."""
    every = [list(columns), *rows]
    widths = [max(len(cells[i]) for cells in every) for i in range(len(columns))]
    lines = [_line(cells, widths) for cells in every]
    rule = "|".join(["", *(("-" * (w + 2)) if i == 0 else ("-" * (w + 1) + ":") for i, w in enumerate(widths)), ""])
    return "\n".join([lines[0], rule, *lines[1:]])


def header(report: dict[str, Any]) -> list[str]:
    """The machine and its limits, a line each."""
    machine, limits = report["machine"], report["limits"]
    lines = [
        f"{machine['date']}, commit {machine['commit']}, PyTorch {machine['torch']}, Python {machine['python']}",
        f"{machine['cpu']} ({machine['simd']}), {machine['threads']} threads, load {machine['load']} before the run",
    ]
    for element in ("f32", "bf16"):
        theory = limits[element]["theoretical_gflops"]
        stated = f"; its multiply-add units, at the clock it reports: {theory:.0f}" if theory else ""
        lines.append(f"peak {element}: {limits[element]['measured_gflops']:.0f} GFLOP/s by PyTorch's matrix product{stated}")
    lines.append(f"memory: {limits['bandwidth']:.0f} GB/s read")
    if not report["call_us"]:
        return lines
    calls = ", ".join(f"{SYSTEMS[name]} {value:.0f}" for name, value in report["call_us"].items())
    lines.append(f"one warm call of a problem of one query and one key, us: {calls}")
    return lines


def text(report: dict[str, Any]) -> str:
    """Everything, for the terminal."""
    if "gradients" in report:
        return "\n".join([*header(report), "", gradients(report), *cpu_gradients.notes(report)])
    return "\n".join([*header(report), "", table([row(r) for r in report["results"]]), *notes(report["results"])])


def markdown(report: dict[str, Any]) -> str:
    """The section "Measurements" of docs/performance.md; with --backward, its section "Gradients"."""
    if "gradients" in report:
        lines = ["## Gradients", "", *(f"- {line}" for line in header(report)), "", gradients(report), ""]
        return "\n".join([*lines, *(f"- {note}" for note in cpu_gradients.notes(report))])
    parts = ["## Measurements", "", *(f"- {line}" for line in header(report)), ""]
    for group, title in GROUPS.items():
        results = [r for r in report["results"] if r["group"] == group]
        if results:
            parts += [f"### {title}", "", table([row(r) for r in results]), ""]
            parts += [*(f"- {note}" for note in notes(results)), ""] if notes(results) else []
    return "\n".join(parts).rstrip()


def gradients(report: dict[str, Any]) -> str:
    """The table of --backward."""
    return table([cpu_gradients.row(r) for r in report["gradients"]], cpu_gradients.COLUMNS)


def _line(cells: list[str], widths: list[int]) -> str:
    padded = [cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))]
    return "| " + " | ".join(padded) + " |"


def _time(system: dict[str, Any]) -> str:
    if "ms" not in system:
        return "-"
    return f"{system['ms']:.3f}" + (" (mask)" if system.get("how") == "dense mask" else "")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
