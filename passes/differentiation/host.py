"""A function under construction that computes a derivative, and expressions written into the pieces of its ops."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from attn_mlir.dialects.attn import build
from attn_mlir.dialects.attn.pieces import outputs_of
from attn_mlir.dialects.fastmath import attributes_of
from attn_mlir.mlir import arith, func, ir
from attn_mlir.passes.derivation.emit import output_name
from attn_mlir.passes.derivation.expr import BOOL, FLOAT, Expr
from attn_mlir.passes.differentiation.model import RowModel
from attn_mlir.passes.locations import location_name
from attn_mlir.passes.order import deepest_first
from attn_mlir.passes.regions import block_of, clone_op, piece, pieces, scores_in
from attn_mlir.passes.sequences import packing_of, read_index
from attn_mlir.passes.tiling.scalars import cast_float

PAIR_NAMES = ("b", "h", "q_idx", "kv_idx")


def residual_name(output: str) -> str:
    """The name of the tensor that holds the residual of an output."""
    return f"{output}_residual"


@dataclass(eq=False)
class Primal:
    """The function that is differentiated, and its attention."""

    function: ir.Operation
    attention: ir.Operation

    @property
    def entry(self) -> ir.Block:
        return self.function.regions[0].blocks[0]

    @property
    def name(self) -> str:
        return ir.StringAttr(self.function.attributes["sym_name"]).value

    @property
    def names(self) -> list[str]:
        """The arguments' names from their locations; q, k, v and their position where there is none."""
        found: list[str] = []
        for position, argument in enumerate(self.entry.arguments):
            name = location_name(argument.location) or (("q", "k", "v")[position] if position < 3 else f"arg{position}")
            found.append(name if name not in found else f"{name}_{position}")
        return found

    @property
    def outputs(self) -> list[str]:
        return [ir.StringAttr(a).value for a in self.attention.attributes["outputs"]]

    @property
    def sums(self) -> list[str]:
        """What programs call the sums of weighted rows of v: o, and further outputs."""
        return [output_name(number) for number in range(outputs_of(self.attention))]

    @property
    def score(self) -> ir.Type:
        return block_of(piece(self.attention, "attn.row") or self.attention).arguments[0].type

    @property
    def roles(self) -> dict[int, str]:
        """What the attention multiplies and sums, as programs call it, by position: q, k, v, and q2, k2... of further products."""
        found, arguments = {0: "q", 1: "k", 2: "v"}, list(self.entry.arguments)
        for number, product in enumerate(pieces(self.attention, "attn.product"), 2):
            found.update({arguments.index(x): f"{role}{number}" for role, x in zip("qk", product.operands, strict=True)})
        return found

    @property
    def input_names(self) -> list[str]:
        """The arguments' names in programs: those of `roles`, and those of the captures, whatever the former are called otherwise."""
        roles = self.roles
        taken = set(roles.values())
        return [roles.get(i) or (f"{name}_{i}" if name in taken else name) for i, name in enumerate(self.names)]


