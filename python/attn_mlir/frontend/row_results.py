"""What a row function returns: one weight or several, and perhaps a dictionary of row outputs after them."""

from collections.abc import Mapping, Sequence
from typing import Any

from attn_mlir.frontend import functions
from attn_mlir.frontend.node import Node
from attn_mlir.frontend.reach import reachable
from attn_mlir.frontend.report import failure

__all__ = ["refuse_row_values", "row_result"]


def row_result(function: Any, result: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The weights, and the row outputs by name. Raises TraceError for what is neither."""
    if not isinstance(result, tuple):
        return [result], {}
    states = result[-1] if result and isinstance(result[-1], Mapping) else None
    weights = result if states is None else result[:-1]
    fits = len(result) > 1 and not any(isinstance(weight, (Mapping, tuple)) for weight in weights)
    if not fits or not all(isinstance(name, str) for name in states or ()):
        advice = (
            'return p, or p and a dictionary of row outputs: return p, {"lse": lse}; each further weight has an o of its own: '
            'return p, p2, {"lse": lse}'
        )
        raise failure(functions.subject("row", function), f"returned a tuple of {len(result)}", advice, functions.definition(function))
    return weights, states or {}


def refuse_row_values(function: Any, weights: Sequence[Node]) -> None:
    """Refuses what is one number for each row in the place of a further weight, where a row output is meant. Raises TraceError."""
    for number, weight in enumerate(weights, 2):
        if not weight.varying and any(node.op == "attn.reduce" for node in reachable([weight])):
            problem = f"returned a value of the row as its weight number {number}"
            advice = (
                'row outputs go into a dictionary: return p, {"lse": lse}; a weight that is the same for all keys of a row is '
                "written with the scores: s * 0 + w"
            )
            raise failure(functions.subject("row", function), problem, advice, weight.position or functions.definition(function))
