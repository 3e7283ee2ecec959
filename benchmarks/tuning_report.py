"""The report of tuning_model.py: rows of kernels, the table, the bars, and the files."""

import argparse
import json
import math
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tuning_ahead import NO_TIME

from attn_mlir.backends.tuning.ranking import best_within, spearman
from attn_mlir.backends.tuning.report import Trial
from attn_mlir.tools.plot import scatter

_TOP, _GAIN = 1.02, 1.03
"""The bars: the best of the model's first five over the best of all, and the default over the tuned schedule."""


def row_of(label: str, there: int, trials: list[Trial], refined: int, decided: Any, seconds: float) -> dict[str, Any]:
    """What one kernel comes to; the first trial is the untuned schedule, the last are single changes of the best blocks."""
    tried = [trial for trial in trials if trial.problem != NO_TIME]
    measured = [trial for trial in trials[1 : len(trials) - refined] if not trial.problem]
    reasons = dict(Counter(trial.problem for trial in tried if trial.problem).most_common())
    result: dict[str, Any] = {"case": label, "measured": len(measured), "schedules": there, "failed": sum(reasons.values())}
    result |= {"reasons": reasons, "seconds": seconds, "refined": refined}
    result["trials"] = [{"choices": t.choices, "predicted_ms": t.predicted_ms, "ms": t.ms, "problem": t.problem} for t in trials]
    if len(measured) < 2:
        return {**result, "reason": f"fewer than two schedules ran: {next(iter(reasons), NO_TIME)}"}
    predicted, times = [t.predicted_ms for t in measured], [t.ms for t in measured]
    result |= {"spearman": spearman(predicted, times), "top5": best_within(predicted, times, 5)}
    result |= {"best": min(measured, key=lambda t: t.ms).choices, "untuned_ms": trials[0].ms}
    if decided is not None and decided.choices:
        gain = decided.untuned_ms / decided.ms if decided.untuned_ms else math.nan
        result |= {"tuned": decided.choices, "untuned_ms": decided.untuned_ms, "gain": gain}
    return result


_HEAD = f"{'kernel':<68} {'n':>4} {'of':>4} {'failed':>6} {'Spearman':>9} {'top 5':>7} {'default':>9} {'default/tuned':>13}"


def told(result: dict[str, Any]) -> str:
    """A line of the table."""
    count = f"{result['case']:<68} {result['measured']:>4} {result['schedules']:>4} {result['failed']:>6}"
    if "reason" in result:
        return f"{count} {result['reason']}"
    gain = f"{result['gain']:>13.3f}" if "gain" in result else f"{'(cut)':>13}"
    return f"{count} {result['spearman']:>9.2f} {result['top5']:>7.3f} {result['untuned_ms']:>9.3f} {gain}"


def write(args: argparse.Namespace, results: list[dict[str, Any]], left: Iterable[str]) -> None:
    """The files, as far as things are; each is there whole or not at all."""
    if args.json:
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
        facts = {"device": args.device, "name": name, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
        _replace(args.json, json.dumps({**facts, "results": results, "left": [*left]}, indent=1) + "\n")
    if args.plot:
        points = {r["case"]: [(t["predicted_ms"], t["ms"]) for t in r["trials"] if not t["problem"]] for r in results}
        _replace(args.plot, scatter(points, "predicted ms", "measured ms"))


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.replace(path)


def summary(results: list[dict[str, Any]], left: Iterable[str]) -> int:
    """Prints the table, and under it the bars. Returns the exit code."""
    print(_HEAD)
    for result in results:
        print(told(result))
    good = [r for r in results if "spearman" in r]
    if good:
        correlations, gains = [r["spearman"] for r in good], [r["gain"] for r in good if "gain" in r]
        close, kept = sum(r["top5"] <= _TOP for r in good), sum(gain <= _GAIN for gain in gains)
        print(
            f"{len(good)} kernels: rank correlation {min(correlations):.2f} at least, {sum(correlations) / len(good):.2f} on average; "
            f"the model's top 5 are within 2 % of the best in {close} of {len(good)}; "
            f"default / tuned {max(gains, default=math.nan):.3f} at most, within {_GAIN} in {kept} of {len(gains)}"
        )
    for result in results:
        for reason, count in result["reasons"].items():
            print(f"{result['case']}: {count} failed: {reason}")
    for label in left:
        print(f"not measured to the end: {label}", file=sys.stderr)
    return 0 if good or not results else 1
