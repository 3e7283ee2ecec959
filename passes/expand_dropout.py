"""Replaces `attn.kept` by integer arithmetic."""

from dataclasses import dataclass

from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.dropout import expand
from attn_mlir.passes.regions import find_all


@dataclass(frozen=True)
class ExpandDropout(Pass):
    """Writes every `attn.kept` as Philox 4x32-10 in integer arithmetic on indices, a call for each pair."""

    name = "attn-expand-dropout"

    def run(self, module: ir.Operation) -> bool:
        for op in find_all(module, "attn.kept"):
            expand(op)
        return True
