"""Random masks of integers as Python functions: the same ones are traced, and run on tensors of positions.

What is drawn stays far below 2^63, so that PyTorch's own integers do not wrap; products may leave 2^31.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

import attn_mlir

_DTYPES = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": lambda x, y: x < y, "<=": lambda x, y: x <= y, ">": lambda x, y: x > y, ">=": lambda x, y: x >= y,
    "==": lambda x, y: x == y, "!=": lambda x, y: x != y,
}  # fmt: skip


@dataclass(eq=False)
class Captured:
    """What drawn functions capture: numbers, and vectors of integers of all types; `lengths` are those of queries and keys."""

    numbers: list[int]
    vectors: list[torch.Tensor]
    lengths: tuple[int, int] = (0, 0)

    def length(self, which: int) -> Any:
        """The number of queries (0) or keys (1): a symbol where a function is traced."""
        return self.lengths[which] if self.lengths[which] else (attn_mlir.q_len() if which == 0 else attn_mlir.kv_len())


Node = tuple[Any, ...]


@dataclass(eq=False)
class Masks:
    """Draws masks."""

    random: Random
    captured: Captured = field(init=False)

    def __post_init__(self) -> None:
        draw = self.random.randrange
        numbers = [draw(1, 40), draw(2, 17), -draw(1, 60), draw(1, 200)]
        vectors = [
            torch.randint(-9 if dtype.is_signed else 0, 90, (draw(3, 9),), dtype=dtype, generator=self._torch()) for dtype in _DTYPES
        ]
        self.captured = Captured(numbers, vectors)

    def _torch(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.random.randrange(1 << 30))

    def integer(self, depth: int, places: str = "bhqk") -> Node:
        """An integer of some of the places b, h, q and k."""
        draw = self.random.randrange
        if depth == 0 or draw(8) == 0:
            return self._leaf(places)
        kind = self.random.choice(("+", "-", "*", "//", "%", "min", "max", "abs", "clamp", "where", "<<", ">>", "&", "|", "^", "~", "neg",
                                   "+", "-", "//", "%", "clamp"))  # fmt: skip
        x = self.integer(depth - 1, places)
        match kind:
            case "//" | "%":
                return (kind, x, self._divisor())
            case "*":
                return ("*", x, self.random.choice((("const", draw(-5, 14)), ("number", draw(4)), self._leaf(places))))
            case "clamp":
                ends = [("const", draw(-4, 9)), self.random.choice((("const", draw(9, 30)), ("length", draw(2)), ("number", 3)))]
                return ("clamp", x, *ends)
            case "<<" | ">>":
                return (kind, x, ("const", draw(0, 8 if kind == "<<" else 50)))
            case "where":
                return ("where", self.condition(depth - 1, places), x, self.integer(depth - 1, places))
            case "abs" | "~" | "neg":
                return (kind, x)
        return (kind, x, self.integer(depth - 1, places))

    def condition(self, depth: int, places: str = "bhqk") -> Node:
        """A truth value."""
        draw = self.random.randrange
        if depth > 1 and draw(3) == 0:
            return (self.random.choice(("and", "or")), self.condition(depth - 1, places), self.condition(depth - 1, places))
        if depth > 1 and draw(8) == 0:
            return ("not", self.condition(depth - 1, places))
        return ("compare", self.random.choice(list(_COMPARISONS)), self.integer(depth, places), self.integer(max(0, depth - 1), places))

    def _leaf(self, places: str) -> Node:
        draw = self.random.randrange
        match draw(7):
            case 0:
                return ("const", draw(-3, 33))
            case 1:
                return ("number", draw(4))
            case 2:
                return ("length", draw(2))
            case 3:
                return ("vector", draw(len(_DTYPES)), ("place", self.random.choice(places)))
        return ("place", self.random.choice([place for place in places if place in "qk"] or list(places)))

    def _divisor(self) -> Node:
        draw = self.random.randrange
        choices = (
            ("const", draw(1, 20)),
            ("number", draw(4)),
            ("const", -draw(1, 6)),
            ("+", ("%", ("place", "h"), ("const", 3)), ("const", 2)),
        )
        return self.random.choice(choices)


def value(node: Node, captured: Captured, at: dict[str, Any]) -> Any:
    """A node at positions: traced values, or tensors."""
    kind, *rest = node
    go = lambda part: value(part, captured, at)  # noqa: E731
    match kind:
        case "const":
            return rest[0]
        case "number":
            return captured.numbers[rest[0]]
        case "length":
            return captured.length(rest[0])
        case "place":
            return at[rest[0]]
        case "vector":
            vector = captured.vectors[rest[0]]
            return vector[go(rest[1]) % vector.shape[0]].long()
        case "compare":
            return _COMPARISONS[rest[0]](_integer(go(rest[1]), at), go(rest[2]))
        case "where":
            return torch.where(go(rest[0]) & (at["k"] >= 0), _integer(go(rest[1]), at), _integer(go(rest[2]), at))
        case "clamp":
            return torch.minimum(torch.maximum(_integer(go(rest[0]), at), _integer(go(rest[1]), at)), _integer(go(rest[2]), at))
    operands = [go(part) for part in rest]
    return _OPERATIONS[kind](*operands, at) if kind in ("min", "max") else _OPERATIONS[kind](*operands)


def _integer(x: Any, at: dict[str, Any]) -> Any:
    """As a value beside positions, where it is a plain number."""
    return x + at["q"] * 0 if isinstance(x, int) else x


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "<<": operator.lshift, ">>": operator.rshift, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "~": lambda x: -1 - x, "neg": operator.neg, "abs": abs, "and": operator.and_, "or": operator.or_, "not": lambda x: ~x,
    "min": lambda x, y, at: torch.minimum(_integer(x, at), _integer(y, at)),
    "max": lambda x, y, at: torch.maximum(_integer(x, at), _integer(y, at)),
}  # fmt: skip
