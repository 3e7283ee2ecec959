"""Narrows kernels for NVIDIA GPUs to slices of the columns of v."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.passes.slice_values import SliceValues


@dataclass(frozen=True)
class NvidiaSliceValues(SliceValues):
    """Gives v and o `columns` columns at most where they have more, as a warpgroup has registers for no more sums of 64 rows.

    Weights, states and row outputs do not depend on v, and column c of o only on column c of v: so the same kernel makes every slice. The
    choices of the function say what a driver needs, "launch_values", which argument v is, and "launch_columns", how many columns a launch
    sees. Scores are computed again for each slice. Heads of q of more than 256 columns get blocks that fit into shared memory.
    """

    name = "nvidia-slice-values"

    def blocks(self, head: int) -> Fields:
        return dict(zip(("block_q", "block_kv"), wide_blocks(head), strict=True))


def wide_blocks(head: int) -> tuple[int, int]:
    """Rows and keys of a block for heads of more than 256 columns: 227 KiB hold one tile of q and two of keys and of a slice of v."""
    return 64, 64 if head <= 384 else 32 if head <= 640 else 16
