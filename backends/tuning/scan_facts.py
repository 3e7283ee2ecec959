"""What the schedule of a chunk scan (linear attention) depends on, on every backend."""

import math
from dataclasses import dataclass

from attn_mlir.dialects.attn.linear_gradients import interval_of
from attn_mlir.dialects.attn.linear_segments import segment_of
from attn_mlir.mlir import ir


@dataclass(frozen=True)
class ScanFacts:
    """What schedules of chunk scans depend on; backends add what only their kernels ask for.

    `keys` and `values`: rows and columns of the state. `chunk`: positions of a chunk without tuning. `whole`: chunks must divide it, so
    that states and segments are at their ends (0: any will do). `segment`: positions of a segment, 0: sequences are whole. `channels`:
    each has decays of its own.
    """

    keys: int
    values: int
    chunk: int
    whole: int
    segment: int
    channels: bool


def fields_of(op: ir.Operation) -> tuple[int, int, int, int, int, bool]:
    """The fields of `ScanFacts` for an `attn.chunk`, in their order."""
    view = op.opview
    keys, values = (ir.RankedTensorType(op.operands[n].type).shape[-1] for n in (1, 2))
    segment = segment_of(op) or 0
    return keys, values, view.chunk.value, math.gcd(interval_of(op) or 0, segment), segment, view.channels.value != "none"
