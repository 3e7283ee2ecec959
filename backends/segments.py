"""When sequences of linear attention are cut into segments that are swept at the same time (`attn-split-sequences`): the choice by a model.

A program of a sweep takes a chunk after the other, so that few heads leave a device idle, however long the sequence. In units of the time
that one program needs for a chunk, a sweep over T positions costs

    waves(P) T / chunk

for its P programs, where waves(P) = max(1, P / processors). In segments of L positions, N = ceil(T / L), it costs

    1.5 waves(P N) L / chunk + N / 2 + 16 :

the states of the segments cost half a sweep (measured: 0.2 to 0.5), passing them on half a chunk for each segment, three more launches 16.
"""

from collections.abc import Mapping
from functools import lru_cache

from attn_mlir.backends.host import Kernel

UNIT = 512
"""Segments have a multiple of so many positions: every chunk and every interval between states divides it."""
_WORK, _PASS, _LAUNCHES = 1.5, 0.5, 16.0
_GAIN = 0.9
"""What segments must cost, as a part of the cost without them, to be worth their memory."""


def choose_segment(kernels: Mapping[str, Kernel], batch: int, heads: int, length: int, processors: int) -> int:
    """How many positions a segment should have, a power of two, so that no length asks for many programs; 0: leave sequences whole.

    `kernels` are those of the program without segments; o is [batch, heads, length, V].
    """
    sweeps = [kernel for kernel in kernels.values() if kernel.grid == "chunks"]
    if length < 2 * UNIT or any(kernel.sequences >= 0 for kernel in sweeps):
        return 0
    return _cheapest(tuple((batch * heads * kernel.blocks, kernel.block_q) for kernel in sweeps), length, max(1, processors))


@lru_cache(maxsize=512)
def _cheapest(sweeps: tuple[tuple[int, int], ...], length: int, processors: int) -> int:
    """The segment that costs least; `sweeps` are the programs and the chunk of each sweep."""

    def waves(programs: int) -> float:
        return max(1.0, programs / processors)

    def cost(segment: int) -> float:
        count = -(-length // segment)
        return sum(_WORK * waves(programs * count) * segment / chunk + _PASS * count + _LAUNCHES for programs, chunk in sweeps)

    whole = sum(waves(programs) * length / chunk for programs, chunk in sweeps)
    sizes = [UNIT << power for power in range(length.bit_length()) if UNIT << power < length]
    best = min(reversed(sizes), key=cost)
    return best if cost(best) < _GAIN * whole else 0
