"""What is differentiated: an attention, or a derivative of one, as expressions over pairs of a query and a key.

Leaves of the expressions: "x" (products of a query and a key tensor), "s" (scores: named expressions of products), "red"
(reductions over the keys of a row: named, too), "param" (anything else that a piece reads) and, of a parameter that reads a
captured tensor, "dparam" (the same read of the tensor that holds its tangent or adjoint), "row" (a tensor [B, Hq, Sq]) and
"one" (the number 1, once for each key).
A *pair* expression differs from key to key; a *row* expression does not.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

from attn_mlir.mlir import ir
from attn_mlir.passes.derivation.expr import BOOL, Expr, Graph, leaves
from attn_mlir.passes.differentiation.errors import DifferentiationError
from attn_mlir.passes.order import deepest_first
from attn_mlir.passes.regions import maker

PAIR, ROW = "pair", "row"


@dataclass(frozen=True, eq=False)
class Read:
    """An element of a captured floating tensor: an argument of the function, at indices that the piece computes."""

    tensor: ir.Value
    indices: tuple[ir.Value, ...]


@dataclass(frozen=True, eq=False)
class Param:
    """A value that a piece gets from outside of the scalar arithmetic: captured, or made of indices."""

    value: ir.Value
    block: ir.Block
    level: str
    read: Read | None
    name: str


@dataclass(frozen=True, eq=False)
class ModelReduction:
    """r = reduce over the keys of `value`. `given` says where its value comes from when it need not be computed.

    "saved": the forward pass returned it. ("row_dot", a, b): it is the product of the rows of two tensors.
    """

    kind: str
    value: Expr
    name: str
    given: object = None
    origin: ir.Value | None = None
    location: ir.Location | None = None


@dataclass(frozen=True, eq=False)
class Sum:
    """An output: sums of weights times tensors, over keys ("query") or over queries ("key")."""

    side: str
    name: str
    terms: tuple[tuple[Expr, str], ...]


@dataclass(frozen=True, eq=False)
class RowValue:
    """An output: one number for each query row."""

    name: str
    value: Expr


@dataclass(frozen=True, eq=False)
class Scatter:
    """An output: `weight` added at the element that `param` reads; over all pairs, or over rows when it does not vary."""

    param: Expr
    weight: Expr


@dataclass(eq=False)
class RowModel:
    """Products and named expressions, and outputs made of them. `products` pairs names of tensors.

    `tolerance` is how precise the program's constants are, relative to their size; `near` how far below a maximum, relative to
    it, a score may be that is recomputed.
    """

    graph: Graph
    products: list[tuple[str, str]]
    scores: list[Expr]
    reductions: list[ModelReduction]
    params: list[Param]
    tolerance: float = 1e-13
    near: float = 0.0
    given: int = 1
    """How many of the products, the first ones, the attention itself makes scores of."""
    large: bool = False
    """Whether scores may be finite and large, as beside masks of numbers: `near` says nothing of what is added to products."""
    sums: list[Sum] = field(default_factory=list)
    rows: list[RowValue] = field(default_factory=list)
    scatters: list[Scatter] = field(default_factory=list)
    locations: dict[Expr, ir.Location] = field(default_factory=dict)
    """Where the user wrote what became a node."""
    _pair: dict[Expr, bool] = field(default_factory=dict)

    def roots(self) -> list[Expr]:
        """All expressions: of outputs, reductions and scores."""
        weights = [w for s in self.sums for w, _ in s.terms] + [s.weight for s in self.scatters]
        return [*weights, *[r.value for r in self.rows], *[r.value for r in self.reductions], *self.scores]

    @property
    def has_dropout(self) -> bool:
        """Whether a parameter tells what dropout keeps."""
        return any(maker(p.value, "attn.kept") is not None for p in self.params)

    def product(self, query: str, key: str) -> Expr:
        """The leaf of a product; a new one is added."""
        if (query, key) not in self.products:
            self.products.append((query, key))
        return self.graph.leaf("x", self.products.index((query, key)))

    def red(self, index: int) -> Expr:
        return self.graph.leaf("red", index)

    def param(self, leaf: Expr) -> Param:
        return self.params[int(leaf.attr)]  # type: ignore[call-overload]

    def row_leaf(self, name: str) -> Expr:
        """A tensor [B, Hq, Sq] read at the row."""
        return self.graph.node("row", attr=name)

    def adjoint_read(self, leaf: Expr, prefix: str) -> Expr:
        """The element of the tensor called `prefix` + (name of the tensor) that `leaf` reads of its own."""
        return self.graph.node("dparam", attr=(leaf.attr, prefix))

    def is_pair(self, node: Expr) -> bool:
        """Whether a value differs from key to key."""
        for n in deepest_first(node, self._pair, lambda n: n.args):
            self._pair[n] = any(self._pair[a] for a in n.args) if n.args else self._leaf_is_pair(n)
        return self._pair[node]

    def _leaf_is_pair(self, leaf: Expr) -> bool:
        if leaf.op == "param":
            return self.param(leaf).level == PAIR
        if leaf.op == "dparam":
            return self.params[leaf.attr[0]].level == PAIR  # type: ignore[index]
        return leaf.op in ("x", "s", "one")

    def computed(self) -> list[int]:
        """The reductions that the outputs need, in order."""
        weights = [w for s in self.sums for w, _ in s.terms] + [s.weight for s in self.scatters]
        return sorted(self.reductions_of(*weights, *[r.value for r in self.rows]))

    def where_keys(self, count: Expr, value: Expr) -> Expr:
        """A value of the row, 0 where `count` says that it has no key."""
        g = self.graph
        return g.select(g.node("arith.cmpf", count, g.const(0.0), attr=2, type=BOOL), value, g.const(0.0))

    def below(self, roots: Iterable[Expr], known: Container[Expr] = ()) -> set[Expr]:
        """All nodes below `roots`, through named scores, but not below what is `known`."""
        found: set[Expr] = set()
        todo = list(roots)
        while todo:
            n = todo.pop()
            if n not in found:
                found.add(n)
                if n not in known:
                    todo += [self.scores[int(n.attr)]] if n.op == "s" else n.args  # type: ignore[call-overload]
        return found

    def reductions_of(self, *roots: Expr) -> set[int]:
        """The reductions that expressions depend on, through other reductions too; scores depend on none."""
        found: set[int] = set()
        todo = list(roots)
        while todo:
            for leaf in leaves(todo.pop()):
                if leaf.op == "red" and leaf.attr not in found:
                    found.add(int(leaf.attr))  # type: ignore[call-overload]
                    todo.append(self.reductions[int(leaf.attr)].value)  # type: ignore[call-overload]
        return found


def largest(roots: Iterable[Expr], passed: Callable[[Expr], bool], wanted: Callable[[Expr], bool]) -> list[Expr]:
    """The largest expressions below `roots` that are `wanted`, in the order in which they are met; none below what is `passed`."""
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()
    todo = list(roots)[::-1]
    while todo:
        n = todo.pop()
        if n in seen or passed(n):
            continue
        seen.add(n)
        if wanted(n):
            found[n] = None
        else:
            todo += reversed(n.args)
    return list(found)


def location_error(message: str, value: ir.Value) -> DifferentiationError:
    """An error at the op that makes a value."""
    return DifferentiationError(message, value.location if isinstance(value, ir.BlockArgument) else value.owner.operation.location)
