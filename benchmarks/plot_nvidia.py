"""Draws what nvidia_attention.py measured: python benchmarks/plot_nvidia.py results.json [more.json] [--folder docs/figures].

One figure for each direction: TFLOP/s over the length of sequences, a line for each system; full and causal, heads of 64 and 128
columns. Dashed lines are figures of `h200_reference.json`, measured in another run on the same kind of card, for systems that are not
in the results.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
NAMES = {
    "attn_mlir": "attn-mlir",
    "attn_mlir_tilelang": "attn-mlir through TileLang",
    "fa3": "FlashAttention-3",
    "fa4": "FlashAttention-4",
    "cudnn": "cuDNN",
    "flex": "FlexAttention",
    "flash": "FlashAttention-2",
}
_COLORS = {
    "attn_mlir": "#d62728", "attn_mlir_tilelang": "#ff9896", "fa3": "#1f77b4", "fa4": "#17becf", "cudnn": "#2ca02c", "flex": "#9467bd",
    "flash": "#7f7f7f",
}  # fmt: skip
_PANELS = [("full", 64), ("causal", 64), ("full", 128), ("causal", 128)]
_GROUPED = ":"

Points = dict[str, dict[int, float]]


def measured(results: Sequence[dict[str, Any]], kind: str, dim: int) -> Points:
    """TFLOP/s by system and length; results with grouped heads are left out."""
    points: Points = {}
    for result in results:
        if (result["kind"], result["dim"]) != (kind, dim) or result["heads"] != result["kv_heads"]:
            continue
        for name, system in result["systems"].items():
            if "tflops" in system:
                points.setdefault(name, {})[result["length"]] = system["tflops"]
    return points


def published(reference: dict[str, dict[str, float]], kind: str, dim: int) -> Points:
    """The same from the reference's names, such as "causal B4 H16 S4096 D128"."""
    points: Points = {}
    for name, systems in reference.items():
        words = name.split()
        if words[0] != kind or words[-1] != f"D{dim}" or _GROUPED in name:
            continue
        for system, tflops in systems.items():
            points.setdefault(system, {})[int(words[3][1:])] = tflops
    return points


def draw(report: dict[str, Any], reference: dict[str, Any], direction: str, path: Path) -> None:
    """One figure."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "attn-mlir", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, sharex=True, sharey=True, figsize=(9, 6.6))
    shown: dict[str, Any] = {}
    for axis, (kind, dim) in zip(axes.flat, _PANELS, strict=True):
        ours = measured(report[direction], kind, dim)
        for name, points in {**published(reference[direction], kind, dim), **ours}.items():
            if name not in NAMES or (name not in ours and name in ("flex", "flash")):
                continue
            label = NAMES[name] if name in ours else f"{NAMES[name]} (reference run)"
            style: dict[str, Any] = {"marker": "o", "markersize": 4} if name in ours else {"linestyle": "--", "linewidth": 1}
            width = {"linewidth": 2.4} if name == "attn_mlir" else {}
            lengths = sorted(points)
            (line,) = axis.plot(lengths, [points[s] for s in lengths], color=_COLORS[name], **{**style, **width})
            shown.setdefault(label, line)
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths_of(report[direction]) or [1024, 2048, 4096, 8192, 16384])
        axis.set_xticklabels([f"{s // 1024}k" if s >= 1024 else str(s) for s in axis.get_xticks()])
        axis.minorticks_off()
        axis.set_title(f"{kind}, D = {dim}", fontsize=10)
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylim(bottom=0)  # shared, once all lines are there
    for axis in axes[:, 0]:
        axis.set_ylabel("TFLOP/s")
    for axis in axes[1]:
        axis.set_xlabel("length of the sequences")
    machine = report["machine"]
    figure.suptitle(f"{direction.capitalize()} pass on {machine['gpu']}, fp16, 16384 tokens, H x D = 2048", fontsize=11)
    order = sorted(shown, key=lambda label: (not label.startswith("attn-mlir"), label))
    figure.legend([shown[label] for label in order], order, loc="lower center", ncols=4, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def lengths_of(results: Sequence[dict[str, Any]]) -> list[int]:
    """The lengths that were measured with equal heads."""
    return sorted({r["length"] for r in results if r["heads"] == r["kv_heads"]})


def merged(paths: Sequence[Path]) -> dict[str, Any]:
    """One report of several: a later one adds rows and replaces those of the same name."""
    report: dict[str, Any] = {}
    for path in paths:
        read = json.loads(path.read_text())
        for part, value in read.items():
            if isinstance(value, list) and isinstance(report.get(part), list) and part in ("forward", "backward", "variants"):
                by_name = {(r["case"], r["direction"]): r for r in [*report[part], *value]}
                report[part] = list(by_name.values())
            else:
                report[part] = value
    return report


def main(given: Sequence[str] | None = None) -> list[Path]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--folder", type=Path, default=_ROOT / "docs" / "figures")
    parser.add_argument("--format", default="svg", choices=("svg", "png"))
    args = parser.parse_args(given)
    report = merged(args.results)
    reference = json.loads((Path(__file__).resolve().parent / "h200_reference.json").read_text())
    drawn = []
    for direction in ("forward", "backward"):
        if report.get(direction):
            drawn.append(args.folder / f"nvidia_{direction}.{args.format}")
            draw(report, reference, direction, drawn[-1])
    return drawn


if __name__ == "__main__":
    for drawn_path in main():
        print(drawn_path)
