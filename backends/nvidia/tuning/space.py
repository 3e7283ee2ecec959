"""The schedules that are worth considering for a kernel: all that an emitter can be asked for, pruned and ranked by the model."""

import itertools
from dataclasses import dataclass, replace

from attn_mlir.backends.fields import Fields
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.backends.nvidia.tuning import table
from attn_mlir.backends.nvidia.tuning.model import cost
from attn_mlir.backends.nvidia.tuning.scans import emitter_of, refined_scan, scan_cost, scan_space, untuned
from attn_mlir.backends.tuning import space as spaces
from attn_mlir.backends.tuning.facts import KernelFacts
from attn_mlir.backends.tuning.space import Candidate, Cost, Workload

_REFINEMENTS: dict[str, dict[str, tuple[int | str, ...]]] = {
    "rows": {
        "flow": ("flat", "each"), "stages": (2, 3), "pin": (0, 1), "ping_pong": (0, 1), "vote": (0, 1), "order": ("static", "dynamic"),
        "group": (4, 8, 16),
    },
    "pairs": {"stages": (1, 2), "reduction_warps": (0, 1), "order": ("tiles", "dynamic"), "group": (1, 512)},
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


SYNCHRONOUS: Fields = {"emitter": "warp"}
"""A kernel of the `warp` dialect for a chip without TMA, whose blocks follow a rule (`blocks.synchronous_blocks`)."""
_AS_MODELLED: Fields = {"emitter": "tilelang", "block_q": 128, "block_kv": 64, "stages": 2, "threads": 256}
"""What the model takes it for."""


def space(facts: KernelFacts, target: NvidiaTarget, emitter: str = "hopper") -> list[Fields]:
    """Every schedule of an emitter for a kernel, whether it fits or not. Empty where there is nothing to choose."""
    if facts.scan is not None:
        return scan_space(facts.scan, target)
    if facts.grid not in ("rows", "pairs"):
        return []
    if emitter == "hopper" and target.bulk_copies and facts.element_bytes == 2:
        return _hopper_rows() if facts.grid == "rows" else _hopper_pairs()
    return _tilelang()


def ranked(facts: KernelFacts, target: NvidiaTarget, work: Workload, emitter: str = "hopper") -> list[Candidate]:
    """The schedules that fit, the fastest by the model first."""
    return spaces.ranked(NvidiaSpace(facts, target, work, emitter))


def best(facts: KernelFacts, target: NvidiaTarget, work: Workload = Workload(), length: int = 0) -> Fields:  # noqa: B008
    """What is used without tuning on at least `length` keys: the measured schedule of the table, else the model's first.

    Scans have a rule, which leaves the emitter open.
    """
    if facts.scan is not None:
        return untuned(facts.scan, target)
    known = table.lookup(facts, target.arch, length)
    if known is not None:
        return known
    for emitter in ("hopper", "tilelang"):
        found = [each for each in ranked(facts, target, work, emitter) if each.choices != SYNCHRONOUS]
        if found:
            return {name: value for name, value in found[0].choices.items() if name != "emitter"}
    return {}


def refined(facts: KernelFacts, target: NvidiaTarget, work: Workload, choices: Fields) -> list[Fields]:
    """A schedule with one further decision changed, each that fits: what is measured after the blocks are known."""
    if facts.scan is not None:
        return refined_scan(facts.scan, target, work, choices)
    if choices.get("emitter", "hopper") != "hopper" or not target.bulk_copies:
        return []
    others = [(name, value) for name, values in _REFINEMENTS.get(facts.grid, {}).items() for value in values if choices.get(name) != value]
    changed: list[Fields] = [{**choices, name: value} for name, value in others]
    return [each for each in changed if not cost(facts, each, target, work).problem]


@dataclass(frozen=True)
class NvidiaSpace:
    """The schedules of one kernel on a GPU; see `tuning.space.Space`. The target need not be a chip that is there."""

    facts: KernelFacts
    target: NvidiaTarget
    work: Workload
    emitter: str = "hopper"

    @property
    def clock_ghz(self) -> float:
        return self.target.clock_ghz

    def candidates(self) -> list[Fields]:
        found = space(self.facts, self.target, self.emitter)
        return [dict(SYNCHRONOUS), *found] if self._has_synchronous() and self.emitter == "hopper" else found

    def cost(self, choices: Fields) -> Cost:
        facts, target, work = self.facts, self.target, self.work
        if choices == SYNCHRONOUS:
            made = cost(facts, _AS_MODELLED, target, work)
            return replace(made, cycles=made.cycles / thresholds.SYNCHRONOUS_SPEED, problem="")
        return cost(facts, choices, target, work) if facts.scan is None else scan_cost(facts.scan, choices, target, work)

    def _has_synchronous(self) -> bool:
        """Whether the `warp` dialect may make the kernel for a chip without TMA, as it does where nothing is chosen."""
        columns = thresholds.SYNCHRONOUS_COLUMNS.get(self.facts.grid, frozenset())
        return not self.target.bulk_copies and self.facts.element_bytes == 2 and {*self.facts.scores, *self.facts.sums} <= columns

    def untuned(self) -> Fields:
        return best(self.facts, self.target, self.work, self.work.keys)

    def whole(self, choices: Fields) -> Fields:
        scan = self.facts.scan
        if self._has_synchronous() and "block_q" in choices:
            return {"emitter": "tilelang", **choices}
        return choices if scan is None else {**choices, "emitter": emitter_of(scan, choices, self.target)}

    def refined(self, choices: Fields) -> list[Fields]:
        return refined(self.facts, self.target, self.work, choices)
