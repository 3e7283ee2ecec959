"""Attributes of kernels: what their programs run over, and dictionaries of numbers and words, a schedule or choices of a tuner."""

from attn_mlir.backends.fields import CHOICES, Fields, read, write
from attn_mlir.mlir import ir

__all__ = ["CHOICES", "LAUNCH", "LAUNCH_COLUMNS", "LAUNCH_VALUES", "SCHEDULE", "Fields", "grid_kind", "read", "write"]

SCHEDULE = "tile.schedule"
LAUNCH = "launch_"
"""How names of choices begin that drivers need, and which therefore are in every schedule."""
LAUNCH_COLUMNS, LAUNCH_VALUES = f"{LAUNCH}columns", f"{LAUNCH}values"
"""How many columns of v a launch sees, and which argument v is, where kernels see slices of it."""


def grid_kind(kernel: ir.Operation) -> str:
    """What the programs of a kernel run over: "rows", "pairs", "elements" or "chunks"."""
    facts = ir.DictAttr(kernel.attributes["tile.kernel"])
    return ir.StringAttr(facts["grid"]).value if "grid" in facts else "rows"
