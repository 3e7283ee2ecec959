"""How tile functions are read; see `backends.gpu.structure`."""

from attn_mlir.backends.gpu.structure import (
    body,
    chains,
    constant,
    hint,
    holds,
    is_tile,
    maker,
    operations,
    partial_sums,
    widened,
    yielded,
)

__all__ = ["body", "chains", "constant", "hint", "holds", "is_tile", "maker", "operations", "partial_sums", "widened", "yielded"]
