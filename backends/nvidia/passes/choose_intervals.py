"""Where the states are kept of which the gradient of channels' log decays is made."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.target import TARGETS
from attn_mlir.backends.nvidia.tuning.chunk_scan_facts import knows_channels
from attn_mlir.dialects.attn.linear_erase import is_delta
from attn_mlir.dialects.attn.linear_gradients import interval_of
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker

_FEWEST, _OF_HEADS = 32, 64
"""Positions of a chunk whose products four warps can share, and of one whose states of up to 128 rows fit into shared memory, too."""

_GRADIENTS = ("attn.decay_gradient", "attn.decay_gradient_sum")


@dataclass(frozen=True)
class ChooseIntervals(Pass):
    """Keeps states every 512 positions for gradients of channels' decays whose scans round nothing but the state (`tile.decay_values`).

    The sums of which the gradient is made take errors along from position to position, so that scans that round what pairs add need more
    states in between, which are most of what a backward reads and writes. Intervals of `crossing` gradients, which are whole chunks, have
    32 positions at least. `arch` is the chip that kernels are for.
    """

    name = "nvidia-choose-intervals"
    arch: str = "sm_90a"

    def run(self, module: ir.Operation) -> bool:
        if self.arch not in TARGETS:
            module.location.emit_error(f"{self.name}: `arch` must be one of {', '.join(TARGETS)}, got '{self.arch}'")
            return False
        crossing = [op for op in find_all(module, "attn.decay_gradient", "attn.linear_attention") if "crossing" in op.attributes]
        scans = [op for op in crossing if op.name == "attn.linear_attention"]
        # A gradient has the intervals of the scans whose states it reads, so all have the same.
        delta = TARGETS[self.arch].bulk_copies and any(is_delta(op) for op in find_all(module, "attn.linear_attention"))
        fewest = _OF_HEADS if delta and scans and all(map(_shares_longer_chunks, scans)) else _FEWEST
        for op in crossing:
            if (interval_of(op) or fewest) < fewest:
                op.attributes["interval"] = ir.IntegerAttr.get(op.attributes["interval"].type, fewest)
        for gradient in find_all(module, *_GRADIENTS) if TARGETS[self.arch].bulk_copies else []:
            of = gradient.opview
            states = (of.s, of.e) if gradient.name == _GRADIENTS[0] else (of.s, of.e, of.e_2)
            scans = [op for value in states for op in _makers(value)]
            known = [op for op in scans if op is not None and op.name == "attn.linear_attention" and _rounds_the_state_alone(op)]
            if len(known) == len(scans):
                for op in (gradient, *known):
                    op.attributes["interval"] = ir.IntegerAttr.get(op.attributes["interval"].type, thresholds.STATE_INTERVAL)
        return True


def _shares_longer_chunks(scan: ir.Operation) -> bool:
    """Whether decays are those of heads, and states have up to 128 rows: then matrix instructions have more to do in a chunk."""
    sizes = [ir.RankedTensorType(value.type).shape[-1] for value in scan.operands if ir.RankedTensorType(value.type).rank == 4]
    return scan.opview.channels.value == "none" and max(sizes, default=0) <= 128


def _makers(states: ir.Value) -> list[ir.Operation | None]:
    """The scan that makes states, or those that make what is added up to them."""
    op = maker(states, "attn.collect")
    elements = None if op is None else maker(op.operands[0], "attn.elements")
    if elements is None:
        return [maker(states)]
    read = dict.fromkeys(inner.operands[0] for inner in find_all(elements, "tensor.extract"))
    return [maker(value) for value in read]


def _rounds_the_state_alone(op: ir.Operation) -> bool:
    """Whether a scan becomes one in which nothing but the state is rounded on the way to its products."""
    return op.opview.channels.value == "value" and "crossing" not in op.attributes and knows_channels(op)
