"""What tuning a kernel came to: the schedules that were tried, what was wrong with them, and what is to be told of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from attn_mlir.backends.fields import Fields

_SHOWN = 3
"""Reasons that a message names."""
_REMEDY = "`python -m attn_mlir.doctor` says what is missing on this machine, `attn-tune` prints all schedules with their times"


@dataclass(frozen=True)
class Trial:
    """A candidate that was tried: its choices, milliseconds by the model and by the clock, and what is wrong with it, or ""."""

    choices: Fields
    predicted_ms: float
    ms: float = 0.0
    problem: str = ""


@dataclass
class TuneReport:
    """What tuning one kernel came to. `choices` are empty where nothing ran."""

    kernel: str
    choices: Fields
    ms: float = 0.0
    untuned_ms: float = 0.0
    found: bool = False
    """Whether it was in the tune file, so that nothing was measured."""
    trials: list[Trial] = field(default_factory=list)
    """What was tried, the untuned schedule first."""

    @property
    def failed(self) -> dict[str, int]:
        """Reasons of candidates that were skipped, by how many there were."""
        return dict(Counter(trial.problem for trial in self.trials if trial.problem))

    @property
    def unusable(self) -> bool:
        """Whether the untuned schedule was tried and did not run, so that the kernel may be broken."""
        return bool(self.trials and self.trials[0].problem)

    @property
    def complaint(self) -> str:
        """What the user must know: nothing ran, the untuned schedule did not, or half of all or more did not; else ""."""
        problems = [trial.problem for trial in self.trials if trial.problem]
        count = f"{len(problems)} of {len(self.trials)} schedules failed: {_reasons(problems)}"
        if self.trials and len(problems) == len(self.trials):
            alike = ", all for the same reason, which is hardly the schedules' fault" if len(set(problems)) == 1 else ""
            return f"tuning {self.kernel} found nothing and leaves it untuned: {count}{alike}. {_REMEDY}"
        if self.unusable:
            others = "the others were compared with each other instead"
            return f"tuning {self.kernel}: the untuned schedule does not run ({problems[0]}), {others}. {count}. {_REMEDY}"
        if 2 * len(problems) >= max(len(self.trials), 1):
            return f"tuning {self.kernel} could compare few schedules: {count}. {_REMEDY}"
        return ""

    def __str__(self) -> str:
        told = ", ".join(f"{name}={value}" for name, value in self.choices.items())
        if self.found:
            return f"{self.kernel}: {told} (from the tune file)"
        failed = self.failed
        skipped = f", {sum(failed.values())} skipped ({'; '.join(failed)})" if failed else ""
        result = f"{told}: {self.ms:.3f} ms, untuned {self.untuned_ms:.3f} ms" if told else "nothing ran"
        return f"{self.kernel}: {result}; {len(self.trials)} tried{skipped}"


def _reasons(problems: Sequence[str]) -> str:
    """The most common reasons with their counts."""
    counted = Counter(problems).most_common()
    more = [f"{len(counted) - _SHOWN} further reasons"] if len(counted) > _SHOWN else []
    return "; ".join([*(f"{count} x {reason}" for reason, count in counted[:_SHOWN]), *more])
