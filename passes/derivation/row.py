"""Reads pieces into expressions: the row program of an `attn.attention`, and the pieces of an `attn.online`."""

from dataclasses import dataclass, field

from attn_mlir.mlir import ir
from attn_mlir.passes.derivation import evaluate
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.expr import BOOL, FLOAT, Graph, Node
from attn_mlir.passes.regions import block_of


@dataclass(frozen=True)
class Reduction:
    """r = reduce_j value(s_j); `value` may read earlier reductions."""

    kind: str
    value: Node
    name: str
    location: ir.Location


@dataclass(eq=False)
class Row:
    """A row program: reductions in order, the weight p, and the row outputs."""

    graph: Graph
    reductions: list[Reduction]
    weight: Node
    outputs: list[Node]
    params: "Params"
    double: bool

    def red(self, index: int) -> Node:
        return self.graph.leaf("red", index)

    @property
    def names(self) -> dict[Node, str]:
        return {self.red(i): r.name for i, r in enumerate(self.reductions)} | self.params.names


@dataclass(eq=False)
class Params:
    """Values that do not vary along the row, by the index of their leaf."""

    graph: Graph
    block: ir.Block
    values: list[ir.Value] = field(default_factory=list)
    leaves: list[Node] = field(default_factory=list)
    names: dict[Node, str] = field(default_factory=dict)
    _found: dict[ir.Value, Node] = field(default_factory=dict)

    def leaf(self, value: ir.Value) -> Node:
        if value not in self._found:
            type_ = FLOAT if _is_float(value.type) else str(value.type)
            node = self.graph.leaf("param", len(self.values), type_)
            self.values.append(value)
            self.leaves.append(node)
            self._found[value] = node
            self.names[node] = _param_name(value) or f"param{len(self.values) - 1}"
        return self._found[value]

    def uses_position(self, node: Node) -> bool:
        """True when the parameter depends on the batch, head or position, so that `attn.merge` cannot compute it."""
        return self._reaches_arguments(self.values[int(node.attr)])  # type: ignore[call-overload]

    def _reaches_arguments(self, value: ir.Value) -> bool:
        if isinstance(value, ir.BlockArgument):
            return value.owner == self.block
        owner = value.owner.operation
        return owner.block == self.block and any(self._reaches_arguments(v) for v in owner.operands)


def read_row(piece: ir.Operation) -> Row:
    """The row program of an `attn.row`."""
    graph = Graph()
    block = block_of(piece)
    reader = Reader(graph, block, {block.arguments[0]: graph.score}, rows=True)
    weight, *outputs = reader.results()
    for node in outputs:
        if node.varies:
            raise DerivationError("a row output varies along the row; reduce it first, for example with .sum() or .max()")
    return Row(graph, reader.reductions, weight, outputs, reader.params, isinstance(block.arguments[0].type, ir.F64Type))


@dataclass(eq=False)
class Reader:
    """Turns the values of one block into expressions; with `rows`, reductions become leaves and are collected."""

    graph: Graph
    block: ir.Block
    known: dict[ir.Value, Node]
    rows: bool = False
    reductions: list[Reduction] = field(default_factory=list)
    params: Params = field(init=False)

    def __post_init__(self) -> None:
        self.params = Params(self.graph, self.block)

    def results(self) -> list[Node]:
        """Expressions of what the block yields, in order. Dead ops are not read, so reductions come in block order."""
        operations = list(self.block.operations)
        if self.rows:
            for op in operations:
                if op.operation.name == "attn.reduce":
                    self.read(op.operation.results[0])
        return [self.read(v) for v in operations[-1].operation.operands]

    def read(self, value: ir.Value) -> Node:
        if value not in self.known:
            self.known[value] = self._read(value)
        return self.known[value]

    def _read(self, value: ir.Value) -> Node:
        if isinstance(value, ir.BlockArgument):
            return self.params.leaf(value)
        op = value.owner.operation
        if op.name == "arith.constant" and (_is_float(value.type) or str(value.type) == BOOL):
            return self._constant(op, value)
        if op.block != self.block:
            return self.params.leaf(value)
        if op.name == "attn.detach":
            return self.read(op.operands[0])
        if op.name == "attn.reduce":
            return self._reduce(op)
        args = [self.read(v) for v in op.operands]
        scalars = all(a.type in (FLOAT, BOOL) for a in args)
        if args and scalars and evaluate.known(op.name) and (_is_float(value.type) or str(value.type) == BOOL):
            attr = op.attributes["predicate"].value if op.name == "arith.cmpf" else None
            return self.graph.node(op.name, *args, attr=attr, type=FLOAT if _is_float(value.type) else BOOL)
        if any(a.varies or a.reds for a in args):
            raise DerivationError(f"'{op.name}' of a value that varies along the row is not understood")
        return self.params.leaf(value)

    def _constant(self, op: ir.Operation, value: ir.Value) -> Node:
        attribute = op.attributes["value"]
        if _is_float(value.type):
            return self.graph.const(ir.FloatAttr(attribute).value)
        return self.graph.node("const", attr=bool(ir.IntegerAttr(attribute).value), type=BOOL)

    def _reduce(self, op: ir.Operation) -> Node:
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


def location_name(location: ir.Location) -> str | None:
    """The user's name for a value, when its location carries one."""
    if isinstance(location, ir.NameLoc):
        return location.name_str
    if isinstance(location, ir.FusedLoc):
        return next((name for name in map(location_name, location.locations) if name), None)
    return None


def _param_name(value: ir.Value) -> str | None:
    name = location_name(value.location)
    if name or isinstance(value, ir.BlockArgument):
        return name
    op = value.owner
    if op.operation.name == "tensor.extract":
        return location_name(op.operation.operands[0].location)
    return _param_name(op.operation.operands[0]) if len(op.operation.operands) == 1 else None


def _is_float(type_: ir.Type) -> bool:
    return isinstance(type_, (ir.F32Type, ir.F64Type))
