"""Schedules that were measured best for common shapes: used where nothing was tuned.

The first entry that fits gives the choices; where none does, the model's best candidate is taken (`space.best`). Every number here
comes from a run of `benchmarks/nvidia_attention.py` or of the tuner on an H200; see docs/performance.md.
"""

from dataclasses import dataclass
from math import inf

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia.thresholds import BOTH_SUMS
from attn_mlir.backends.nvidia.tuning.facts import KernelFacts

_NONE = -1


@dataclass(frozen=True)
class TunedChoice:
    """Choices for the kernels of a `grid` with at most `scores` products of queries and keys, and heads of at most `columns` columns.

    `masked`: with or without skipped blocks; None: both. `instructions`: at most so many for a pair, as the facts count them. `length`:
    from so many keys on. `sums`: at most so many sums that stay in registers, as those of several outputs do. `spread`: the widest sum that
    is added to memory has so many columns, or there is none; 0: of any width; `_NONE`: there is none. `together`: at most so many columns
    of all sums that stay in registers.
    """

    grid: str
    scores: int
    columns: int
    masked: bool | None
    choices: Fields
    arch: str = "sm_90a"
    instructions: float = inf
    length: int = 0
    sums: float = inf
    spread: int = 0
    together: float = inf

    def fits(self, facts: KernelFacts, arch: str) -> bool:
        """Whether the choices are for such a kernel."""
        wide = max((*facts.scores, *facts.sums, *facts.spread), default=0)
        return (
            (self.arch, self.grid) == (arch, facts.grid)
            and len(facts.scores) <= self.scores
            and wide <= self.columns
            and facts.element_bytes == 2
            and self.masked in (None, facts.masked)
            and facts.instructions <= self.instructions
            and len(facts.sums) <= self.sums
            and sum(facts.sums) <= self.together
            and (not self.spread or max(facts.spread, default=_NONE) in (self.spread, _NONE))
        )


_ANY = 99
_LONG: Fields = {"block_q": 128, "block_kv": 192, "group": 4, "consumer_registers": 240, "producer_registers": 24}

TABLE = (
    # Forward, softmax and its like.
    TunedChoice("rows", 1, 64, None, {"block_q": 192, "block_kv": 128}, sums=1),
    TunedChoice("rows", 1, 128, False, _LONG, instructions=5, length=8192, sums=1),
    TunedChoice("rows", 1, 128, None, {"block_q": 128, "block_kv": 128}, sums=1),
    TunedChoice("rows", 1, 192, None, {"block_q": 128, "block_kv": 80}, sums=1),
    TunedChoice("rows", 1, 256, None, {"block_q": 128, "block_kv": 64}, sums=1),
    # Tangents, passes over the keys of second derivatives, and several outputs (these not measured).
    TunedChoice("rows", _ANY, 128, None, {"block_q": 128, "block_kv": 64}),
    # dq of wide heads (`attn-rows-of-pairs`): two stages of keys beside the queries' two tiles.
    TunedChoice("rows", 2, 192, None, {"block_q": 128, "block_kv": 64}, sums=1),
    TunedChoice("rows", 2, 256, None, {"block_q": 128, "block_kv": 48}, sums=1),
    TunedChoice("rows", _ANY, 256, None, {"block_q": 64, "block_kv": 64}),
    # Backward.
    TunedChoice("pairs", 2, 64, None, {"block_q": 128, "block_kv": 128}),
    TunedChoice("pairs", 2, 128, None, {"block_q": 128, "block_kv": 64}),
    # One sum over queries (`nvidia-split-pairs`): two stages of q and do beside the keys' two tiles.
    TunedChoice("pairs", 1, 256, None, {"block_q": 128, "block_kv": 64}, sums=1, spread=256),
    TunedChoice("pairs", 2, 192, None, {"block_q": 128, "block_kv": 64}, sums=1, spread=_NONE),
    TunedChoice("pairs", 2, 256, None, {"block_q": 128, "block_kv": 48}, sums=1, spread=_NONE),
    # Both sums (192 / 128): each consumer has both of its 64 keys, or all keys of one sum (`hopper/pairs_weights.py`).
    TunedChoice("pairs", 2, 256, None, {"block_q": 128, "block_kv": 48}, spread=_NONE, together=BOTH_SUMS),
    TunedChoice("pairs", 2, 256, None, {"block_q": 64, "block_kv": 64}, spread=_NONE),
    # The same with a sum that is added, where that is no kernel of its own; two warpgroups share its columns in whole swizzle atoms.
    TunedChoice("pairs", 2, 256, None, {"block_q": 128, "block_kv": 64}, sums=1, spread=256),
    TunedChoice("pairs", _ANY, 256, None, {"block_q": 64, "block_kv": 64}),
)
"""The first that fits counts."""


def lookup(facts: KernelFacts, arch: str, length: int = 0) -> Fields | None:
    """The measured choices for a kernel on at least `length` keys, or None."""
    return next((dict(entry.choices) for entry in TABLE if entry.fits(facts, arch) and entry.length <= length), None)


def next_length(facts: KernelFacts, arch: str, length: int = 0) -> int:
    """From how many keys on other choices are better than those for `length`; 0 if there are none."""
    now = lookup(facts, arch, length)
    lengths = sorted({entry.length for entry in TABLE if entry.length > length})
    return next((more for more in lengths if lookup(facts, arch, more) != now), 0)