@dataclass(eq=False)
class HostBuilder:
    """The new function. `tensors` are values by the names that programs use for them."""

    primal: Primal
    tensors: dict[str, ir.Value] = field(default_factory=dict)
    mapping: dict[ir.Value, ir.Value] = field(default_factory=dict)
    score: ir.Type = field(init=False)

    def __post_init__(self) -> None:
        self.score = self.primal.score

    def build(
        self, suffix: str, further: Sequence[tuple[str, ir.Type]], results: Sequence[ir.Type], body: Callable[[], list[ir.Value]]
    ) -> None:
        """Adds `@<primal>_<suffix>` after the primal: its arguments, then `further`; `body` returns the results."""
        arguments = list(self.primal.entry.arguments)
        types = [a.type for a in arguments] + [type_ for _, type_ in further]
        names = [*self.primal.names, *(name for name, _ in further)]
        last = self.primal.function
        while last.name == "func.func" and (following := _next(last)) is not None:
            last = following
        here = self.primal.attention.location
        with here, ir.InsertionPoint.after(last):
            function = func.FuncOp(
                f"{self.primal.name}_{suffix}", ir.FunctionType.get(types, list(results)), loc=self.primal.function.location
            )
            block = ir.Block.create_at_start(function.regions[0], types, [ir.Location.name(n, here) for n in names])
        values = list(block.arguments)
        self.mapping.update(zip(arguments, values, strict=False))
        # Captured tensors may be called anything, also "do".
        roles = self.primal.roles
        keys = [name if i in roles else f"captured:{name}" for i, name in enumerate(self.primal.input_names)]
        self.tensors.update(zip(keys, values, strict=False))
        self.tensors.update(zip([name for name, _ in further], values[len(arguments) :], strict=True))
        with here, ir.InsertionPoint(block):
            for view in list(self.primal.entry.operations):
                if view.operation == self.primal.attention:
                    break
                clone_op(view.operation, self.mapping)
            func.ReturnOp(body())

    def row_type(self) -> ir.Type:
        """[B, Hq, Sq] of scores."""
        return ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()] * 3, self.score)

    def like(self, value: ir.Value) -> ir.Type:
        """A tensor of scores shaped like `value`."""
        return ir.RankedTensorType.get(ir.RankedTensorType(value.type).shape, self.score)

    def clone_piece(self, name: str) -> None:
        """Copies the pieces of the primal's attention that are called so, if it has any."""
        for found in pieces(self.primal.attention, name):
            clone_op(found, dict(self.mapping))

    def clone_present(self) -> None:
        """Copies the pieces that say which pairs there are."""
        for name in ("attn.sequences", "attn.pages", "attn.key_lists", "attn.mask"):
            self.clone_piece(name)

    def sequences(self, side: str) -> Callable[[], None] | None:
        """What adds the `attn.sequences` of a side to an `attn.elements`; None where tensors are not packed."""
        packing = packing_of(self.primal.attention, side)
        if packing is None:
            return None
        begins, lengths = (self.mapping[value] for value in (packing.begins, packing.lengths))
        return lambda: build.sequences(begins, lengths, side)

    def read_at(self, side: str, tensor: ir.Value, indices: Sequence[ir.Value]) -> ir.Value:
        """An element of a tensor with the rows of a side, by a piece's b, head, position and, perhaps, column."""
        packing = packing_of(self.primal.attention, side)
        if packing is not None:
            b, head, position, *column = indices
            begin = read_index(self.mapping[packing.begins], b)
            indices = [arith.constant(ir.IndexType.get(), 0), head, arith.addi(begin, position), *column]
        return self.read(tensor, indices)

    def zeros(self, like: ir.Value) -> ir.Value:
        """A tensor of zeros shaped like a tensor of rank 3 or 4."""
        weights = build.elements(like, lambda *_: [self.constant(0.0)])
        return build.collect(weights, 0, self.like(like))

    def row_dot(self, a: str, b: str) -> ir.Value:
        """The products of the rows of two tensors, of an output as it was before rounding where its residual is known."""
        return build.row_dot(self.tensors[a], self.tensors[b], self.row_type(), self.tensors.get(residual_name(b)))

    def constant(self, value: float) -> ir.Value:
        return arith.constant(self.score, value)

    def read(self, tensor: ir.Value, indices: Sequence[ir.Value]) -> ir.Value:
        """An element of a tensor in the type of scores."""
        element = ir.RankedTensorType(tensor.type).element_type
        read = ir.Operation.create("tensor.extract", results=[element], operands=[tensor, *indices]).result
        return cast_float(read, self.score)


def _next(op: ir.Operation) -> ir.Operation | None:
    operations = [view.operation for view in op.block.operations]
    position = operations.index(op)
    return operations[position + 1] if position + 1 < len(operations) else None


