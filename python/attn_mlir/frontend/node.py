"""The expression graph that tracing builds; `emit` turns it into IR.

Nodes are plain Python objects, so a traced value that escapes from its function is harmless: no IR handle dangles.
"""

import dataclasses
from collections.abc import Callable
from types import CodeType
from typing import Any, Literal, NamedTuple

Kind = Literal["float", "int", "bool"]


class Position(NamedTuple):
    """A place in the user's code: code object and instruction offset; `where.resolve` finds line and column.

    Code objects count by identity: those of two files, as of two cells of a notebook, may be equal, and those that dynamo makes may hold
    what has no hash.
    """

    code: CodeType
    offset: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and self.code is other.code and self.offset == other.offset

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((id(self.code), self.offset))


Source = tuple[Any, ...]
"""Where the value of a function argument comes from; see `captures`."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One scalar of the program.

    `op` is an MLIR op name, or one of "constant" (attribute: the value), "argument" (of the piece `scope`; attribute:
    its name), "capture" (attribute: source), "size" (of q, k or a captured tensor; attribute: source) and "cast".
    """

    op: str
    kind: Kind
    operands: tuple["Node", ...] = ()
    attribute: Any = None
    order: int = 0
    """Creation order; the emitted program follows it."""
    scope: object = None
    """The piece this node belongs to; None for constants, captures and sizes, which are valid in every piece."""
    varying: bool = False
    """Whether the value differs along the row of keys."""
    nonnegative: bool = False
    position: Position | None = None
    known: int | float | bool | None = None
    """The concrete value, where it follows from constants and captured scalars."""
    sources: frozenset[Source] = frozenset()
    """What `known` was computed from; using `known` to decide something specialises the trace on these."""
    fold: Callable[..., Any] | None = None
    """Computes `known` from that of the operands, where it is known but no constant."""

    @property
    def is_constant(self) -> bool:
        return self.known is not None and not self.sources
