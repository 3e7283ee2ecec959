"""Reads an `attn.attention` into a program that can be differentiated."""

import math
from dataclasses import dataclass, field

from attn_mlir.dialects.attn.pieces import outputs_of
from attn_mlir.dialects.fastmath import flag_of
from attn_mlir.mlir import ir
from attn_mlir.passes.derivation import evaluate
from attn_mlir.passes.derivation.emit import output_name
from attn_mlir.passes.derivation.expr import BOOL, FLOAT, Expr, Graph
from attn_mlir.passes.differentiation.model import PAIR, ROW, ModelReduction, Param, Read, RowModel, RowValue, Sum, location_error
from attn_mlir.passes.differentiation.partials import partials
from attn_mlir.passes.locations import location_name
from attn_mlir.passes.magnitudes import scores_may_be_large
from attn_mlir.passes.order import deepest_first
from attn_mlir.passes.regions import block_of, piece, pieces, scores_in

_LOGARITHMS = ("math.log", "math.log2")
_CASTS = ("arith.extf", "arith.truncf")


def read_attention(attention: ir.Operation) -> RowModel:
    """The program of an attention whose terms sum v; tensors are called q, k and v, those of further products q2, k2, q3...

    Its sums are o, o1..., one for each weight of the row.
    """
    graph = Graph()
    score, row = piece(attention, "attn.score"), piece(attention, "attn.row")
    double = row is not None and isinstance(block_of(row).arguments[0].type, ir.F64Type)
    products = [("q", "k"), *((f"q{number}", f"k{number}") for number, _ in enumerate(pieces(attention, "attn.product"), 2))]
    near = 2.0**-14 if is_half(attention) else 0.0
    program = RowModel(graph, products, [], [], [], 1e-13 if double else 3e-7, near, len(products), scores_may_be_large(attention))
    x = [graph.leaf("x", k) for k in range(len(products))]
    if score is None:
        program.scores += x
    else:
        block = block_of(score)
        program.scores += PieceReader(program, block, dict(zip(block.arguments, x, strict=False)), PAIR).results()
    if row is None:
        raise location_error("'attn.attention' lacks its 'attn.row' piece", attention.results[0])
    block = block_of(row)
    scores = list(block.arguments)[: scores_in(block)]
    reader = PieceReader(program, block, {s: graph.leaf("s", k) for k, s in enumerate(scores)}, ROW)
    results, count = reader.results(), outputs_of(attention)
    program.sums += [Sum("query", output_name(number), ((weight, "v"),)) for number, weight in enumerate(results[:count])]
    rows = results[count:]
    names = [ir.StringAttr(a).value for a in attention.attributes["outputs"]]
    program.rows += [RowValue(name, value) for name, value in zip(names, rows, strict=True)]
    return program


def read_element(program: RowModel, mod: ir.Operation) -> list[Expr]:
    """An `attn.query`, `attn.key` or `attn.value`: the elements that it takes, x first, and its result."""
    block = block_of(mod)
    elements = {x: program.graph.node("element", attr=f"{mod.name}.{i}") for i, x in enumerate(list(block.arguments)[: scores_in(block)])}
    return [*elements.values(), PieceReader(program, block, elements, ROW).results()[0]]


def logarithm(g: Graph, op: str, x: Expr) -> Expr | None:
    """log(exp(a) b / c) as a + log b - log c, which is finite where the exponential is too small for a float.

    So p log p of a weight that underflows is 0, and has a gradient. None where there is no exponential.
    """
    terms: list[tuple[Expr, bool]] = []
    found, todo = False, [(x, True)]
    while todo:
        n, above = todo.pop()
        if n.op == "arith.mulf" and n.args[0] is not n.args[1]:
            todo += [(a, above) for a in n.args]
        elif n.op == "arith.divf":
            todo += [(n.args[0], above), (n.args[1], not above)]
        elif n.op in ("math.exp", "math.exp2"):
            found = True
            same = (n.op == "math.exp") == (op == "math.log")
            scale = 1.0 if same else math.log(2) if op == "math.log" else 1 / math.log(2)
            terms.append((g.mul(g.const(scale), n.args[0]), above))
        else:
            terms.append((g.unary(op, n), above))
    if not found:
        return None
    total = g.const(0.0)
    for term, above in sorted(terms, key=lambda t: t[0].id):
        total = g.add(total, term) if above else g.sub(total, term)
    return total


def _is_arithmetic(op: ir.Operation, value: ir.Value) -> bool:
    """Whether the op is one of scalars that expressions know."""
    operands = list(op.operands)
    return bool(operands) and evaluate.known(op.name) and all(_is_scalar(v.type) for v in (value, *operands))


