"""The reference: what every stage of the IR means, executed with numpy in float64."""

from attn_mlir.reference.errors import EvaluationError, OutOfBoundsError
from attn_mlir.reference.evaluator import evaluate

__all__ = ["EvaluationError", "OutOfBoundsError", "evaluate"]
