"""The spaces that a tuner searches: schedules of one kernel on one target, what each needs, and about how long it takes.

Every backend gives its kernels such a space (`Space`); everything that ranks, measures, keeps or shows schedules works on it alone.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from attn_mlir.backends.fields import Fields
from attn_mlir.backends.tuning.store import Key


@dataclass(frozen=True)
class Workload:
    """The problem a kernel is to be fast on: queries, keys, and how many programs' worth of heads and batches."""

    queries: int = 4096
    keys: int = 4096
    heads: int = 64


@dataclass(frozen=True)
class Cost:
    """What a schedule needs; `problem` says why it cannot run, "what: why" (as "registers: ..."), or is empty.

    `shared`: bytes of memory near a core, shared memory or L1 cache. `occupancy`: programs at the same time on one core. `limits`: cycles
    that each resource would take alone; the greatest is what binds. `cycles`: about how many the whole kernel takes.
    """

    shared: int
    registers: int
    occupancy: int
    cycles: float
    problem: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def bound(self) -> str:
        """What binds: the resource that alone would take longest, or ""."""
        return max(self.limits, key=lambda name: self.limits[name], default="")


class Space(Protocol):
    """The schedules of one kernel, of one size, on one target; nothing here compiles or runs anything."""

    @property
    def clock_ghz(self) -> float:
        """The target's clock: what makes times of cycles."""
        ...

    def candidates(self) -> Sequence[Fields]:
        """Every schedule, whether it fits or not. Empty where there is nothing to choose."""
        ...

    def cost(self, choices: Fields) -> Cost:
        """What a schedule needs, and how long it takes by the model of the target."""
        ...

    def untuned(self) -> Fields:
        """The schedule without tuning; it may leave to the code generator what that decides."""
        ...

    def whole(self, choices: Fields) -> Fields:
        """The choices with what the code generator takes where they are silent, as far as `candidates` tell it."""
        ...

    def refined(self, choices: Fields) -> Sequence[Fields]:
        """A schedule with one further decision changed, each that fits: what is measured once the blocks are known."""
        ...


@dataclass(frozen=True)
class Candidate:
    """Choices for a schedule, and what the model says of them."""

    choices: Fields
    cost: Cost


@dataclass(frozen=True)
class Tunable:
    """A kernel of a program: its name, its schedules, and the key of its result."""

    name: str
    space: Space
    key: Key


def ranked(space: Space) -> list[Candidate]:
    """The schedules that fit, the fastest by the model first."""
    found = [Candidate(choices, space.cost(choices)) for choices in space.candidates()]
    fitting = [candidate for candidate in found if not candidate.cost.problem]
    return sorted(fitting, key=lambda candidate: (candidate.cost.cycles, candidate.cost.shared, str(candidate.choices)))


def left_out(space: Space) -> Counter[str]:
    """Why schedules are left out (shared memory, registers, ...), by how many there are."""
    problems = [space.cost(choices).problem for choices in space.candidates()]
    return Counter(problem.partition(":")[0] for problem in problems if problem)


def to_measure(space: Space, count: int = 16) -> list[Fields]:
    """What a tuner measures: the untuned schedule first, then the model's best `count`."""
    first = space.untuned()
    others = [candidate.choices for candidate in ranked(space)[:count]]
    if not first:
        return others
    same = space.whole(first)
    return [first, *(choices for choices in others if any(choices.get(name, value) != value for name, value in same.items()))]


def predicted_ms(space: Space, choices: Fields) -> float:
    """Milliseconds by the model."""
    return space.cost(space.whole(choices)).cycles / space.clock_ghz / 1e6


def number(choices: Fields, name: str, default: int) -> int:
    """A choice that is a number. Raises ValueError for a word."""
    value = choices.get(name, default)
    if not isinstance(value, int):
        raise ValueError(f"{name} must be a number, got {value!r}")
    return value