@dataclass(eq=False)
class PieceReader:
    """Turns the values of one piece into expressions; reductions and parameters are added to the program."""

    program: RowModel
    block: ir.Block
    known: dict[ir.Value, Expr]
    level: str
    _varying: set[ir.Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._varying.update(self.known)

    def results(self) -> list[Expr]:
        operations = [view.operation for view in self.block.operations]
        for op in operations[:-1]:
            if any(operand in self._varying for operand in op.operands):
                self._varying.update(op.results)
        for op in operations:
            if op.name == "attn.reduce":
                self.read(op.results[0])
        return [self.read(value) for value in operations[-1].operands]

    def read(self, value: ir.Value) -> Expr:
        for v in deepest_first(value, self.known, self._read_below):
            self.known[v] = self._read(v)
        return self.known[value]

    def _read_below(self, value: ir.Value) -> list[ir.Value]:
        """The operands that become expressions before `value` does."""
        if isinstance(value, ir.BlockArgument) or value.owner.operation.block != self.block:
            return []
        op = value.owner.operation
        read = op.name in ("attn.detach", "attn.slope", "attn.reduce") or _is_arithmetic(op, value)
        return list(op.operands) if read else []

    def _read(self, value: ir.Value) -> Expr:
        graph = self.program.graph
        if isinstance(value, ir.BlockArgument):
            return self._param(value)
        op = value.owner.operation
        if op.name == "arith.constant" and _is_scalar(value.type):
            attribute = op.attributes["value"]
            if str(value.type) == BOOL:
                return graph.node("const", attr=bool(ir.IntegerAttr(attribute).value), type=BOOL)
            return graph.const(ir.FloatAttr(attribute).value)
        if op.block != self.block:
            return self._param(value)
        if op.name == "attn.detach":
            return graph.node("attn.detach", self.read(op.operands[0]))
        if op.name == "attn.slope":
            return graph.node("attn.slope", *[self.read(v) for v in op.operands])
        if op.name == "attn.reduce":
            return self._reduce(op, value)
        if _is_arithmetic(op, value):
            return self._node(op, value)
        if value in self._varying:
            advice = "make indices and integers of positions alone"
            raise location_error(f"'{op.name}' of a value that depends on the score has no derivative rule: {advice}", value)
        return self._param(value)

    def _node(self, op: ir.Operation, value: ir.Value) -> Expr:
        attribute: object = flag_of(op)
        if op.name == "arith.cmpf":
            attribute = op.attributes["predicate"].value
        elif "attn.tie" in op.attributes:
            attribute = ir.StringAttr(op.attributes["attn.tie"]).value
        type_ = BOOL if str(value.type) == BOOL else FLOAT
        if op.name in _LOGARITHMS:
            opened = logarithm(self.program.graph, op.name, self.read(op.operands[0]))
            if opened is not None:
                return opened
        node = self.program.graph.node(op.name, *[self.read(v) for v in op.operands], attr=attribute, type=type_)
        if partials(self.program.graph, node) is None:
            raise location_error(f"'{op.name}' has no derivative rule", value)
        self.program.locations.setdefault(node, op.location)
        return node

    def _reduce(self, op: ir.Operation, value: ir.Value) -> Expr:
        kind, argument = ir.StringAttr(op.attributes["kind"]).value, self.read(op.operands[0])
        reductions = self.program.reductions
        for i, known in enumerate(reductions):
            if (known.kind, known.value) == (kind, argument):
                return self.program.red(i)
        taken = {r.name for r in reductions}
        wanted = location_name(op.location) or kind
        name = wanted if wanted not in taken else next(f"{wanted}_{n}" for n in range(1, len(taken) + 2) if f"{wanted}_{n}" not in taken)
        reductions.append(ModelReduction(kind, argument, name, "saved", value, op.location))
        return self.program.red(len(reductions) - 1)

    def _param(self, value: ir.Value) -> Expr:
        name = _name(value) or f"param{len(self.program.params)}"
        self.program.params.append(Param(value, self.block, self.level, _read_of(value), name))
        kind = FLOAT if str(value.type) != BOOL else BOOL
        return self.program.graph.leaf("param", len(self.program.params) - 1, kind)


def _read_of(value: ir.Value) -> Read | None:
    """The element of a captured floating tensor that a value is, past casts."""
    while not isinstance(value, ir.BlockArgument) and value.owner.operation.name in _CASTS:
        value = value.owner.operation.operands[0]
    if isinstance(value, ir.BlockArgument) or value.owner.operation.name != "tensor.extract":
        return None
    tensor, *indices = value.owner.operation.operands
    argument = isinstance(tensor, ir.BlockArgument) and isinstance(ir.RankedTensorType(tensor.type).element_type, ir.FloatType)
    return Read(tensor, tuple(indices)) if argument else None


def _name(value: ir.Value) -> str | None:
    name = location_name(value.location)
    if name or isinstance(value, ir.BlockArgument):
        return name
    operands = list(value.owner.operation.operands)
    return _name(operands[0]) if operands else None


def is_half(attention: ir.Operation) -> bool:
    """Whether queries, keys and values have 16 bits.

    Their products are computed by different instructions in different kernels, and weights are rounded before they multiply them.
    """
    return isinstance(ir.RankedTensorType(attention.operands[0].type).element_type, (ir.F16Type, ir.BF16Type))


def _is_scalar(type_: ir.Type) -> bool:
    return isinstance(type_, (ir.F32Type, ir.F64Type)) or str(type_) == BOOL
