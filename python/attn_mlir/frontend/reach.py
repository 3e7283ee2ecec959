"""What traced values are computed of, without what became a constant."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.frontend.node import Node, Source

__all__ = ["is_specialised", "reachable"]


def is_specialised(node: Node, specialised: Mapping[Source, Any]) -> bool:
    """Whether a capture or size became a constant."""
    source = {"capture": node.attribute, "size": node.attribute[0] if node.op == "size" else None}.get(node.op)
    return source is not None and source in specialised


def reachable(results: Sequence[Node], specialised: Mapping[Source, Any] = MappingProxyType({})) -> list[Node]:
    """The nodes that `results` need, operands first, in the order in which they were written."""
    seen: dict[Node, None] = {}  # ordered, so that the same functions give the same text in every process
    stack = list(results)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen[node] = None
            if not is_specialised(node, specialised):
                stack.extend(node.operands)
    return sorted(seen, key=lambda node: node.order)
