"""The schedules that are worth considering for a kernel: all that an emitter can be asked for, pruned and ranked by the model."""

import itertools
from dataclasses import dataclass

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.backends.nvidia.tuning import table
from attn_mlir.backends.nvidia.tuning.facts import KernelFacts
from attn_mlir.backends.nvidia.tuning.model import Cost, Work, cost
from attn_mlir.backends.nvidia.tuning.sweeps import emitter_of, refined_sweep, sweep_cost, sweep_space, untuned


@dataclass(frozen=True)
class Candidate:
    """Choices for a schedule, and what the model says of them."""

    choices: Fields
    cost: Cost


_REFINEMENTS: dict[str, dict[str, tuple[int | str, ...]]] = {
    "rows": {
        "flow": ("flat", "each"), "stages": (2, 3), "pin": (0, 1), "turns": (0, 1), "vote": (0, 1), "order": ("static", "dynamic"),
        "group": (4, 8, 16),
    },
    "pairs": {"stages": (1, 2), "adders": (0, 1), "order": ("tiles", "dynamic"), "group": (1, 512)},
}  # fmt: skip
"""What a schedule of the emitter "hopper" can be changed in, one at a time, once its blocks are known."""


def _hopper_rows() -> list[Fields]:
    sizes = itertools.product((64, 128, 192, 256), (48, 64, 80, 96, 112, 128, 144, 160, 176, 192), (2, 3))
    return [{"emitter": "hopper", "block_q": block_q, "block_kv": block_kv, "stages": stages} for block_q, block_kv, stages in sizes]


def _hopper_pairs() -> list[Fields]:
    # Sums over the keys are products with the queries as rows, of which a warpgroup has 64.
    sizes = itertools.product((64, 128, 192), (64, 128), (1, 2))
    return [{"emitter": "hopper", "block_q": block_q, "block_kv": block_kv, "stages": stages} for block_q, block_kv, stages in sizes]


def _tilelang() -> list[Fields]:
    sizes = itertools.product((64, 128), (32, 64, 128), (1, 2, 3), (128, 256))
    return [
        {"emitter": "tilelang", "block_q": block_q, "block_kv": block_kv, "stages": stages, "threads": threads}
        for block_q, block_kv, stages, threads in sizes
        if block_q * 128 >= 64 * threads
    ]


def space(facts: KernelFacts, target: NvidiaTarget, emitter: str = "hopper") -> list[Fields]:
    """Every schedule of an emitter for a kernel, whether it fits or not. Empty where there is nothing to choose."""
    if facts.sweep is not None:
        return sweep_space(facts.sweep, target)
    if facts.grid not in ("rows", "pairs"):
        return []
    if emitter == "hopper" and target.bulk_copies and facts.element_bytes == 2:
        return _hopper_rows() if facts.grid == "rows" else _hopper_pairs()
    return _tilelang()


def ranked(facts: KernelFacts, target: NvidiaTarget, work: Work, emitter: str = "hopper") -> list[Candidate]:
    """The schedules that fit, the fastest by the model first."""
    found = [Candidate(choices, _cost(facts, choices, target, work)) for choices in space(facts, target, emitter)]
    fitting = [candidate for candidate in found if not candidate.cost.problem]
    return sorted(fitting, key=lambda candidate: (candidate.cost.cycles, candidate.cost.shared, str(candidate.choices)))


def best(facts: KernelFacts, target: NvidiaTarget, work: Work = Work(), length: int = 0) -> Fields:  # noqa: B008
    """What is used without tuning on at least `length` keys: the measured schedule of the table, else the model's first.

    Sweeps have a rule, which leaves the emitter open.
    """
    if facts.sweep is not None:
        return untuned(facts.sweep, target)
    known = table.lookup(facts, target.arch, length)
    if known is not None:
        return known
    for emitter in ("hopper", "tilelang"):
        found = ranked(facts, target, work, emitter)
        if found:
            return {name: value for name, value in found[0].choices.items() if name != "emitter"}
    return {}


def refined(facts: KernelFacts, target: NvidiaTarget, work: Work, choices: Fields) -> list[Fields]:
    """A schedule with one further decision changed, each that fits: what is measured after the blocks are known."""
    if facts.sweep is not None:
        return refined_sweep(facts.sweep, target, work, choices)
    if choices.get("emitter", "hopper") != "hopper" or not target.bulk_copies:
        return []
    others = [(name, value) for name, values in _REFINEMENTS.get(facts.grid, {}).items() for value in values if choices.get(name) != value]
    changed: list[Fields] = [{**choices, name: value} for name, value in others]
    return [each for each in changed if not cost(facts, each, target, work).problem]


def to_measure(facts: KernelFacts, target: NvidiaTarget, work: Work, count: int = 16, emitter: str = "hopper") -> list[Fields]:
    """What a tuner measures: the untuned schedule first, then the model's best `count`."""
    first = best(facts, target, work, work.keys)
    others = [candidate.choices for candidate in ranked(facts, target, work, emitter)[:count]]
    if not first:
        return others
    same = first if facts.sweep is None else {**first, "emitter": emitter_of(facts.sweep, first, target)}
    return [first, *(choices for choices in others if any(choices.get(name, value) != value for name, value in same.items()))]


def _cost(facts: KernelFacts, choices: Fields, target: NvidiaTarget, work: Work) -> Cost:
    return cost(facts, choices, target, work) if facts.sweep is None else sweep_cost(facts.sweep, choices, target, work)
