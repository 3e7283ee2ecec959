"""Kernels over rows whose loop carries a number for each thread: what it adds up is its row's, or that of all threads together."""

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields, grid_kind
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.scalar_ops import c_type
from attn_mlir.backends.gpu.simt.dialect import MOST_THREADS, Dialect
from attn_mlir.backends.gpu.simt.source import source
from attn_mlir.backends.gpu.simt.values import RowPrinter
from attn_mlir.backends.gpu.structure import body, maker, yielded
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk

_KNOWN = ("arith.", "math.", "memref.load", "memref.dim", "tensor.extract", "tile.program_id", "tile.yield", "scf.for", "scf.yield",
          "func.", "tile.store", "tile.map", "tile.fill")  # fmt: skip


def plan_total(kernel: ir.Operation, wave: int) -> Fields | None:
    """`threads` of a block. None for a kernel of another form.

    What is stored are the loop's numbers, one for each row of the block, or their sum.
    """
    loops = find_all(kernel, "scf.for")
    if grid_kind(kernel) != "rows" or len(loops) != 1 or len(loops[0].results) != 1:
        return None
    if not all(op.name.startswith(_KNOWN) for op in walk(kernel)):
        return None
    carried, stores = loops[0].results[0], find_all(kernel, "tile.store")
    if ir.RankedTensorType(carried.type).rank != 1 or len(stores) != 1:
        return None
    (threads,) = ir.RankedTensorType(carried.type).shape
    step, last = maker(yielded(body(loops[0]))[0]), maker(stores[0].operands[0])
    if step is None or last is None or step.name != "tile.map" or step.block != body(loops[0]) or threads % wave or threads > MOST_THREADS:
        return None
    reads = [op for op in find_all(kernel, "tensor.extract") if op.operands[0] == carried]
    inner = [op for op in find_all(kernel, "tensor.extract") if op not in reads]
    if not all(list(op.operands) == [body(loops[0]).arguments[1], body(step).arguments[0]] for op in inner):
        return None
    if stores[0].operands[0] == carried:
        return {"threads": threads}
    if last.name != "tile.map" or last.block != body(kernel):
        return None
    adds = last.opview.kinds() == ["sum"] and len(last.results) == 1
    own = all(list(op.operands) == [carried, body(last).arguments[1]] for op in reads)
    whole = list(ir.RankedTensorType(stores[0].operands[0].type).shape) == [1]
    return {"threads": threads} if adds and own and whole else None


def emit_total(kernel: ir.Operation, dialect: Dialect) -> KernelCode:
    """The source of a scheduled kernel."""
    threads = int(attributes.read(kernel, attributes.SCHEDULE)["threads"])
    p = RowPrinter(kernel, 1, 1, dialect)
    (loop,), (store,) = find_all(kernel, "scf.for"), find_all(kernel, "tile.store")
    begin, end, step, initial = loop.operands
    number, carried = body(loop).arguments
    filled = maker(initial)
    type_ = c_type(ir.RankedTensorType(carried.type).element_type)
    total, turn = p.names.fresh("total"), p.names.fresh("turn")
    p.line(f"const int i = (int){dialect.thread};")
    p.line(f"{type_} {total} = {p.scalars.emit(filled.operands[0]) if filled is not None else 0};")
    first, last, stride = (p.scalars.emit(value) for value in (begin, end, step))
    p.line("#pragma unroll 4")
    with p.scope(f"for (int {turn} = {first}; {turn} < {last}; {turn} += {stride})"):
        p.scalars.bind(number, turn)
        _bind(p, loop, carried, total)
        p.line(f"{total} = {p.row_value(yielded(body(loop))[0])};")
    _, memory, b, h, row, count = store.operands
    place = [p.scalars.emit(value) for value in (b, h, row)]
    if store.operands[0] == loop.results[0]:
        p.line(f"if (i < {p.scalars.emit(count)}) {p.arguments.element(memory, [*place[:2], f'({place[2]} + i)'])} = {total};")
        return source(kernel, p, threads, False)
    _bind(p, kernel, loop.results[0], total)
    p.line(f"const {type_} whole = block_sum<{threads}>({p.scalars.emit(yielded(body(maker(store.operands[0])))[0])});")  # pyright: ignore
    p.line(f"if ({dialect.thread} == 0) {p.arguments.element(memory, place)} = whole;")
    return source(kernel, p, threads, False)


def _bind(p: RowPrinter, within: ir.Operation, tile: ir.Value, name: str) -> None:
    """Makes a variable stand for a thread's element of a tile."""
    for op in find_all(within, "tensor.extract"):
        if op.operands[0] == tile:
            p.scalars.bind(op.results[0], name)
