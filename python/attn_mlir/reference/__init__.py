"""The reference: what every stage of the IR means, executed with numpy in float64."""

from attn_mlir.reference.compare import Difference, compare, difference
from attn_mlir.reference.errors import EvaluationError, OutOfBoundsError
from attn_mlir.reference.evaluator import evaluate, rows_with_keys
from attn_mlir.reference.inputs import InputMaker, Sizes

__all__ = [
    "Difference",
    "EvaluationError",
    "InputMaker",
    "OutOfBoundsError",
    "Sizes",
    "compare",
    "difference",
    "evaluate",
    "rows_with_keys",
]
