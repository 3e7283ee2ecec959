"""Rows to lanes and back: squares of numbers are transposed in registers."""

from collections.abc import Sequence

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import LaneTile, Lowering
from attn_mlir.mlir import arith, ir, llvm, scf


def squares(context: Lowering, columns: int) -> int:
    """How many of the columns can be done in squares: a vector register holds one number of every lane."""
    whole = context.lanes * context.score_bytes == context.target.vector_bytes
    return columns // context.lanes * context.lanes if whole else 0


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
    lanes = context.lanes
    rows = [arith.MinSIOp(emit.index(lane), last).result for lane in range(lanes)]
    sources = [emit.element_pointer(address, emit.mul(emit.to_i64(row), stride), element) for row in rows]
    loop = scf.ForOp(emit.index(0), emit.index(end), emit.index(lanes), [])
    with ir.InsertionPoint(loop.body):
        d = loop.induction_variable
        type_ = ir.VectorType.get([lanes], element)
        loaded = [emit.cast_float(emit.load(type_, emit.element_pointer(source, d, element)), context.score) for source in sources]
        for number, column in enumerate(transpose(loaded)):
            context.store_column(column, tile, emit.add(d, emit.index(number)))
        scf.YieldOp([])


def store_squares(context: Lowering, tile: LaneTile, address: ir.Value, stride: ir.Value, element: ir.Type, end: int) -> None:
    """Columns up to `end` of all lanes, as rows from `address` on."""
    lanes = context.lanes
    loop = scf.ForOp(emit.index(0), emit.index(end), emit.index(lanes), [])
    with ir.InsertionPoint(loop.body):
        d = loop.induction_variable
        columns = [context.load_column(tile, emit.add(d, emit.index(number))) for number in range(lanes)]
        for number, row in enumerate(transpose(columns)):
            place = emit.element_pointer(address, emit.mul(emit.integer(number), stride), element)
            emit.store(emit.cast_float(row, element), emit.element_pointer(place, d, element))
        scf.YieldOp([])
