"""Local rewrites of scalar pieces, used by `attn-simplify`."""

from attn_mlir.passes.simplification.rules import RULES, rewrite

__all__ = ["RULES", "rewrite"]
