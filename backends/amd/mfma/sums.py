"""Prints sums in memory: what all keys of a program add to queries, and what pairs add to captured tensors."""

from attn_mlir.backends.amd.mfma.core import Core
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


class Sums:
    """Prints `tile.accumulate` and `tile.scatter_add`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def load(self, op: ir.Operation) -> None:
        """Keeps the columns of a tile in registers, as operand B."""
        raise UnsupportedError(f"amd: sums over keys cannot be made yet ({op.location}): use the CPU")

    def accumulate(self, op: ir.Operation, base: int) -> None:
        """Adds to rows of a tensor."""
        raise UnsupportedError(f"amd: sums over keys cannot be made yet ({op.location}): use the CPU")

    def scatter(self, op: ir.Operation) -> None:
        """Adds to elements of a tensor."""
        raise UnsupportedError(f"amd: gradients of captured tensors cannot be made yet ({op.location}): use the CPU")
