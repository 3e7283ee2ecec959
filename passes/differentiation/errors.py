"""What differentiation cannot do."""

from attn_mlir.mlir import ir


class DifferentiationError(Exception):
    """A derivative does not exist or is not known; `location` is where in the user's program."""

    def __init__(self, message: str, location: ir.Location | None = None) -> None:
        super().__init__(message)
        self.location = location
