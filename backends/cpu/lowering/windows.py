"""The rule for `tile.load_window`: what lanes read of a captured tensor, column by column, with vector loads.

Strides show at run time. Where neighbouring lanes read neighbouring elements, columns are loaded as they are, or left in memory where
they need no conversion. Where neighbouring columns do, rows are loaded and transposed in squares. Otherwise columns are gathered.
"""

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import ColumnTile, Lowering
from attn_mlir.backends.cpu.lowering.gather import gather_lanes
from attn_mlir.backends.cpu.lowering.memory import memory_of
from attn_mlir.backends.cpu.lowering.transpose import transpose
from attn_mlir.mlir import arith, ir, scf


def kept_type(element: ir.Type, score: ir.Type) -> ir.Type:
    """How the elements of windows and bands are kept in buffers: floats that are narrower than scores as scores, others as in memory."""
    if isinstance(element, ir.FloatType) and emit.bytes_of(element) <= emit.bytes_of(score):
        return score
    return emit.storage(element)


class WindowPlace:
    """Where a window lies: the address of its first element, and how far rows and columns are apart, in elements (i64)."""

    def __init__(self, context: Lowering, op: ir.Operation, memory: ir.Value, offsets: list[ir.Value]) -> None:
        found = memory_of(context, memory)
        self.element = emit.storage(found.element)
        offset = emit.integer(0)
        for value, stride in zip(offsets, found.strides, strict=True):
            offset = emit.add(offset, emit.mul(emit.to_i64(context.scalar(value)), stride))
        self.address = emit.element_pointer(found.address, offset, self.element)
        self.row, self.column = (_apart(found.strides, ir.DenseI64ArrayAttr(op.attributes[name])) for name in ("row_steps", "column_steps"))

    def at(self, column: ir.Value) -> ir.Value:
        """Address of the first row's element of a column."""
        return emit.element_pointer(self.address, emit.mul(emit.to_i64(column), self.column), self.element)


def _apart(strides: tuple[ir.Value, ...], steps: ir.DenseI64ArrayAttr) -> ir.Value:
    total = emit.integer(0)
    for stride, step in zip(strides, steps, strict=True):
        if step:
            total = emit.add(total, stride if step == 1 else emit.mul(stride, emit.integer(step)))
    return total


def equal(a: ir.Value, b: int) -> ir.Value:
    """Whether an i64 is a number."""
    return arith.CmpIOp(arith.CmpIPredicate.eq, a, emit.integer(b)).result


def lower_load_window(context: Lowering, op: ir.Operation) -> None:
    """`tile.load_window`."""
    source, rows, columns, *offsets = op.operands
    window = _Window(context, op, WindowPlace(context, op, source, offsets), (context.scalar(rows), context.scalar(columns)))
    context.values[op.results[0]] = window.load()


class _Window:
    def __init__(self, context: Lowering, op: ir.Operation, place: WindowPlace, extents: tuple[ir.Value, ir.Value]) -> None:
        self._context, self._place = context, place
        self._rows, self._columns = extents
        self._element = place.element
        self._kept = kept_type(ir.RankedTensorType(op.results[0].type).element_type, context.score)
        self._buffer = context.buffer(op)
        self._last = arith.SubIOp(self._rows, emit.index(1)).result

    def load(self) -> ColumnTile:
        """Makes the tile, in its buffer or in memory."""
        lanes, place = self._context.lanes, self._place
        full = arith.CmpIOp(arith.CmpIPredicate.eq, self._rows, emit.index(lanes)).result
        straight = arith.AndIOp(full, equal(place.row, 1)).result
        in_place = self._kept == self._element
        branch = scf.IfOp(straight, [emit.pointer(), emit.i64()], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            if not in_place:
                self._copy()
            scf.YieldOp([place.address, place.column] if in_place else [self._buffer, emit.integer(lanes)])
        with ir.InsertionPoint(branch.else_block):
            self._turn()
            scf.YieldOp([self._buffer, emit.integer(lanes)])
        return ColumnTile(branch.results[0], branch.results[1], self._kept)

    def _copy(self) -> None:
        """Columns whose lanes follow each other in memory."""
        loop = scf.ForOp(emit.index(0), self._columns, emit.index(1), [])
        with ir.InsertionPoint(loop.body):
            j = loop.induction_variable
            self._store(emit.load(ir.VectorType.get([self._context.lanes], self._element), self._place.at(j)), j)
            scf.YieldOp([])

    def _turn(self) -> None:
        """Squares where columns follow each other in memory, then what is left."""
        width = self._square()
        begin = emit.index(0)
        if width:
            whole = arith.SubIOp(self._columns, arith.RemUIOp(self._columns, emit.index(width)).result).result
            begin = arith.SelectOp(equal(self._place.column, 1), whole, begin).result
            self._squares(width, begin)
        loop = scf.ForOp(begin, self._columns, emit.index(1), [])
        with ir.InsertionPoint(loop.body):
            j, lanes = loop.induction_variable, self._context.lanes
            numbers = arith.MinSIOp(emit.lane_numbers(lanes), emit.splat(self._last, lanes)).result
            offsets = arith.MulIOp(emit.to_i64(numbers), emit.splat(self._place.row, lanes)).result
            self._store(gather_lanes(self._context, self._place.at(j), offsets, self._element), j)
            scf.YieldOp([])

    def _square(self) -> int:
        """The rows and columns of a square; 0 where lanes make none."""
        size = self._context.target.vector_bytes // max(4, emit.bytes_of(self._kept))
        return size if size > 1 and self._context.lanes % size == 0 else 0

    def _squares(self, width: int, end: ir.Value) -> None:
        groups = scf.ForOp(emit.index(0), emit.index(self._context.lanes), emit.index(width), [])
        with ir.InsertionPoint(groups.body):
            first = groups.induction_variable
            rows = [arith.MinSIOp(emit.add(first, emit.index(lane)), self._last).result for lane in range(width)]
            offsets = [emit.mul(emit.to_i64(row), self._place.row) for row in rows]
            sources = [emit.element_pointer(self._place.address, offset, self._element) for offset in offsets]
            loop = scf.ForOp(emit.index(0), end, emit.index(width), [])
            with ir.InsertionPoint(loop.body):
                j, type_ = loop.induction_variable, ir.VectorType.get([width], self._element)
                loaded = [self._cast(emit.load(type_, emit.element_pointer(source, j, self._element))) for source in sources]
                for number, column in enumerate(transpose(loaded)):
                    emit.store(column, self._at(emit.add(j, emit.index(number)), first))
                scf.YieldOp([])
            scf.YieldOp([])

    def _store(self, value: ir.Value, column: ir.Value) -> None:
        emit.store(self._cast(value), self._at(column, emit.index(0)))

    def _cast(self, value: ir.Value) -> ir.Value:
        return emit.cast_float(value, self._kept) if isinstance(self._kept, ir.FloatType) else value

    def _at(self, column: ir.Value, lane: ir.Value) -> ir.Value:
        offset = emit.add(emit.mul(column, emit.index(self._context.lanes)), lane)
        return emit.element_pointer(self._buffer, offset, self._kept)
