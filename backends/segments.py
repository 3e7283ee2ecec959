"""When sequences of linear attention are cut into segments that are swept at the same time (`attn-split-sequences`): the choice by a model.

A program of a sweep takes a chunk after the other, so that few heads leave a device idle, however long the sequence. In units of the time
that one program needs for a chunk, a sweep over T positions costs

    max(1, P / processors) T / chunk

for its P programs. In segments of L positions, N = ceil(T / L), it costs

    (1 + summary) ceil(P N / processors) L / chunk + N / 10 + launches :

the states of the segments cost a part of a sweep, passing them on a tenth of a chunk for each segment, and there are three more launches.
Measured on an H200, B1 H4 K128 V128 f16, T 65536, in such units: 1020 whole; segments of 4096: 123 (126 by the model), 2048: 78 (74),
1024: 87 (77); T 16384, segments of 512: 33 (33).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from attn_mlir.backends.host import Kernel

UNIT = 512
"""Segments have a multiple of so many positions: every chunk and every interval between states divides it."""
SHORTEST = 2 * UNIT
"""Shorter sequences stay whole; asked first, as it costs next to nothing."""
_PASS = 0.1
_GAIN = 0.9
"""What segments must cost, as a part of the cost without them, to be worth their memory."""


@dataclass(frozen=True)
class Machine:
    """What the model knows of a device: how many programs run at the same time, and two of its costs."""

    processors: int
    summary: float = 0.7
    launches: float = 16.0


def choose_segment(kernels: Mapping[str, Kernel], batch: int, heads: int, length: int, machine: Machine) -> int:
    """How many positions a segment should have, a power of two, so that no length asks for many programs; 0: leave sequences whole.

    `kernels` are those of the program without segments; o is [batch, heads, length, V].
    """
    sweeps = [kernel for kernel in kernels.values() if kernel.grid == "chunks"]
    if length < SHORTEST or any(kernel.sequences >= 0 for kernel in sweeps):
        return 0
    return _cheapest(tuple((batch * heads * kernel.blocks, kernel.block_q) for kernel in sweeps), length, machine)


@lru_cache(maxsize=512)
def _cheapest(sweeps: tuple[tuple[int, int], ...], length: int, machine: Machine) -> int:
    """The segment that costs least; `sweeps` are the programs and the chunk of each sweep."""

    def cost(segment: int) -> float:
        count = -(-length // segment)
        work = [(1 + machine.summary) * -(-programs * count // machine.processors) * segment / chunk for programs, chunk in sweeps]
        return sum(work) + len(sweeps) * (_PASS * count + machine.launches)

    whole = sum(max(1.0, programs / machine.processors) * length / chunk for programs, chunk in sweeps)
    sizes = [UNIT << power for power in range(length.bit_length()) if UNIT << power < length]
    best = min(reversed(sizes), key=cost)
    return best if cost(best) < _GAIN * whole else 0
