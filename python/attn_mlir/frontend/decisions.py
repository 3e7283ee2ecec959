"""Branches that a user's function took on captured numbers, as `if gain > 2` does: a trace is good while they come out the same.

The numbers themselves stay arguments of the program, so that another value needs no other kernel.
"""

import dataclasses
from collections.abc import Callable, Sequence

from attn_mlir.frontend.node import Node, Source

_SOURCES = ("leaf", "computed")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """What a condition came to."""

    condition: Node
    outcome: bool
    steps: tuple[Node, ...]
    """The nodes that it is computed of and itself, operands first."""

    def holds(self, value: Callable[[Source], object]) -> bool:
        """Whether it comes out the same, where `value` gives what is captured now."""
        values: dict[Node, object] = {}
        try:
            for node in self.steps:
                if node.fold is not None:
                    values[node] = node.fold(*[values[operand] for operand in node.operands])
                elif node.is_constant:
                    values[node] = node.known
                else:
                    values[node] = value(_source(node) or ())
            return bool(values[self.condition]) == self.outcome
        except (ArithmeticError, ValueError):
            return False


def decision(condition: Node) -> Decision | None:
    """The decision on a known condition; None where a later call could not look up what it depends on."""
    found: dict[Node, None] = {}
    waiting = [condition]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        if node.fold is None and not node.is_constant and not can_look_up(_source(node)):
            return None
        found[node] = None
        waiting.extend(node.operands if node.fold is not None else ())
    # Constants were made at any time and need nothing; all other nodes are numbered in the order in which they were made.
    steps: Sequence[Node] = sorted(found, key=lambda node: 0 if node.is_constant else node.order)
    return Decision(condition, bool(condition.known), tuple(steps))


def can_look_up(source: Source | None) -> bool:
    """Whether a later call finds the value of a source."""
    while source is not None and source[0] == "size":
        source = source[1]
    return source is not None and source[0] in _SOURCES


def _source(node: Node) -> Source | None:
    """Where a number or size that is captured comes from; None for other nodes."""
    return node.attribute if node.op == "capture" else node.attribute[0] if node.op == "size" else None
