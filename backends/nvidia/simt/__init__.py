"""Plain CUDA for kernels without matrix products and without loops over keys: a few threads share a row."""

from attn_mlir.backends.nvidia.simt.emit import emit
from attn_mlir.backends.nvidia.simt.plan import plan

__all__ = ["emit", "plan"]
