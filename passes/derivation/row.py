"""Reads pieces into expressions: the row program of an `attn.attention`, and the pieces of an `attn.online`."""

from dataclasses import dataclass, field

from attn_mlir.dialects.fastmath import flag_of
from attn_mlir.mlir import ir
from attn_mlir.passes.derivation import evaluate
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.expr import BOOL, FLOAT, Expr, Graph
from attn_mlir.passes.locations import location_name, place_of
from attn_mlir.passes.order import deepest_first
from attn_mlir.passes.regions import block_of, pieces, scores_in
from attn_mlir.passes.sequences import reads_row


@dataclass(frozen=True)
class Weight:
    """Output number `output` sums `node` times the rows of `source`: 0 is v, n the tensor of the n-th `attn.term`."""

    node: Expr
    source: int = 0
    output: int = 0


@dataclass(frozen=True)
class Reduction:
    """r = reduce_j value(s_j); `value` may read earlier reductions."""

    kind: str
    value: Expr
    name: str
    location: ir.Location


@dataclass(eq=False)
class Row:
    """A row program: reductions in order, the weights (p first), and the row outputs; `scores` names what varies."""

    graph: Graph
    reductions: list[Reduction]
    weights: list[Weight]
    outputs: list[Expr]
    params: "Params"
    double: bool
    scores: list[str]

    def red(self, index: int) -> Expr:
        return self.graph.leaf("red", index)

    @property
    def score_leaves(self) -> list[Expr]:
        return [self.graph.leaf("s", k) for k in range(len(self.scores))]

    @property
    def o_count(self) -> int:
        """How many outputs are sums of weighted tensors."""
        return 1 + max(weight.output for weight in self.weights)

    @property
    def names(self) -> dict[Expr, str]:
        scores = dict(zip(self.score_leaves, self.scores, strict=True))
        return scores | {self.red(i): r.name for i, r in enumerate(self.reductions)} | self.params.names


@dataclass(eq=False)
class Params:
    """Values that do not vary along the row, by the index of their leaf."""

    graph: Graph
    block: ir.Block
    values: list[ir.Value] = field(default_factory=list)
    leaves: list[Expr] = field(default_factory=list)
    names: dict[Expr, str] = field(default_factory=dict)
    _found: dict[ir.Value, Expr] = field(default_factory=dict)

    def leaf(self, value: ir.Value) -> Expr:
        if value not in self._found:
            type_ = FLOAT if _is_float(value.type) else str(value.type)
            node = self.graph.leaf("param", len(self.values), type_)
            self.values.append(value)
            self.leaves.append(node)
            self._found[value] = node
            self.names[node] = _param_name(value) or f"param{len(self.values) - 1}"
        return self._found[value]

    def uses_position(self, node: Expr) -> bool:
        """True when the parameter depends on the batch, head or position, so that `attn.merge` cannot compute it."""
        return self._reaches_arguments(self.values[int(node.attr)])  # type: ignore[call-overload]

    def is_saved(self, node: Expr) -> bool:
        """True for what is read from a tensor [B, Hq, Sq] at the row: a value of it, which may be -inf or NaN if the row has no keys."""
        value = self.values[int(node.attr)]  # type: ignore[call-overload]
        if isinstance(value, ir.BlockArgument) or value.owner.operation.name != "tensor.extract":
            return False
        position = list(self.block.arguments)[scores_in(self.block) :][:3]
        return reads_row(self.block.owner.operation.parent, list(value.owner.operation.operands)[1:], position)

    def _reaches_arguments(self, value: ir.Value) -> bool:
        seen, todo = set[ir.Value](), [value]
        while todo:
            v = todo.pop()
            if isinstance(v, ir.BlockArgument):
                if v.owner == self.block:
                    return True
            elif v not in seen and v.owner.operation.block == self.block:
                seen.add(v)
                todo += v.owner.operation.operands
        return False


def read_row(row: ir.Operation) -> Row:
    """The row program of an `attn.row`."""
    graph, attention = Graph(), row.parent
    block = block_of(row)
    scores = list(block.arguments)[: scores_in(block)]
    reader = RowReader(graph, block, {s: graph.leaf("s", k) for k, s in enumerate(scores)}, rows=True)
    results, terms = reader.results(), pieces(attention, "attn.term")
    outputs = results[1 + len(terms) :]
    for node in outputs:
        if node.varies:
            raise DerivationError("a row output varies along the row; reduce it first, for example with .sum() or .max()")
    weights = [Weight(results[0])]
    for term, source, node in zip(terms, _sources(attention, terms), results[1:], strict=False):
        weights.append(Weight(node, source, ir.IntegerAttr(term.attributes["output"]).value))
    double = isinstance(scores[0].type, ir.F64Type)
    return Row(graph, reader.reductions, weights, outputs, reader.params, double, score_names(scores))


