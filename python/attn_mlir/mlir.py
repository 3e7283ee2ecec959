"""The MLIR Python bindings, imported here and nowhere else.

The same upstream bindings ship under different package names. The PyPI project
`mlir-python-bindings` holds only a placeholder today, so `mlir` counts as
installed only when the pieces that attn-mlir needs are really there; otherwise
the copy inside the `torch-mlir` wheel is used.
"""

import threading

try:
    from mlir import ir, passmanager, rewrite  # pyright: ignore[reportMissingImports]
    from mlir.dialects import arith, ext, func, llvm, math, memref, scf, tensor, ub, vector  # pyright: ignore[reportMissingImports]
    from mlir.execution_engine import ExecutionEngine  # pyright: ignore[reportMissingImports]
except ImportError:
    from torch_mlir import ir, passmanager, rewrite
    from torch_mlir.dialects import arith, ext, func, llvm, math, memref, scf, tensor, ub, vector
    from torch_mlir.execution_engine import ExecutionEngine

LOCK = threading.RLock()
"""Held while a context is in use: loading a Python-defined dialect into one changes state that all contexts share."""

__all__ = [
    "LOCK",
    "ExecutionEngine",
    "arith",
    "ext",
    "func",
    "ir",
    "llvm",
    "math",
    "memref",
    "passmanager",
    "rewrite",
    "scf",
    "tensor",
    "ub",
    "vector",
]
