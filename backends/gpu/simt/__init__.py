"""Plain code for kernels without matrix products and without loops over keys: a few threads share a row."""

from attn_mlir.backends.gpu.simt.dialect import Dialect
from attn_mlir.backends.gpu.simt.emit import emit
from attn_mlir.backends.gpu.simt.plan import plan

__all__ = ["Dialect", "emit", "plan"]