@dataclass(eq=False)
class HostExpressions:
    """Writes expressions into one piece, each once.

    `indices` are the piece's positions (b, h, q_idx, kv_idx as far as it has them), `leaves` known values, `rows` tensors
    [B, Hq, Sq] that hold the values of expressions of the row, `names` what values are called.
    """

    host: HostBuilder
    program: RowModel
    indices: Sequence[ir.Value]
    leaves: dict[Expr, ir.Value]
    rows: Mapping[Expr, ir.Value] = field(default_factory=dict)
    names: Mapping[Expr, str] = field(default_factory=dict)
    _copies: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def emit(self, node: Expr) -> ir.Value:
        for n in deepest_first(node, self.leaves, lambda n: () if n in self.rows else n.args):
            name = self.names.get(n) or self._leaf_name(n)
            arguments = [] if n in self.rows else [self.leaves[a] for a in n.args]
            with ir.Location.name(name, ir.Location.current) if name else ir.Location.current:
                self.leaves[n] = self._emit(n, arguments)
        return self.leaves[node]

    def _leaf_name(self, node: Expr) -> str | None:
        if node.op == "s":
            return "s" if node.attr == 0 else f"s_{node.attr}"
        return self.program.reductions[int(node.attr)].name if node.op == "red" else None  # type: ignore[call-overload]

    def _emit(self, n: Expr, args: list[ir.Value]) -> ir.Value:
        if n in self.rows:
            return self.host.read_at("query", self.rows[n], self.indices[:3])
        if n.is_const:
            if n.type == BOOL:
                return arith.constant(ir.IntegerType.get_signless(1), int(bool(n.attr)))
            return self.host.constant(float(n.attr))  # type: ignore[arg-type]
        match n.op:
            case "one":
                return self.host.constant(1.0)
            case "rounding":
                return self.host.constant(float(n.attr))  # type: ignore[arg-type]
            case "s":
                return self.emit(self.program.scores[int(n.attr)])  # type: ignore[call-overload]
            case "row":
                return self.host.read_at("query", self.host.tensors[str(n.attr)], self.indices[:3])
            case "param":
                param = self.program.param(n)
                return self.copy(param.value, param.block)
            case "dparam":
                return self._adjoint_read(n)
            case "attn.detach":
                return args[0]
            case "attn.slope":
                return self.host.constant(0.0)
            case "reduce":
                return build.reduce(args[0], str(n.attr))
            case "arith.cmpf":
                return arith.cmpf(arith.CmpFPredicate(n.attr), *args)
        result = self.host.score if n.type == FLOAT else ir.IntegerType.get_signless(1)
        attributes = attributes_of(n.attr)
        if not attributes and n.attr is not None:
            attributes["attn.tie"] = ir.StringAttr.get(str(n.attr))
        return ir.Operation.create(n.op, results=[result], operands=args, attributes=attributes).result

    def _adjoint_read(self, n: Expr) -> ir.Value:
        leaf, prefix = n.attr  # type: ignore[misc]
        param = self.program.params[leaf]
        if param.read is None:
            raise ValueError("only a read of a captured tensor has an adjoint")
        tensor = self.host.tensors[prefix + self.host.primal.input_names[ir.BlockArgument(param.read.tensor).arg_number]]
        return self.host.read(tensor, [self.copy(index, param.block) for index in param.read.indices])

    def copy(self, value: ir.Value, block: ir.Block) -> ir.Value:
        """A value of a piece of the primal, with the ops that make it, here."""

        def operands(value: ir.Value) -> list[ir.Value]:
            inside = not isinstance(value, ir.BlockArgument) and value.owner.operation.block == block
            return list(value.owner.operation.operands) if inside else []

        for v in deepest_first(value, self._copies, operands):
            if isinstance(v, ir.BlockArgument) and v.owner == block:
                self._copies[v] = self.indices[v.arg_number - scores_in(block)]
            elif isinstance(v, ir.BlockArgument) or v.owner.operation.block != block:
                self._copies[v] = self.host.mapping.get(v, v)
            else:
                clone_op(v.owner.operation, self._copies)
        return self._copies[value]


def scatter_to_read(
    host: HostBuilder,
    program: RowModel,
    leaf: Expr,
    of: ir.Value | None,
    weight: int,
    names: Sequence[str],
    indices: Callable[[Sequence[ir.Value]], Sequence[ir.Value]] = list,
) -> ir.Value:
    """`attn.scatter` of a weight to where a parameter reads its captured tensor.

    `names` are those of the positions, of which `indices` makes what pieces get.
    """
    param = program.param(leaf)
    if param.read is None or of is None:
        raise ValueError("only reads of captured tensors are scattered to")
    read = param.read
    tensor = host.mapping[read.tensor]

    def index(*positions: ir.Value) -> list[ir.Value]:
        expressions = HostExpressions(host, program, indices(positions), {})
        return [expressions.copy(i, param.block) for i in read.indices]

    with ir.Location.name(f"d{param.name}", ir.Location.current):
        return build.scatter(of, tensor, weight, host.like(tensor), names, index)
