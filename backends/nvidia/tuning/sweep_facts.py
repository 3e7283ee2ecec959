"""What the schedule of a sweep over chunks (linear attention) depends on."""

import math
from dataclasses import dataclass

from attn_mlir.dialects.attn.linear import interval_of, is_exact, segment_of
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import piece
from attn_mlir.passes.tiling.chunk_channels import fits_at_once

PANEL = 64
"""Columns of v of one warpgroup of the emitter "hopper"."""
_KEYS, _CHANNEL_KEYS = (64, 128, 256), (64, 128)
"""Rows of a state that it knows, and with decays of channels."""


@dataclass(frozen=True)
class SweepFacts:
    """What the schedule of a sweep depends on.

    `keys` and `values`: rows and columns of the state. `chunk`: positions of a chunk without tuning; `whole`: chunks must divide it, so
    that states and segments are at their ends (0: any will do). `segment`: positions of a segment, 0: sequences are whole. `channels`:
    each has decays of its own. `plain`: one decay for all channels, of a size that the emitter "hopper" knows; `prepared`: decays of
    key channels, in a form that it knows (`tile.decay_channels`). `factor`: o is multiplied with a further tensor. `exact`: states are
    rounded to two pieces of 16 bits; `weights`: the pieces of weights of pairs. `single`: inputs are f32, and products have three
    pieces of each factor.
    """

    keys: int
    values: int
    chunk: int
    whole: int
    segment: int
    channels: bool
    plain: bool
    factor: bool
    exact: bool
    single: bool = False
    prepared: bool = False
    weights: int = 1


def sweep_facts(op: ir.Operation) -> SweepFacts:
    """The facts of an `attn.chunk`."""
    view = op.opview
    keys, values = (ir.RankedTensorType(op.operands[n].type).shape[-1] for n in (1, 2))
    interval, segment = interval_of(op) or 0, segment_of(op) or 0
    one = view.channels.value == "none"
    narrow = ir.RankedTensorType(op.operands[1].type).element_type.width == 16
    plain = one and narrow and keys in _KEYS and values % PANEL == 0
    factor = view.factor is not None
    exact = narrow and is_exact(op)
    weights = 2 if exact and isinstance(ir.RankedTensorType(op.operands[1].type).element_type, ir.BF16Type) else 1
    whole = math.gcd(interval, segment)
    prepared = narrow and keys in _CHANNEL_KEYS and values % PANEL == 0 and _is_prepared(op)
    return SweepFacts(keys, values, view.chunk.value, whole, segment, not one, plain, factor, exact, not narrow, prepared, weights)


def _is_prepared(op: ir.Operation) -> bool:
    """Whether decays of key channels, and v, have a form that the emitter "hopper" knows."""
    decay = op.opview.decay
    wide = decay is not None and ir.RankedTensorType(decay.type).element_type.width > 32
    return fits_at_once(op) and not wide and piece(op, "attn.value") is None
