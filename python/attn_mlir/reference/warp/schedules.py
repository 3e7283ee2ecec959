"""Orders in which warpgroups and what lands late take turns."""

import itertools
import random
from collections.abc import Callable, Sequence

from attn_mlir.reference.warp.machine import Choice, Event
from attn_mlir.reference.warp.units import Warpgroup

Schedule = Callable[[], Choice]


def fair() -> Choice:
    """Everyone in turn."""
    turn = itertools.count()
    return lambda ready, events: (ready + events)[next(turn) % (len(ready) + len(events))]


def preferring(name: str, late: bool) -> Choice:
    """The warpgroup of this name ("consumer 1") before all others; copies and stores land `late`, or at once."""

    def choose(ready: list[Warpgroup], events: list[Event]) -> object:
        first = sorted(ready, key=lambda unit: unit.name != name)
        return (first + events[::-1] if late else events + first)[0]

    return choose


def drawn(seed: int) -> Choice:
    """At random."""
    draw = random.Random(seed)
    return lambda ready, events: draw.choice(ready + events)


def schedules(names: Sequence[str], seeds: int = 2) -> dict[str, Schedule]:
    """Schedules for warpgroups of these names: fair, each of them first with copies at once or late, and random ones."""
    found: dict[str, Schedule] = {"fair": fair}
    for name, late in itertools.product(names, (False, True)):
        found[f"{name} first, copies {'late' if late else 'at once'}"] = lambda name=name, late=late: preferring(name, late)
    return found | {f"random {seed}": lambda seed=seed: drawn(seed) for seed in range(seeds)}
