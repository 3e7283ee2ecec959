"""Tiles an online attention: one program per block of query rows, loops over blocks of keys."""

from dataclasses import dataclass

from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.tiling.kernel import KernelBuilder


@dataclass(frozen=True)
class Tile(Pass):
    """Replaces each function holding an `attn.online` by a kernel in the `tile` dialect.

    The kernel computes `block-q` query rows of one head; it takes memrefs, the outputs last.
    """

    name = "attn-tile"
    block_q: int = 64
    block_kv: int = 64

    def run(self, module: ir.Operation) -> bool:
        if self.block_q < 1 or self.block_kv < 1:
            module.location.emit_error(f"{self.name}: block sizes must be positive, got {self.block_q} and {self.block_kv}")
            return False
        for op in find_all(module, "attn.attention"):
            op.location.emit_error(f"{self.name}: 'attn.attention' is not in online form; run attn-online-rewrite first")
            return False
        for op in find_all(module, "attn.online"):
            function = op.parent
            if function is None or function.name != "func.func" or function.regions[0].blocks[0] != op.block:
                op.location.emit_error(f"{self.name}: 'attn.online' must stand directly in a func.func")
                return False
            KernelBuilder(function, op, self.block_q, self.block_kv).build()
            function.erase()
        return True
