"""Scalar expressions as a hash-consed graph: the derivation's own view of a piece.

Operation nodes carry MLIR's op names. Leaves are the scores "s", reductions "red", parameters "param" (values that do
not vary along the row), row states ("state", and per side of an update "old", "a", "b"), accumulators "acc", and the
centred score "u". Two equal expressions are the same object, so identity is equality.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from attn_mlir.passes.order import deepest_first

_NO_REDS: frozenset[int] = frozenset()
_VARYING_LEAVES = ("s", "u")
FLOAT = "f"
BOOL = "i1"


@dataclass(frozen=True, eq=False, slots=True)
class Expr:
    """One expression; `varies` along the row, `reds` are the reductions it reads."""

    id: int
    op: str
    args: tuple["Expr", ...]
    attr: object
    type: str
    varies: bool
    reds: frozenset[int]

    def __lt__(self, other: "Expr") -> bool:
        return self.id < other.id

    @property
    def is_const(self) -> bool:
        return self.op == "const"

    @property
    def is_leaf(self) -> bool:
        return not self.args


@dataclass(eq=False)
class Graph:
    """Makes nodes. The helpers below `node` fold what is exact and obvious."""

    places: dict[Expr, object] = field(default_factory=dict)
    """Where the author wrote a node, as a location; of what is made of it by rules, where that was written."""
    _table: dict[tuple[object, ...], Expr] = field(default_factory=dict)

    def node(self, op: str, *args: Expr, attr: object = None, type: str = FLOAT) -> Expr:
        key = (op, attr if op != "const" else repr(attr), type, *args)
        found = self._table.get(key)
        if found is not None:
            return found
        if op == "reduce":
            varies = False
        else:
            varies = op in _VARYING_LEAVES or any(a.varies for a in args)
        reds = frozenset([attr]) if op == "red" else frozenset().union(*[a.reds for a in args]) if args else _NO_REDS
        new = Expr(len(self._table), op, args, attr, type, varies, reds)  # type: ignore[arg-type]
        self._table[key] = new
        return new

    def leaf(self, op: str, index: int = 0, type: str = FLOAT) -> Expr:
        return self.node(op, attr=index, type=type)

    @property
    def score(self) -> Expr:
        return self.leaf("s")

    def const(self, value: float) -> Expr:
        return self.node("const", attr=float(value))

    def add(self, x: Expr, y: Expr) -> Expr:
        if _is(x, 0.0):
            return y
        if _is(y, 0.0):
            return x
        if y.op == "arith.negf":
            return self.sub(x, y.args[0])
        if x.op == "arith.negf":
            return self.sub(y, x.args[0])
        return self.node("arith.addf", x, y)

    def sub(self, x: Expr, y: Expr) -> Expr:
        if _is(y, 0.0):
            return x
        return self.neg(y) if _is(x, 0.0) else self.node("arith.subf", x, y)

    def neg(self, x: Expr) -> Expr:
        if x.is_const:
            return self.const(-float(x.attr))  # type: ignore[arg-type]
        return x.args[0] if x.op == "arith.negf" else self.node("arith.negf", x)

    def mul(self, x: Expr, y: Expr) -> Expr:
        if _is(x, 1.0):
            return y
        if _is(y, 1.0):
            return x
        if _is(x, -1.0):
            return self.neg(y)
        return self.neg(x) if _is(y, -1.0) else self.node("arith.mulf", x, y)

    def div(self, x: Expr, y: Expr) -> Expr:
        return x if _is(y, 1.0) else self.node("arith.divf", x, y)

    def unary(self, op: str, x: Expr) -> Expr:
        return self.node(op, x)

    def maximum(self, x: Expr, y: Expr) -> Expr:
        return self.node("arith.maximumf", x, y)

    def minimum(self, x: Expr, y: Expr) -> Expr:
        return self.node("arith.minimumf", x, y)

    def select(self, condition: Expr, x: Expr, y: Expr) -> Expr:
        return x if x is y else self.node("arith.select", condition, x, y, type=x.type)

    def equal(self, x: Expr, y: Expr) -> Expr:
        """Ordered equality: false for NaN."""
        return self.node("arith.cmpf", x, y, attr=1, type=BOOL)

    def both(self, x: Expr, y: Expr) -> Expr:
        return self.node("arith.andi", x, y, type=BOOL)

    def reduce(self, kind: str, x: Expr) -> Expr:
        return self.node("reduce", x, attr=kind)

    def substitute(self, root: Expr, replace: Callable[[Expr], Expr | None], memo: dict[Expr, Expr] | None = None) -> Expr:
        """`root` with every node for which `replace` gives one replaced by it."""
        memo = {} if memo is None else memo
        found: dict[Expr, Expr | None] = {}

        def arguments(n: Expr) -> tuple[Expr, ...]:
            found[n] = replace(n)
            return n.args if found[n] is None else ()

        for n in deepest_first(root, memo, arguments):
            memo[n] = found[n] or self._with(n, tuple(memo[a] for a in n.args))
        return memo[root]

    def rebuild(self, root: Expr, change: Callable[[Expr], Expr], memo: dict[Expr, Expr] | None = None) -> Expr:
        """`root` with `change` applied to every number in it, the innermost first; conditions stay."""
        memo = {} if memo is None else memo
        for n in deepest_first(root, memo, lambda n: () if n.type == BOOL else n.args):
            memo[n] = n if n.type == BOOL else self._placed(change(self._with(n, tuple(memo[a] for a in n.args))), n)
        return memo[root]

    def _with(self, n: Expr, args: tuple[Expr, ...]) -> Expr:
        if all(a is b for a, b in zip(args, n.args, strict=True)):
            return n
        return self._placed(self.node(n.op, *args, attr=n.attr, type=n.type), n)

    def _placed(self, new: Expr, old: Expr) -> Expr:
        if old in self.places:
            self.places.setdefault(new, self.places[old])
        return new


def _is(x: Expr, value: float) -> bool:
    return x.is_const and x.attr == value


def leaves(*roots: Expr) -> set[Expr]:
    """All leaves below `roots`."""
    return {n for n in nodes(*roots) if n.is_leaf}


def nodes(*roots: Expr, known: Container[Expr] = ()) -> set[Expr]:
    """All nodes below and including `roots`, without those `known` and what only they need."""
    seen: set[Expr] = set()
    todo = list(roots)
    while todo:
        n = todo.pop()
        if n not in seen and n not in known:
            seen.add(n)
            todo.extend(n.args)
    return seen


_INFIX = {
    "arith.addf": ("+", 1),
    "arith.subf": ("-", 1),
    "arith.mulf": ("*", 2),
    "arith.divf": ("/", 2),
    "arith.andi": ("and", -1),
    "arith.ori": ("or", -1),
}
_PREDICATES = ("false", "==", ">", ">=", "<", "<=", "!=", "ord", "==", ">", ">=", "<", "<=", "!=", "uno", "true")
_CALLS = {"arith.maximumf": "max", "arith.minimumf": "min", "math.absf": "abs", "arith.select": "where"}


_LONGEST = 240


def text(root: Expr, names: Mapping[Expr, str]) -> str:
    """`root` in readable infix notation; `names` names leaves (and, where given, inner nodes). Long parts become "..."."""
    return _Text(root, names).of(root, 0, _LONGEST)


class _Text:
    """Writes an expression within a budget of nodes: shared parts are written out, so that a graph may be a huge tree."""

    def __init__(self, root: Expr, names: Mapping[Expr, str]) -> None:
        self._names = names
        self._sizes: dict[Expr, int] = {}
        for n in sorted(nodes(root)):
            self._sizes[n] = 1 if n in names else 1 + sum(self._sizes[a] for a in n.args)

    def of(self, n: Expr, outer: int, budget: int) -> str:
        if n in self._names:
            return self._names[n]
        if n.is_const:
            return f"{n.attr:g}" if isinstance(n.attr, float) else str(n.attr).lower()
        if n.is_leaf:
            return "u" if n.op == "u" else "s" if (n.op, n.attr) == ("s", 0) else f"{n.op}{n.attr}"
        if self._sizes[n] > budget and budget < 2 * len(n.args):
            return "..."
        left = budget - 1

        def argument(i: int, level: int) -> str:
            """Small arguments are written whole; the others share what is left."""
            others = sum(self._sizes[a] for k, a in enumerate(n.args) if k != i)
            return self.of(n.args[i], level, max(left - others, left // len(n.args)))

        if n.op == "arith.negf":
            return _wrap(f"-{argument(0, 3)}", outer > 1)
        if n.op == "arith.cmpf":
            return _wrap(f"{argument(0, 1)} {_PREDICATES[n.attr]} {argument(1, 1)}", outer > 0)  # type: ignore[index]
        if n.op in _INFIX:
            symbol, level = _INFIX[n.op]
            right = level + 1 if symbol in ("-", "/") else level
            return _wrap(f"{argument(0, level)} {symbol} {argument(1, right)}", outer > level)
        if n.op == "math.powf":
            return _wrap(f"{argument(0, 4)}^{argument(1, 4)}", outer > 3)
        call = f"{n.attr} over block" if n.op == "reduce" else _CALLS.get(n.op, n.op.rpartition(".")[2])
        return f"{call}({', '.join(argument(i, 0) for i in range(len(n.args)))})"


def _wrap(inner: str, parentheses: bool) -> str:
    return f"({inner})" if parentheses else inner
