"""What is wrong with a scheduled kernel, and at which op."""

from attn_mlir.diagnostics import source_line
from attn_mlir.mlir import ir
from attn_mlir.reference.errors import EvaluationError


class Fault(EvaluationError):
    """A kernel that would hang, race or compute something else on a GPU. `kind` is a name for it, such as "deadlock"."""

    def __init__(self, kind: str, location: ir.Location, message: str) -> None:
        super().__init__(f"{kind}: {message}", location)
        self.kind = kind


def line_of(location: ir.Location) -> str:
    """An op's place inside of a message; of text without a name, the line."""
    text = source_line(location)
    return f"line {text[2:]}" if text.startswith("-:") else text
