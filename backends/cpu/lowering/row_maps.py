"""The rule for `tile.map` on tiles that lie row by row: scalar code becomes vector code along columns."""

import numpy as np

from attn_mlir.backends.cpu.lowering import emit, known
from attn_mlir.backends.cpu.lowering.context import Lowering
from attn_mlir.backends.cpu.lowering.gather import read_memory
from attn_mlir.backends.cpu.lowering.maps import uses_column
from attn_mlir.backends.cpu.lowering.row_tiles import along, counted, get_tile, memory_of, tile_in, vector_of
from attn_mlir.backends.cpu.lowering.vector_maps import MOST
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import arith, ir, scf, vector
from attn_mlir.passes.tiling.scalars import identity


def lower_map(context: Lowering, op: ir.Operation) -> None:
    """`tile.map`."""
    _Map(context, op).lower()


class _Map:
    def __init__(self, context: Lowering, op: ir.Operation) -> None:
        self._context, self._op = context, op
        self._body = op.regions[0].blocks[0]
        *self._inner, last = (view.operation for view in self._body.operations)
        segments = list(ir.DenseI32ArrayAttr(last.attributes["operandSegmentSizes"]))
        self._tiles, self._sums = list(last.operands)[: segments[0]], list(last.operands)[segments[0] :]
        self._kinds = op.opview.kinds()
        self._targets = [tile_in(context, result.type, context.buffer(op, n)) for n, result in enumerate(op.results)]
        self._column = list(self._body.arguments)[-1]
        self._along = uses_column(self._inner, self._column)
        self._position: ir.Value | None = None
        """The first column of the current vector."""
        self._unrounded: dict[ir.Value, ir.Value] = {}
        """16-bit numbers of tiles as they are kept."""
        self._known = known.Indices({})
        """Those of the current vector, where the loop over columns is written out."""

    def lower(self) -> None:
        if len(self._body.arguments) == 1:
            self._row(None)
        else:
            counted(self._context.scalar(self._op.operands[0]), 1, self._row)
        for result, target in zip(self._op.results, self._targets, strict=True):
            self._context.values[result] = target

    def _row(self, i: ir.Value | None) -> None:
        """One row: what is the same along it first."""
        context = self._context
        if i is not None:
            context.values[self._body.arguments[0]] = i
        for op in self._inner:
            if op not in self._along:
                self._scalar(op)
        columns = self._extent()
        if not self._sums:
            whole = columns // context.lanes * context.lanes
            if whole and self._written_out(whole // context.lanes):
                for column in range(0, whole, context.lanes):
                    self._known = known.Indices({self._column: np.arange(column, column + context.lanes)})
                    self._part(i, emit.index(column), context.lanes)
                self._known = known.Indices({})
                if whole < columns:
                    counted(emit.index(columns), 1, lambda column: self._part(i, column, 1), whole)
                return
            along(context.lanes, columns, lambda column, width: self._part(i, column, width))
            return
        totals = [emit.number(context.score, identity(kind, context.score)) for kind in self._kinds]
        for width, begin, end in (
            (context.lanes, 0, columns // context.lanes * context.lanes),
            (1, columns // context.lanes * context.lanes, columns),
        ):
            if begin < end:
                totals = self._reduce(i, (begin, end, width), totals)
        assert i is not None
        for target, total in zip(self._targets[len(self._tiles) :], totals, strict=True):
            emit.store(total, target.at(None, i))

    def _written_out(self, vectors: int) -> bool:
        """Whether each of so many vectors of columns has code of its own: where memory is read at numbers that columns give."""
        return vectors <= MOST and any(op.name == "memref.load" for op in self._along)

    def _extent(self) -> int:
        extent = list(self._op.operands)[-1].owner
        if isinstance(extent, ir.Block) or extent.operation.name != "arith.constant":
            raise UnsupportedError("tiles in rows have static sizes")
        return ir.IntegerAttr(extent.operation.attributes["value"]).value

    def _reduce(self, i: ir.Value | None, span: tuple[int, int, int], totals: list[ir.Value]) -> list[ir.Value]:
        begin, end, width = span
        score = self._context.score
        initial = totals if width == 1 else [emit.number(vector_of(width, score), identity(kind, score)) for kind in self._kinds]
        loop = scf.ForOp(emit.index(begin), emit.index(end), emit.index(width), initial)
        with ir.InsertionPoint(loop.body):
            parts = self._part(i, loop.induction_variable, width)
            scf.YieldOp([_combine(kind, old, part) for kind, old, part in zip(self._kinds, loop.inner_iter_args, parts, strict=True)])
        if width == 1:
            return list(loop.results)
        return [_combine(kind, old, _across(kind, each)) for kind, old, each in zip(self._kinds, totals, loop.results, strict=True)]

    def _part(self, i: ir.Value | None, column: ir.Value, width: int) -> list[ir.Value]:
        """Elements [column, column + width) of a row; returns what is reduced."""
        context, lanes = self._context, self._context.lanes
        before = dict(context.values)
        context.lanes = width
        self._position = column
        numbers = column
        if width > 1:
            numbers = emit.add(emit.splat(column, width), emit.lane_numbers(width))
        context.values[self._column] = numbers
        for op in self._along:
            self._scalar(op)
        for value, target in zip(self._tiles, self._targets, strict=False):
            emit.store(emit.cast_float(self._wide(value), target.kept), target.at(i, column))
        parts = [emit.cast_float(self._wide(value), context.score) for value in self._sums]
        self._position, context.lanes, context.values = None, lanes, before
        return parts

    def _wide(self, value: ir.Value) -> ir.Value:
        found = self._context.scalar(value)
        return found if self._context.lanes == 1 else emit.splat(found, self._context.lanes)

    def _scalar(self, op: ir.Operation) -> None:
        """One op, on vectors where an operand is one."""
        context = self._context
        if op.name == "tensor.extract":
            context.values[op.results[0]] = self._read(op)
            return
        if op.name == "memref.load":
            memory, indices = memory_of(context, op.operands[0]), [context.scalar(value) for value in list(op.operands)[1:]]
            last = self._known.of(op.operands[-1]) if indices else None
            found = known.read(context, memory, indices, last) if last is not None and last.ndim else None
            context.values[op.results[0]] = read_memory(context, memory, indices) if found is None else found
            return
        if op.name == "arith.extf" and op.operands[0] in self._unrounded:
            context.values[op.results[0]] = emit.cast_float(self._unrounded[op.operands[0]], op.results[0].type)
            return
        self._known.note(op)
        operands = [context.scalar(operand) for operand in op.operands]
        types = [result.type for result in op.results]
        if any(isinstance(operand.type, ir.VectorType) for operand in operands):
            operands = [emit.splat(operand, context.lanes) for operand in operands]
            types = [ir.VectorType.get([context.lanes], type_) for type_ in types]
        context.values.update(zip(op.results, emit.repeat(op, operands, types), strict=True))

    def _read(self, op: ir.Operation) -> ir.Value:
        context, tile = self._context, get_tile(self._context, op.operands[0])
        *row, column = list(op.operands)[1:]
        element = ir.RankedTensorType(op.operands[0].type).element_type
        if any(isinstance(context.scalar(value).type, ir.VectorType) for value in row):
            raise UnsupportedError("a map reads tiles along their rows")
        first = context.scalar(row[0]) if row else None
        if column == self._column:
            assert self._position is not None
            value = emit.load(vector_of(context.lanes, tile.kept), tile.at(first, self._position))
        elif isinstance(context.scalar(column).type, ir.VectorType):
            raise UnsupportedError("a map reads tiles at its own column, or at one for all")
        else:
            value = emit.load(tile.kept, tile.at(first, context.scalar(column)))
        if tile.kept != element:
            self._unrounded[op.results[0]] = value
        return emit.cast_float(value, element)


def _across(kind: str, value: ir.Value) -> ir.Value:
    kinds = {"sum": vector.CombiningKind.ADD, "max": vector.CombiningKind.MAXIMUMF, "min": vector.CombiningKind.MINIMUMF}
    fast = ir.Attribute.parse("#arith.fastmath<reassoc>")
    return vector.ReductionOp(value.type.element_type, kinds[kind], value, fastmath=fast).result


def _combine(kind: str, total: ir.Value, part: ir.Value) -> ir.Value:
    if kind == "sum":
        return arith.AddFOp(total, part).result
    return (arith.MaximumFOp if kind == "max" else arith.MinimumFOp)(total, part).result
