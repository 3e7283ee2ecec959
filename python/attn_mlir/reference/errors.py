"""Errors of the reference evaluator; each names the op and where it came from."""

from attn_mlir.errors import CompileError
from attn_mlir.mlir import ir


class EvaluationError(CompileError):
    """The module cannot be executed, or breaks a rule of the IR while it is; `location` says where."""

    def __init__(self, message: str, location: ir.Location | None = None) -> None:
        self.message = message
        self.position = _position(location)
        super().__init__(f"{self.position}: {message}" if self.position else message)


class OutOfBoundsError(EvaluationError, IndexError):
    """A tensor is read outside of its shape at a position that counts."""


def _position(location: ir.Location | None) -> str:
    """`file:line:column` of a location, or "" when it has none."""
    if location is None:
        return ""
    if isinstance(location, ir.FileLineColLoc):
        return f"{location.filename.value}:{location.start_line}:{location.start_col}"
    if isinstance(location, ir.NameLoc):
        return _position(location.child_loc)
    if isinstance(location, ir.CallSiteLoc):
        return _position(location.callee)
    if isinstance(location, ir.FusedLoc):
        return next(filter(None, map(_position, location.locations)), "")
    return ""