def _sources(attention: ir.Operation, terms: list[ir.Operation]) -> list[int]:
    """For each term the first source that is its tensor: 0 for v itself, as `attn.value` changes it."""
    tensors = [term.operands[0] for term in terms]
    return [0 if attention.operands[2] == tensor else 1 + tensors.index(tensor) for tensor in tensors]


def score_names(scores: list[ir.Value]) -> list[str]:
    """ "s" for the first score, the user's names or numbers for the others."""
    named = ["s", *[location_name(score.location) or "s" for score in scores[1:]]]
    return ["s", *[name if named.count(name) == 1 else f"s{k}" for k, name in enumerate(named[1:], 1)]]


@dataclass(eq=False)
class RowReader:
    """Turns the values of one block into expressions; with `rows`, reductions become leaves and are collected."""

    graph: Graph
    block: ir.Block
    known: dict[ir.Value, Expr]
    rows: bool = False
    reductions: list[Reduction] = field(default_factory=list)
    params: Params = field(init=False)

    def __post_init__(self) -> None:
        self.params = Params(self.graph, self.block)

    def results(self) -> list[Expr]:
        """Expressions of what the block yields, in order. Dead ops are not read, so reductions come in block order."""
        operations = list(self.block.operations)
        if self.rows:
            for op in operations:
                if op.operation.name == "attn.reduce":
                    self.read(op.operation.results[0])
        return [self.read(v) for v in operations[-1].operation.operands]

    def read(self, value: ir.Value) -> Expr:
        for v in deepest_first(value, self.known, self._operands):
            node = self.known[v] = self._read(v)
            if not node.is_leaf and not isinstance(v, ir.BlockArgument) and (place := place_of(v.owner.operation.location)) is not None:
                self.graph.places.setdefault(node, place)
        return self.known[value]

    def _operands(self, value: ir.Value) -> list[ir.Value]:
        inside = not isinstance(value, ir.BlockArgument) and value.owner.operation.block == self.block
        return list(value.owner.operation.operands) if inside else []

    def _read(self, value: ir.Value) -> Expr:
        if isinstance(value, ir.BlockArgument):
            return self.params.leaf(value)
        op = value.owner.operation
        if op.name == "arith.constant" and (_is_float(value.type) or str(value.type) == BOOL):
            return self._constant(op, value)
        if op.block != self.block:
            return self.params.leaf(value)
        if op.name == "attn.detach":
            return self.read(op.operands[0])
        if op.name == "attn.slope":
            return self.graph.const(0.0)
        if op.name == "attn.reduce":
            return self._reduce(op)
        args = [self.read(v) for v in op.operands]
        scalars = all(a.type in (FLOAT, BOOL) for a in args)
        if args and scalars and evaluate.known(op.name) and (_is_float(value.type) or str(value.type) == BOOL):
            attr = op.attributes["predicate"].value if op.name == "arith.cmpf" else flag_of(op)
            return self.graph.node(op.name, *args, attr=attr, type=FLOAT if _is_float(value.type) else BOOL)
        if any(a.varies or a.reds for a in args):
            raise DerivationError(f"'{op.name}' of a value that varies along the row is not understood")
        return self.params.leaf(value)

    def _constant(self, op: ir.Operation, value: ir.Value) -> Expr:
        attribute = op.attributes["value"]
        if _is_float(value.type):
            return self.graph.const(ir.FloatAttr(attribute).value)
        return self.graph.node("const", attr=bool(ir.IntegerAttr(attribute).value), type=BOOL)

    def _reduce(self, op: ir.Operation) -> Expr:
        kind, value = ir.StringAttr(op.attributes["kind"]).value, self.read(op.operands[0])
        if not self.rows:
            return self.graph.reduce(kind, value)
        for i, known in enumerate(self.reductions):
            if (known.kind, known.value) == (kind, value):
                return self.graph.leaf("red", i)
        names = [r.name for r in self.reductions]
        wanted = location_name(op.location) or kind
        name = wanted if wanted not in names else f"{wanted}{sum(n.startswith(wanted) for n in names)}"
        self.reductions.append(Reduction(kind, value, name, op.location))
        return self.graph.leaf("red", len(self.reductions) - 1)


def _param_name(value: ir.Value) -> str | None:
    while True:
        name = location_name(value.location)
        if name or isinstance(value, ir.BlockArgument):
            return name
        op = value.owner.operation
        if op.name == "tensor.extract":
            return location_name(op.operands[0].location)
        if len(op.operands) != 1:
            return None
        value = op.operands[0]


def _is_float(type_: ir.Type) -> bool:
    return isinstance(type_, (ir.F32Type, ir.F64Type))
