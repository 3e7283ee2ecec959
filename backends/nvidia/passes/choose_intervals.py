"""Where the states are kept of which the gradient of channels' log decays is made."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.target import TARGETS
from attn_mlir.backends.nvidia.tuning.sweep_facts import knows_channels
from attn_mlir.dialects.attn.linear_gradients import interval_of
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker

_INTERVAL = 512
"""As many positions as where a head has one decay."""
_FEWEST = 32
"""Positions of a chunk whose products four warps can share."""


@dataclass(frozen=True)
class ChooseIntervals(Pass):
    """Keeps states every 512 positions for gradients of channels' decays whose sweeps round nothing but the state (`tile.decay_values`).

    The sums of which the gradient is made take errors along from position to position, so that sweeps that round what pairs add need more
    states in between, which are most of what a backward reads and writes. Intervals of `crossing` gradients, which are whole chunks, have
    32 positions at least. `arch` is the chip that kernels are for.
    """

    name = "nvidia-choose-intervals"
    arch: str = "sm_90a"

    def run(self, module: ir.Operation) -> bool:
        if self.arch not in TARGETS:
            module.location.emit_error(f"{self.name}: `arch` must be one of {', '.join(TARGETS)}, got '{self.arch}'")
            return False
        for op in find_all(module, "attn.decay_gradient", "attn.linear_attention"):
            if "crossing" in op.attributes and (interval_of(op) or _FEWEST) < _FEWEST:
                op.attributes["interval"] = ir.IntegerAttr.get(op.attributes["interval"].type, _FEWEST)
        for gradient in find_all(module, "attn.decay_gradient") if TARGETS[self.arch].bulk_copies else []:
            sweeps = [maker(value) for value in (gradient.opview.s, gradient.opview.e)]
            known = [op for op in sweeps if op is not None and op.name == "attn.linear_attention" and _rounds_the_state_alone(op)]
            if len(known) == len(sweeps):
                for op in (gradient, *known):
                    op.attributes["interval"] = ir.IntegerAttr.get(op.attributes["interval"].type, _INTERVAL)
        return True


def _rounds_the_state_alone(op: ir.Operation) -> bool:
    """Whether a sweep becomes one in which nothing but the state is rounded on the way to its products."""
    return op.opview.channels.value == "value" and "crossing" not in op.attributes and knows_channels(op)
