"""What the schedule of a chunk scan (linear attention) depends on."""

from dataclasses import dataclass

from attn_mlir.backends.tuning.scan_facts import ScanFacts, fields_of
from attn_mlir.dialects.attn.linear_erase import eraser, is_delta, removes_another, writer
from attn_mlir.dialects.attn.linear_gradients import is_compensated
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import piece
from attn_mlir.passes.tiling.chunk_channels import fits_at_once

ATOM = 64
"""Columns of v of one warpgroup of the emitter "hopper"."""
PREPARED = {"key": 64, "value": 16}
"""Positions of a chunk of that emitter where key or value channels have decays of their own."""
_KEYS, _CHANNEL_KEYS = (64, 128, 256), (64, 128)
"""Rows of a state that it knows, and with decays of channels."""


@dataclass(frozen=True)
class NvidiaScanFacts(ScanFacts):
    """What the schedule of a chunk scan depends on.

    `plain`: one decay for all channels, of a size that the emitter "hopper" knows; `prepared`: positions of a chunk where decays of
    channels have a form that it knows (one of `chunk_channels`), otherwise 0. `factor`: o is multiplied with another tensor.
    `compensated`: states are rounded to two pieces of 16 bits; `weights`: the pieces of weights of pairs. `single`: inputs are f32, and
    products have three pieces of each factor. `delta`: there is an erase key, a second writer, or another place where the state is read;
    `solves`: a system is solved; `apart`: another key is removed than is written. `rows`: o is of use, not only states.
    """

    plain: bool
    factor: bool
    compensated: bool
    single: bool = False
    prepared: int = 0
    weights: int = 1
    delta: bool = False
    solves: bool = False
    apart: bool = False
    rows: bool = True


def chunk_scan_facts(op: ir.Operation) -> NvidiaScanFacts:
    """The facts of an `attn.chunk`."""
    view, common = op.opview, fields_of(op)
    keys, values, *_, channels = common
    narrow = ir.RankedTensorType(op.operands[1].type).element_type.width == 16
    solves, apart = eraser(op) is not None, removes_another(op) or writer(op) is not None
    # The emitter "hopper" leaves out a position's own pair where decays are those of heads, or of values' channels.
    delta = is_delta(op) and (solves or apart or view.channels.value == "key")
    plain = not channels and not delta and narrow and keys in _KEYS and values % ATOM == 0
    compensated = narrow and is_compensated(op)
    weights = 2 if compensated and isinstance(ir.RankedTensorType(op.operands[1].type).element_type, ir.BF16Type) else 1
    prepared = PREPARED[view.channels.value] if not delta and knows_channels(op) and fits_at_once(op) else 0
    rows = bool(list(op.results[0].uses))
    return NvidiaScanFacts(*common, plain, view.factor is not None, compensated, not narrow, prepared, weights, delta, solves, apart, rows)


def knows_channels(op: ir.Operation) -> bool:
    """Whether an `attn.linear_attention` or `attn.chunk` has decays of channels, sizes, types and mods that the emitter "hopper" knows."""
    view = op.opview
    own = {"key": ("attn.value",), "value": ("attn.query", "attn.key", "attn.value")}.get(view.channels.value)
    k, v = (ir.RankedTensorType(value.type) for value in (view.k, view.v))
    wide = view.decay is not None and ir.RankedTensorType(view.decay.type).element_type.width > 32
    if own is None or wide or k.element_type.width != 16:
        return False
    return k.shape[3] in _CHANNEL_KEYS and v.shape[3] % ATOM == 0 and not any(piece(op, name) for name in own)
