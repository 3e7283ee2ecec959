"""Rules of printers: one for each op, found by its name, or by that of its dialect."""

from collections.abc import Callable, Mapping

from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

Rule = Callable[..., None]
"""(printer, op, ...): prints the op, and makes known what stands for its results."""
SCALARS = ("arith.*", "math.*", "memref.*", "tile.program_id", "attn.range")
"""What is a statement of scalars to most printers."""


def rule_of(rules: Mapping[str, Rule], op: ir.Operation, printer: str) -> Rule:
    """The rule for an op: under its name, else under "dialect.*". Raises UnsupportedError where `printer` has none."""
    rule = rules.get(op.name) or rules.get(f"{op.name.partition('.')[0]}.*")
    if rule is None:
        raise UnsupportedError(f"{printer} has no rule for '{op.name}' ({source_line(op.location)})")
    return rule
