"""Derivation of the online form of a row program; `docs/derivation.md` explains the method."""

from attn_mlir.passes.derivation.derive import Derivation, accumulator_limit, derive, is_narrow
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.program import OnlineRow
from attn_mlir.passes.derivation.row import Row, read_row

__all__ = ["Derivation", "DerivationError", "OnlineRow", "Row", "accumulator_limit", "derive", "is_narrow", "read_row"]
