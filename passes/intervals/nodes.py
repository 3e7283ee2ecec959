"""The nodes of symbolic expressions, and walking over them."""

from collections.abc import Hashable, Iterable
from typing import Any, Protocol


class Maker(Protocol):
    """What an expression asks of the pool that it is in: `expr.Pool`, which says what each method makes."""

    lower: dict["Node", list["Node"]]
    upper: dict["Node", list["Node"]]
    signs: dict["Node", bool]
    effort: int
    true: "Node"
    false: "Node"

    def node(self, op: str, args: "tuple[Node, ...]" = (), data: Hashable = None) -> "Node": ...
    def lift(self, value: "Node | int") -> "Node": ...
    def leaf(self, op: str, data: Hashable, lower: int | None = None) -> "Node": ...
    def elements(self, op: str, box: "tuple[Node, ...]", tensor: Hashable, is_bool: bool) -> "Node": ...
    def proves(self, node: "Node") -> bool: ...
    def total(self, terms: "Iterable[tuple[Node, int]]") -> "Node": ...
    def product(self, a: "Node", b: "Node") -> "Node": ...
    def quotient(self, a: "Node", b: "Node") -> "Node": ...
    def remainder(self, a: "Node", b: "Node") -> "Node": ...
    def extreme(self, op: str, nodes: "Iterable[Node]") -> "Node": ...
    def least(self, *nodes: "Node | int") -> "Node": ...
    def most(self, *nodes: "Node | int") -> "Node": ...
    def absolute(self, a: "Node") -> "Node": ...
    def select(self, condition: "Node", a: "Node", b: "Node") -> "Node": ...
    def at_least(self, a: "Node", b: "Node | int") -> "Node": ...
    def equal(self, a: "Node", b: "Node | int") -> "Node": ...
    def truth(self, value: bool) -> "Node": ...
    def both(self, nodes: "Iterable[Node]") -> "Node": ...
    def either(self, nodes: "Iterable[Node]") -> "Node": ...
    def negation(self, a: "Node") -> "Node": ...


class Node:
    """One expression. `op` is its kind, `args` the nodes it is made of, `data` what else identifies it."""

    __slots__ = ("args", "data", "op", "pool", "serial")

    def __init__(self, pool: Maker, op: str, args: "tuple[Node, ...]", data: Any, serial: int) -> None:
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
