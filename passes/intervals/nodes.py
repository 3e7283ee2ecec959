"""The nodes of symbolic expressions, and walking over them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attn_mlir.passes.intervals.expr import Pool


class Node:
    """One expression. `op` is its kind, `args` the nodes it is made of, `data` what else identifies it."""

    __slots__ = ("args", "data", "op", "pool", "serial")

    def __init__(self, pool: "Pool", op: str, args: "tuple[Node, ...]", data: Any, serial: int) -> None:
        self.pool, self.op, self.args, self.data, self.serial = pool, op, args, data, serial

    @property
    def constant(self) -> int | None:
        """The value of a constant (booleans: 0 or 1), else None."""
        return self.data if self.op in ("const", "bool") else None

    def __add__(self, other: "Node | int") -> "Node":
        return self.pool.total([(self, 1), (self.pool.lift(other), 1)])

    def __sub__(self, other: "Node | int") -> "Node":
        return self.pool.total([(self, 1), (self.pool.lift(other), -1)])

    def __neg__(self) -> "Node":
        return self.pool.total([(self, -1)])

    def __mul__(self, other: "Node | int") -> "Node":
        return self.pool.product(self, self.pool.lift(other))

    def __floordiv__(self, other: "Node | int") -> "Node":
        return self.pool.quotient(self, self.pool.lift(other))

    def __mod__(self, other: "Node | int") -> "Node":
        return self.pool.remainder(self, self.pool.lift(other))

    def __and__(self, other: "Node") -> "Node":
        return self.pool.both([self, other])

    def __or__(self, other: "Node") -> "Node":
        return self.pool.either([self, other])

    def __invert__(self) -> "Node":
        return self.pool.negation(self)

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.args))
        return f"{self.op}{'' if self.data is None else f'[{self.data}]'}({inner})" if self.args else f"{self.data}"


def is_boolean(node: Node) -> bool:
    return node.op in ("bool", "ge0", "eq0", "and", "or", "not", "unknown_bool")


def terms_of(node: Node) -> tuple[int, list[tuple[Node, int]]]:
    """(constant, [(atom, coefficient), ...]) of an index expression."""
    if node.op == "const":
        return node.data, []
    if node.op == "sum":
        return node.data[0], list(zip(node.args, node.data[1], strict=True))
    return 0, [(node, 1)]


def depends_on(node: Node, leaf: Node) -> bool:
    """Whether `leaf` occurs in `node`."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current is leaf:
            return True
        if current not in seen:
            seen.add(current)
            stack += current.args
    return False


def contains(node: Node, *ops: str) -> bool:
    """Whether a node of one of these kinds occurs in `node`."""
    return any(n.op in ops for n in postorder([node]))


def postorder(roots: Iterable[Node]) -> list[Node]:
    """Every node below `roots`, arguments first."""
    done: dict[Node, None] = {}
    stack = list(roots)[::-1]
    while stack:
        node = stack[-1]
        missing = [a for a in node.args if a not in done] if node not in done else []
        stack += reversed(missing)
        if not missing:
            done[stack.pop()] = None
    return list(done)
