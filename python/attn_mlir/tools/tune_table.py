"""What attn-tune measures and prints: a table of the schedules of one kernel."""

import warnings

from attn_mlir.backends.fields import Fields
from attn_mlir.backends.tuning.program import Tuner, tune_module
from attn_mlir.backends.tuning.ranking import spearman
from attn_mlir.backends.tuning.report import TuneReport
from attn_mlir.backends.tuning.space import Tunable, left_out, ranked
from attn_mlir.tools.problems import TuneProblem, columns_of


def measure(tuner: Tuner, problem: TuneProblem, function: str, path: str, count: int) -> list[tuple[Tunable, TuneReport | None]]:
    """The kernels of a function, and what tuning each came to; None where there was nothing to choose."""
    job = problem.job(function)
    kernels = tuner.kernels(problem.text, job, problem.shapes(columns_of(problem.text)), "")[1]
    inputs = problem.inputs(function)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="tuning ")  # the table says it
        _, reports = tune_module(tuner, problem.text, job, inputs, path=path, count=count, quiet=False)
    by_name = {report.kernel: report for report in reports}
    return [(kernel, by_name.get(kernel.name)) for kernel in kernels]


def ranking(kernel: Tunable, most: int, report: TuneReport | None = None) -> str:
    """The table of one kernel: schedules by the model's rank, and, with a report that measured, by the clock."""
    space = kernel.space
    order = ranked(space)
    lines = [f"{kernel.name}: {len(order)} of {len(space.candidates())} schedules fit"]
    reasons = left_out(space)
    if reasons:
        lines.append("left out: " + ", ".join(f"{count} {reason}" for reason, count in reasons.most_common()))
    if report is not None and report.found:
        lines.append(f"from the tune file: {told(report.choices)}")
        report = None
    if report is not None and report.trials:
        return "\n".join([*lines, *_measured(kernel, report, most), ""])
    lines.append(f"{'rank':>4} {'predicted ms':>12}  {'bound by':<14} candidate")
    untuned = space.whole(space.untuned())
    for rank, candidate in enumerate(order[:most], 1):
        ms = candidate.cost.cycles / space.clock_ghz / 1e6
        mark = " (untuned)" if _same(candidate.choices, untuned) else ""
        lines.append(f"{rank:>4} {ms:>12.4f}  {candidate.cost.bound:<14} {told(candidate.choices)}{mark}")
    if len(order) > most:
        lines.append(f"     ... {len(order) - most} more")
    return "\n".join([*lines, ""])


def _measured(kernel: Tunable, report: TuneReport, most: int) -> list[str]:
    """The lines of what was measured, the fastest first, and how well the model ranked it."""
    space = kernel.space
    ran = [trial for trial in report.trials if not trial.problem]
    places = {id(trial): place for place, trial in enumerate(sorted(ran, key=lambda trial: trial.predicted_ms), 1)}
    lines = [f"{'rank':>4} {'measured ms':>12} {'predicted ms':>12} {'model rank':>10}  {'bound by':<14} candidate"]
    for rank, trial in enumerate(sorted(ran, key=lambda trial: trial.ms)[:most], 1):
        bound = space.cost(space.whole(trial.choices)).bound
        mark = " (untuned)" if trial is report.trials[0] else ""
        place = places[id(trial)]
        lines.append(f"{rank:>4} {trial.ms:>12.4f} {trial.predicted_ms:>12.4f} {place:>10}  {bound:<14} {told(trial.choices)}{mark}")
    for reason, count in report.failed.items():
        lines.append(f"skipped: {count}: {reason}")
    if len(ran) > 1:
        correlation = spearman([trial.predicted_ms for trial in ran], [trial.ms for trial in ran])
        lines.append(f"rank correlation (Spearman): {correlation:.2f} over {len(ran)}")
    if report.complaint:
        lines.append(f"warning: {report.complaint}")
    if not report.choices:
        return lines
    ratio = f", {report.ms / report.untuned_ms:.3f} of the untuned {report.untuned_ms:.4f} ms" if report.untuned_ms else ""
    return [*lines, f"chosen: {told(report.choices)}: {report.ms:.4f} ms{ratio}"]


def told(choices: Fields) -> str:
    """Choices in words."""
    return " ".join(f"{name}={value}" for name, value in choices.items())


def _same(choices: Fields, other: Fields) -> bool:
    return all(choices.get(name, value) == value for name, value in other.items())
