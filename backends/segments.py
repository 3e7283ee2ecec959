"""When sequences of linear attention are cut into segments, scanned at the same time (`attn-split-sequences`): the choice by a model.

A program of a scan takes a chunk after the other, so that few heads leave a device idle, however long the sequence. The unit is the time
that one program alone needs for a chunk. n programs on p processors take r = ceil(n / p) rounds, which get longer as the processors share
the memory: c chunks take

    c r (1 + crowd (n / p / r)^2)

and less so where the programs of a head share its rows of q and k, each with columns of v of its own: `crowd` over their number.

A scan over T positions is one of T / chunk chunks for its P programs. In segments of L positions it is one of L / chunk chunks for P T / L
programs, whose states are written, passed on and read (`passing` for a state of every processor). The states come from further scans,
which cost a part of one (`summary`) and some launches: a backward has two of them, since dk and dv begin with the same states. Scans that
make products and states, too, take longer (`products`).

Measured on an H200, bf16, K = V = 128, one batch entry with 4 to 64 heads and two with 64, 2048 to 65536 positions, forward and backward,
whole and in segments of 512 to 4096: the model is within 5 % (rms) of 126 times, and what it chooses within 4 % of the best but for one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from attn_mlir.backends.host import KernelGrid

UNIT = 512
"""Segments have a multiple of so many positions: every chunk and every interval between states divides it."""
SHORTEST = 2 * UNIT
"""Shorter sequences stay whole; asked first, as it costs next to nothing."""
_GAIN = 0.95
"""What segments must cost, as a part of the cost without them, to be worth their memory."""


@dataclass(frozen=True)
class DeviceModel:
    """What the model knows of a device: how many programs run at the same time, and its costs in chunks of one program."""

    processors: int
    summary: float = 0.53
    launches: float = 9.0
    crowd: float = 0.54
    passing: float = 4.4
    products: float = 2.25


@dataclass(frozen=True)
class _Scan:
    """Programs of a scan for all heads of the batch, positions of a chunk, its cost, and how much more it costs among others."""

    programs: int
    chunk: int
    weight: float
    crowd: float


def choose_segment(kernels: Mapping[str, KernelGrid], batch: int, heads: int, length: int, machine: DeviceModel) -> int:
    """How many positions a segment should have, a power of two, so that no length asks for many programs; 0: leave sequences whole.

    `kernels` are those of the program without segments; o is [batch, heads, length, V].
    """
    scans = [kernel for kernel in kernels.values() if kernel.grid == "chunks"]
    if length < SHORTEST or any(kernel.sequences >= 0 for kernel in scans):
        return 0
    weights = [machine.products if len(kernel.outputs) > 2 else 1.0 for kernel in scans]
    found = [
        _Scan(batch * heads * each.blocks, each.block_q, weight, machine.crowd / each.blocks)
        for each, weight in zip(scans, weights, strict=True)
    ]
    return _cheapest(tuple(found), length, machine)


@lru_cache(maxsize=512)
def _cheapest(scans: tuple[_Scan, ...], length: int, machine: DeviceModel) -> int:
    """The segment that costs least."""

    def cost(scan: _Scan, segments: int, positions: int) -> float:
        share = scan.programs * segments / machine.processors
        rounds = math.ceil(share)
        return positions / scan.chunk * rounds * (1 + scan.crowd * (share / rounds) ** 2)

    def split(segment: int) -> float:
        count = -(-length // segment)
        times = [cost(scan, count, segment) for scan in scans]
        work = sum(scan.weight * time for scan, time in zip(scans, times, strict=True))
        states = sum(machine.summary * time + machine.launches for time in times[:2])
        return work + states + sum(machine.passing * scan.programs * count / machine.processors for scan in scans)

    whole = sum(scan.weight * cost(scan, 1, length) for scan in scans)
    sizes = [UNIT << power for power in range(length.bit_length()) if UNIT << power < length]
    best = min(reversed(sizes), key=split)
    return best if split(best) < _GAIN * whole else 0
