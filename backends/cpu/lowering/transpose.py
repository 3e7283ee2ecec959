"""Rows to lanes and back: squares of numbers are transposed in registers."""

from collections.abc import Callable, Sequence

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import LaneTile, Lowering
from attn_mlir.mlir import arith, ir, llvm, scf


def side_of(context: Lowering) -> int:
    """The numbers of a vector register."""
    return context.target.vector_bytes // context.score_bytes


def squares(context: Lowering, columns: int, element: ir.Type) -> int:
    """How many of the columns can be done in squares: a vector register holds one number of every lane.

    Or of some of the lanes, in kernels with matrix tiles and beside them: without, nobody has measured it.
    """
    side = side_of(context)
    beside = context.target.tiles and not context.lanes % side and isinstance(element, ir.BF16Type)
    return columns // side * side if context.lanes == side or context.tiles or beside else 0


def transpose(rows: Sequence[ir.Value]) -> list[ir.Value]:
    """The columns of a square, given as vectors; in as many steps as its size has bits, each exchanges blocks of twice the size."""
    vectors, size = list(rows), len(rows)
    step = 1
    while step < size:
        # Numbers of the second operand count from `size` on.
        low = ir.DenseI32ArrayAttr.get([size + (lane ^ step) if lane & step else lane for lane in range(size)])
        high = ir.DenseI32ArrayAttr.get([size + lane if lane & step else lane ^ step for lane in range(size)])
        for i in (i for i in range(size) if not i & step):
            a, b = vectors[i], vectors[i + step]
            vectors[i], vectors[i + step] = (llvm.ShuffleVectorOp(a.type, a, b, mask).res for mask in (low, high))
        step *= 2
    return vectors


def load_squares(
    context: Lowering, address: ir.Value, stride: ir.Value, element: ir.Type, tile: LaneTile, last: ir.Value, end: int
) -> None:
    """Columns up to `end` of rows from `address` on; lanes past row `last` repeat it."""
    side = side_of(context)

    def load(first: ir.Value | None, part: LaneTile) -> None:
        rows = [arith.MinSIOp(_from(first, lane), last).result for lane in range(side)]
        sources = [emit.element_pointer(address, emit.mul(emit.to_i64(row), stride), element) for row in rows]
        loop = scf.ForOp(emit.index(0), emit.index(end), emit.index(side), [])
        with ir.InsertionPoint(loop.body):
            d = loop.induction_variable
            type_ = ir.VectorType.get([side], element)
            loaded = [emit.cast_float(emit.load(type_, emit.element_pointer(source, d, element)), context.score) for source in sources]
            for number, column in enumerate(transpose(loaded)):
                emit.store(column, context.column(part, emit.add(d, emit.index(number))), alignment=context.target.vector_bytes)
            scf.YieldOp([])

    _by_registers(context, tile, load)


def store_squares(context: Lowering, tile: LaneTile, address: ir.Value, stride: ir.Value, element: ir.Type, end: int) -> None:
    """Columns up to `end` of all lanes, as rows from `address` on."""
    side = side_of(context)

    def store(first: ir.Value | None, part: LaneTile) -> None:
        loop = scf.ForOp(emit.index(0), emit.index(end), emit.index(side), [])
        with ir.InsertionPoint(loop.body):
            d = loop.induction_variable
            type_ = ir.VectorType.get([side], context.score)
            places = [context.column(part, emit.add(d, emit.index(number))) for number in range(side)]
            columns = [emit.load(type_, place, alignment=context.target.vector_bytes) for place in places]
            for number, row in enumerate(transpose(columns)):
                place = emit.element_pointer(address, emit.mul(emit.to_i64(_from(first, number)), stride), element)
                emit.store(emit.cast_float(row, element), emit.element_pointer(place, d, element))
            scf.YieldOp([])

    _by_registers(context, tile, store)


def _by_registers(context: Lowering, tile: LaneTile, body: Callable[[ir.Value | None, LaneTile], None]) -> None:
    """`body(first, part)` for the lanes from `first` on that a register holds; None where it holds all."""
    side = side_of(context)
    if context.lanes == side:
        body(None, tile)
        return
    loop = scf.ForOp(emit.index(0), emit.index(context.lanes), emit.index(side), [])
    with ir.InsertionPoint(loop.body):
        first = loop.induction_variable
        body(first, LaneTile(emit.element_pointer(tile.address, first, context.score)))
        scf.YieldOp([])


def _from(first: ir.Value | None, number: int) -> ir.Value:
    return emit.index(number) if first is None else emit.add(first, emit.index(number))
