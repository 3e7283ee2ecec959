"""The nodes of symbolic expressions, and walking over them."""

from collections.abc import Container, Hashable, Iterable
from typing import Any, Protocol


class Maker(Protocol):
    """What an expression asks of the pool that it is in: `expr.Pool`, which says what each method makes."""

    lower: dict["Bound", list["Bound"]]
    upper: dict["Bound", list["Bound"]]
    signs: dict["Bound", bool]
    saturated: dict["Bound", "Bound"]
    effort: int
    true: "Bound"
    false: "Bound"

    def node(self, op: str, args: "tuple[Bound, ...]" = (), data: Hashable = None) -> "Bound": ...
    def lift(self, value: "Bound | int") -> "Bound": ...
    def leaf(self, op: str, data: Hashable, lower: int | None = None) -> "Bound": ...
    def elements(self, op: str, box: "tuple[Bound, ...]", tensor: Hashable, is_bool: bool) -> "Bound": ...
    def proves(self, node: "Bound") -> bool: ...
    def total(self, terms: "Iterable[tuple[Bound, int]]") -> "Bound": ...
    def product(self, a: "Bound", b: "Bound") -> "Bound": ...
    def quotient(self, a: "Bound", b: "Bound") -> "Bound": ...
    def remainder(self, a: "Bound", b: "Bound") -> "Bound": ...
    def extreme(self, op: str, nodes: "Iterable[Bound]") -> "Bound": ...
    def least(self, *nodes: "Bound | int") -> "Bound": ...
    def most(self, *nodes: "Bound | int") -> "Bound": ...
    def absolute(self, a: "Bound") -> "Bound": ...
    def select(self, condition: "Bound", a: "Bound", b: "Bound") -> "Bound": ...
    def at_least(self, a: "Bound", b: "Bound | int") -> "Bound": ...
    def equal(self, a: "Bound", b: "Bound | int") -> "Bound": ...
    def truth(self, value: bool) -> "Bound": ...
    def both(self, nodes: "Iterable[Bound]") -> "Bound": ...
    def either(self, nodes: "Iterable[Bound]") -> "Bound": ...
    def negation(self, a: "Bound") -> "Bound": ...


class Bound:
    """One expression. `op` is its kind, `args` the nodes it is made of, `data` what else identifies it."""

    __slots__ = ("args", "data", "op", "pool", "serial")

    def __init__(self, pool: Maker, op: str, args: "tuple[Bound, ...]", data: Any, serial: int) -> None:
        self.pool, self.op, self.args, self.data, self.serial = pool, op, args, data, serial

    @property
    def constant(self) -> int | None:
        """The value of a constant (booleans: 0 or 1), else None."""
        return self.data if self.op in ("const", "bool") else None

    def __add__(self, other: "Bound | int") -> "Bound":
        return self.pool.total([(self, 1), (self.pool.lift(other), 1)])

    def __sub__(self, other: "Bound | int") -> "Bound":
        return self.pool.total([(self, 1), (self.pool.lift(other), -1)])

    def __neg__(self) -> "Bound":
        return self.pool.total([(self, -1)])

    def __mul__(self, other: "Bound | int") -> "Bound":
        return self.pool.product(self, self.pool.lift(other))

    def __floordiv__(self, other: "Bound | int") -> "Bound":
        return self.pool.quotient(self, self.pool.lift(other))

    def __mod__(self, other: "Bound | int") -> "Bound":
        return self.pool.remainder(self, self.pool.lift(other))

    def __and__(self, other: "Bound") -> "Bound":
        return self.pool.both([self, other])

    def __or__(self, other: "Bound") -> "Bound":
        return self.pool.either([self, other])

    def __invert__(self) -> "Bound":
        return self.pool.negation(self)

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.args))
        return f"{self.op}{'' if self.data is None else f'[{self.data}]'}({inner})" if self.args else f"{self.data}"


def is_boolean(node: Bound) -> bool:
    return node.op in ("bool", "ge0", "eq0", "and", "or", "not", "unknown_bool")


def terms_of(node: Bound) -> tuple[int, list[tuple[Bound, int]]]:
    """(constant, [(atom, coefficient), ...]) of an index expression."""
    if node.op == "const":
        return node.data, []
    if node.op == "sum":
        return node.data[0], list(zip(node.args, node.data[1], strict=True))
    return 0, [(node, 1)]


def depends_on(node: Bound, leaf: Bound) -> bool:
    """Whether `leaf` occurs in `node`."""
    seen: set[Bound] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current is leaf:
            return True
        if current not in seen:
            seen.add(current)
            stack += current.args
    return False


def contains(node: Bound, *ops: str) -> bool:
    """Whether a node of one of these kinds occurs in `node`."""
    return any(n.op in ops for n in postorder([node]))


def postorder(roots: Iterable[Bound], known: Container[Bound] = ()) -> list[Bound]:
    """Every node below `roots`, arguments first. Those that are `known` are left out, with what is only below them."""
    done: dict[Bound, None] = {}
    stack = [root for root in roots if root not in known][::-1]
    while stack:
        node = stack[-1]
        missing = [a for a in node.args if a not in done and a not in known] if node not in done else []
        stack += reversed(missing)
        if not missing:
            done[stack.pop()] = None
    return list(done)
