"""Makes kernels over pairs in memory of attentions whose heads are too wide for the kernels of an NVIDIA GPU."""

from dataclasses import dataclass

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.passes.materialize_rows import MaterializeRows, is_wide_attention
from attn_mlir.backends.nvidia.target import HOPPER
from attn_mlir.mlir import ir


@dataclass(frozen=True)
class NvidiaMaterializeRows(MaterializeRows):
    """Replaces an `attn.attention` of more than `columns` columns by kernels over pairs in memory: see `gpu-materialize-rows`.

    Those with further terms, and those for row outputs alone; for GPUs other than Hopper every one, as there are no kernels of slices.
    """

    name = "nvidia-materialize-rows"

    def takes(self, function: ir.Operation, attention: ir.Operation) -> bool:
        hopper = attributes.read(function, attributes.CHOICES).get("arch", HOPPER.arch) == HOPPER.arch
        return super().takes(function, attention) or (not hopper and is_wide_attention(attention, self.columns))
