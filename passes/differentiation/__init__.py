"""Derivatives of an attention: reverse mode, forward mode, and reverse mode of reverse mode."""

from attn_mlir.passes.differentiation.errors import DifferentiationError
from attn_mlir.passes.differentiation.functions import Derivatives
from attn_mlir.passes.differentiation.host import Primal

__all__ = ["Derivatives", "DifferentiationError", "Primal"]
