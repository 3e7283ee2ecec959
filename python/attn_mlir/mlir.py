"""The MLIR Python bindings, imported here and nowhere else.

The same upstream bindings ship under different package names. The PyPI project
`mlir-python-bindings` holds only a placeholder today, so `mlir` counts as
installed only when the pieces that attn-mlir needs are really there; otherwise
the copy inside the `torch-mlir` wheel is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

try:
    from mlir import ir, passmanager, rewrite  # pyright: ignore[reportMissingImports]
    from mlir.dialects import arith, ext, func, math, memref, scf, tensor, ub, vector  # pyright: ignore[reportMissingImports]
    from mlir.execution_engine import ExecutionEngine  # pyright: ignore[reportMissingImports]
except ImportError:
    from torch_mlir import ir, passmanager, rewrite
    from torch_mlir.dialects import arith, ext, func, math, memref, scf, tensor, ub, vector
    from torch_mlir.execution_engine import ExecutionEngine

from attn_mlir import forks

if TYPE_CHECKING:
    from torch_mlir.dialects import llvm

LOCK = forks.waited_for()
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


def __getattr__(name: str) -> Any:
    if name != "llvm":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported on first use: its size makes it the slowest of all, and a program from the cache needs none of it.
    return importlib.import_module(f"{ir.__name__.rpartition('.')[0]}.dialects.llvm")
