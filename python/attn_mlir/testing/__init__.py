"""Comparisons for users' own tests: what an OnlineFunc's author wrote against what follows from its online form."""

from attn_mlir.testing.backward import Comparison, WeightDifference, compare_backward
from attn_mlir.testing.combine import Combination, compare_combine

__all__ = ["Combination", "Comparison", "WeightDifference", "compare_backward", "compare_combine"]
