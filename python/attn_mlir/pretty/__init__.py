"""IR as people read it: loops with names, infix expressions, constants where they are used, each type once.

The text is no MLIR: `attn-opt` and `ir()` print the form that can be parsed unless they are asked for this one. docs/pretty.md explains it.
"""

from attn_mlir.dialects import loaded
from attn_mlir.mlir import LOCK, ir
from attn_mlir.pretty.printer import pretty

__all__ = ["pretty", "pretty_text"]


def pretty_text(text: str) -> str:
    """The text of a module for people, from its MLIR."""
    with LOCK, loaded():
        return pretty(ir.Module.parse(text).operation, text)
