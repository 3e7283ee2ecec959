"""How much LLVM optimises what is compiled for the CPU, as $ATTN_MLIR_LLVM_LEVEL says."""

import os

from attn_mlir.errors import ArgumentError

_VARIABLE = "ATTN_MLIR_LLVM_LEVEL"


def llvm_level() -> int:
    """0 to 3, which is usual. Raises ArgumentError for anything else."""
    level = os.environ.get(_VARIABLE, "3")
    if level not in ("0", "1", "2", "3"):
        raise ArgumentError(f"{_VARIABLE} is 0, 1, 2 or 3, got '{level}'")
    return int(level)
