"""What the schedule of a sweep over chunks (linear attention) depends on."""

import math
from dataclasses import dataclass

from attn_mlir.dialects.attn.linear import interval_of, is_exact, segment_of
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import piece
from attn_mlir.passes.tiling.chunk_channels import fits_at_once

PANEL = 64
"""Columns of v of one warpgroup of the emitter "hopper"."""
PREPARED = {"key": 64, "value": 16}
"""Positions of a chunk of that emitter where key or value channels have decays of their own."""
_KEYS, _CHANNEL_KEYS = (64, 128, 256), (64, 128)
"""Rows of a state that it knows, and with decays of channels."""


@dataclass(frozen=True)
class SweepFacts:
    """What the schedule of a sweep depends on.

    `keys` and `values`: rows and columns of the state. `chunk`: positions of a chunk without tuning; `whole`: chunks must divide it, so
    that states and segments are at their ends (0: any will do). `segment`: positions of a segment, 0: sequences are whole. `channels`:
    each has decays of its own. `plain`: one decay for all channels, of a size that the emitter "hopper" knows; `prepared`: positions of a
    chunk where decays of channels have a form that it knows (one of `chunk_channels`), otherwise 0. `factor`: o is multiplied with a
    further tensor. `exact`: states are rounded to two pieces of 16 bits; `weights`: the pieces of weights of pairs. `single`: inputs are
    f32, and products have three pieces of each factor.
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
    prepared: int = 0
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
    prepared = PREPARED[view.channels.value] if knows_channels(op) and fits_at_once(op) else 0
    return SweepFacts(keys, values, view.chunk.value, whole, segment, not one, plain, factor, exact, not narrow, prepared, weights)


def knows_channels(op: ir.Operation) -> bool:
    """Whether an `attn.linear_attention` or `attn.chunk` has decays of channels, sizes, types and mods that the emitter "hopper" knows."""
    view = op.opview
    own = {"key": ("attn.value",), "value": ("attn.query", "attn.key", "attn.value")}.get(view.channels.value)
    k, v = (ir.RankedTensorType(value.type) for value in (view.k, view.v))
    wide = view.decay is not None and ir.RankedTensorType(view.decay.type).element_type.width > 32
    if own is None or wide or k.element_type.width != 16:
        return False
    return k.shape[3] in _CHANNEL_KEYS and v.shape[3] % PANEL == 0 and not any(piece(op, name) for name in own)
