"""Local rewrites of scalar pieces, used by `attn-simplify`."""

from attn_mlir.passes.simplification.rules import RULES

__all__ = ["RULES"]
