"""Narrows kernels for AMD GPUs to slices of the columns of v."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.slice_values import SliceValues


@dataclass(frozen=True)
class AmdSliceValues(SliceValues):
    """Gives v and o `columns` columns at most where they have more: a wave has 512 registers, which sums of a row and its query share.

    Otherwise as `nvidia-slice-values`: a driver launches the kernel for each slice, with what "launch_values" and "launch_columns" say in
    the choices of the function, and scores are computed again.
    """

    name = "amd-slice-values"
