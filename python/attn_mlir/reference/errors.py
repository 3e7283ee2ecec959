"""Errors of the reference evaluator; each says where the op at fault came from."""

from attn_mlir.diagnostics import DiagnosticError, at
from attn_mlir.mlir import ir


class EvaluationError(DiagnosticError):
    """The module cannot be executed, or breaks a rule of the IR while it is."""

    def __init__(self, message: str, location: ir.Location | None = None) -> None:
        super().__init__([at(location, "error", message)])


class OutOfBoundsError(EvaluationError, IndexError):
    """A tensor is read outside of its shape at a position that counts."""
