"""When sequences of a delta rule are cut into segments, scanned at the same time: the choice by measured times of a chunk.

A program of a scan takes a chunk after the other, so that few heads leave multiprocessors idle. Segments are scanned three times: from
zero, from the identity without values, and from the states that a scan over segments then knows. Rounds of programs count as whole ones.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attn_mlir.backends.host import KernelGrid
from attn_mlir.backends.nvidia import cuda, thresholds
from attn_mlir.backends.nvidia.launch import LIMIT
from attn_mlir.backends.segments import SHORTEST, UNIT

_POSITIONS = 64
"""Positions whose times are known."""
_WIDE = 128
"""Columns of v of a program of a segment."""


def delta_segment(kernels: Mapping[str, KernelGrid], v: tuple[int, ...], processors: int) -> int:
    """How many positions a segment should have, 0 for whole sequences; `v` is [batch, heads, length, columns].

    `kernels` are those of the program without segments, which stays whole where its scan is not one of chunks that were prepared.
    """
    batch, heads, length, columns = v
    scans = [each for name, each in kernels.items() if f"{name}_chunks" in kernels]
    if len(scans) != 1 or length < SHORTEST or columns % _WIDE:
        return 0
    scan, times = scans[0], thresholds.DELTA_TIMES

    def took(programs: int, positions: int, each: float, around: float = 0.0) -> float:
        return math.ceil(programs / processors) * (math.ceil(positions / _POSITIONS) * each + around)

    def split(segment: int) -> float:
        count = math.ceil(length / segment)
        scanned = took(batch * heads * columns // _WIDE * count, segment, times["segments"], times["round"])
        return scanned + count * times["state"] + times["launches"]

    whole = took(batch * heads * scan.blocks, length, times["whole"])
    sizes = [UNIT << power for power in range(length.bit_length()) if UNIT << power < length]
    best = min(reversed(sizes), key=split)
    return best if split(best) < thresholds.DELTA_GAIN * whole else 0


def kept_segment(kept: dict[Any, int], kernels: Mapping[str, KernelGrid], inputs: Sequence[Any]) -> int:
    """That of inputs on their device; what was found is `kept`, by shapes."""
    q, v, index = inputs[0].shape, inputs[2].shape, cuda.index_of(inputs[0])
    index = cuda.current_device() if index < 0 else index
    key = (index, q, v)
    found = kept.get(key)
    if found is None:
        if len(kept) >= LIMIT:
            kept.clear()
        measured = q[3] in thresholds.DELTA_KEYS
        found = kept[key] = delta_segment(kernels, v, cuda.device(index).multiprocessors) if measured else 0
    return found
