"""Shape functions: the sizes of what a function makes, as arithmetic on those of its arguments."""

from collections.abc import Iterable, Sequence

from attn_mlir.dialects.attn.linear_gradients import interval_of
from attn_mlir.dialects.attn.linear_recurrence import state_shape, with_all_heads
from attn_mlir.dialects.attn.linear_segments import segment_of
from attn_mlir.mlir import arith, func, ir, tensor
from attn_mlir.passes.regions import pieces
from attn_mlir.passes.row_groups import summed_elements

SHAPES = "shapes"
"""The attribute of a function that names its shape function."""
SAME = "same"
"""The attribute of a function whose result is this operand where it would have its shape."""


class ShapeFunction:
    """The private function `@name_shapes` of `@name`: it takes the same arguments, and returns the sizes of all results in order."""

    def __init__(self, function: ir.Operation, arguments: Sequence[ir.Value]) -> None:
        """`arguments`: the values that the arguments of the function stand for."""
        self._function, self._name = function, f"{ir.StringAttr(function.attributes['sym_name']).value}_shapes"
        self._known: dict[tuple[object, ...], ir.Value] = {}
        self._types = [argument.type for argument in arguments]
        self._location = function.location
        while isinstance(self._location, ir.NameLoc):  # what is made here is not what the function is called
            self._location = self._location.child_loc
        with self._location, ir.InsertionPoint(function):
            self._made = func.FuncOp(self._name, ir.FunctionType.get(self._types, []), visibility="private")
            self._entry = ir.Block.create_at_start(self._made.regions[0], self._types, [argument.location for argument in arguments])
        self._of = dict(zip(arguments, self._entry.arguments, strict=True))

    def write(self, makers: Iterable[tuple[ir.Operation, Sequence[ir.Value]]]) -> None:
        """Writes the function, for results of these ops in order, and names it in its function's attributes."""
        with self._location, ir.InsertionPoint(self._entry):
            sizes = [size for op, results in makers for result in results for size in self._whole(op, result)]
            func.ReturnOp(sizes)
            self._made.operation.attributes["function_type"] = ir.TypeAttr.get(
                ir.FunctionType.get(self._types, [size.type for size in sizes])
            )
            self._function.attributes[SHAPES] = ir.FlatSymbolRefAttr.get(self._name)

    def _whole(self, op: ir.Operation, result: ir.Value) -> list[ir.Value]:
        """The sizes of a result: those that `_sizes` knows, then those of its type."""
        type_ = ir.RankedTensorType(result.type)
        first = self._sizes(op, list(op.results).index(result), type_.rank)
        return [*first, *(self._constant(type_.shape[axis]) for axis in range(len(first), type_.rank))]

    def _sizes(self, op: ir.Operation, number: int, rank: int) -> list[ir.Value]:
        """The first sizes of result `number` of an op."""
        view = op.opview
        match op.name:
            case "attn.attention" | "attn.online":
                return self._like(op.operands[0], 3)
            case "attn.output" | "attn.residual":
                return self._like(op.operands[0].owner.operation.operands[0], 3)
            case "attn.query_sum" | "attn.key_sum":
                product = pieces(op.operands[0].owner.operation, "attn.product")[0]
                return self._like(product.operands[0 if op.name == "attn.query_sum" else 1], 3)
            case "attn.scatter" if "diagonals" in op.attributes:
                query = pieces(op.operands[0].owner.operation, "attn.product")[0].operands[0]
                return [*self._like(query, 2), arith.AddIOp(self._dim(query, 2), self._dim(op.operands[1], 2)).result]
            case "attn.scatter":
                return self._like(op.operands[1], rank)
            case "attn.collect":
                return self._like(op.operands[0].owner.operation.operands[0], rank)
            case "attn.row_dot" | "attn.decay_gradient" | "attn.decay_gradient_sum":
                return self._like(op.operands[0], rank)
            case "attn.head_sum":
                made = summed_elements(op)
                x = self._like(view.x if made is None or view.x in self._of else made[0].operands[0], rank)
                return [x[0], self._dim(view.like, 1), *x[2:]]
            case "attn.decay_sum":
                return [*self._like(view.like, 2), self._ceil_div(self._dim(view.like, 2), view.segment.value)]
            case "attn.state_scan" | "attn.transition_scan":
                return [*self._like((view.states, view.like)[number], 2), self._constant(view.rows.value)]
        return self._of_scan(op, number)

    def _of_scan(self, op: ir.Operation, number: int) -> list[ir.Value]:
        """Those of a scan of linear attention."""
        view = op.opview
        batch, heads, length = self._like(with_all_heads(op), 3)
        name = "o" if number == 0 else view.outputs[number - 1].value
        rows, _ = state_shape(op)
        if name == "final_state":
            return [self._sequences(view.offsets, batch, length, segment_of(op)), heads, self._constant(rows)]
        if name != "states":
            return [batch, heads, length]
        interval = interval_of(op)
        if view.offsets is None:
            count = self._ceil_div(length, interval)
        else:
            begun = arith.AddIOp(self._dim(view.offsets, 0), arith.FloorDivSIOp(length, self._constant(interval)).result).result
            count = arith.SubIOp(begun, self._constant(1)).result
        return [batch, heads, arith.MulIOp(count, self._constant(rows)).result]

    def _sequences(self, offsets: ir.Value | None, batch: ir.Value, length: ir.Value, segment: int | None) -> ir.Value:
        """How many sequences, or segments of them, there are."""
        if offsets is not None:
            return arith.SubIOp(self._dim(offsets, 0), self._constant(1)).result
        return batch if segment is None else arith.MulIOp(batch, self._ceil_div(length, segment)).result

    def _like(self, value: ir.Value, rank: int) -> list[ir.Value]:
        return [self._dim(value, axis) for axis in range(rank)]

    def _dim(self, value: ir.Value, axis: int) -> ir.Value:
        number = self._constant(axis)
        return self._known.get((value, axis)) or self._known.setdefault((value, axis), tensor.DimOp(self._of[value], number).result)

    def _constant(self, number: int) -> ir.Value:
        if (number,) not in self._known:
            self._known[number,] = arith.ConstantOp(ir.IndexType.get(), number).result
        return self._known[number,]

    def _ceil_div(self, value: ir.Value, by: int) -> ir.Value:
        return arith.CeilDivSIOp(value, self._constant(by)).result
