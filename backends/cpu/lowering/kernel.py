"""Turns a scheduled kernel into a worker: a function that takes programs of the grid until none is left.

The worker's only argument points to 64-bit words: 0 the counter of programs taken, 1 the number of programs, 2 that of
blocks, 3 that of heads; then for each argument of the kernel, in order, a scalar in one word, or a memref as address,
sizes and strides (in elements). Under a causal mask the last blocks of queries take longest, and the first chunks of keys:
those programs come first. Packed tensors have lists of work instead, in the order that is wanted.
"""

from attn_mlir.backends.cpu.lowering import dropout, emit, row_rules
from attn_mlir.backends.cpu.lowering.accumulate import lower_accumulate
from attn_mlir.backends.cpu.lowering.bands import lower_add_band, lower_band
from attn_mlir.backends.cpu.lowering.context import Lowered, Lowering, MemRef
from attn_mlir.backends.cpu.lowering.control import lower_for, lower_if
from attn_mlir.backends.cpu.lowering.dots import lower_dot, lower_dot_accumulate
from attn_mlir.backends.cpu.lowering.maps import lower_map, lower_scalar
from attn_mlir.backends.cpu.lowering.memory import lower_fill, lower_gather, lower_load, lower_store
from attn_mlir.backends.cpu.lowering.pages import lower_load_pages
from attn_mlir.backends.cpu.lowering.range import lower_range
from attn_mlir.backends.cpu.lowering.scatter import lower_scatter_add
from attn_mlir.backends.cpu.lowering.window_sums import lower_add_window
from attn_mlir.backends.cpu.lowering.windows import lower_load_window
from attn_mlir.backends.cpu.target import CpuTarget
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import arith, func, ir, llvm, scf
from attn_mlir.passes.dropout import expand
from attn_mlir.passes.regions import walk

HEADER = 4


def lower_kernel(kernel: ir.Operation, target: CpuTarget) -> None:
    """Replaces `kernel` by its worker, under the same name."""
    sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
    in_rows = "tile.layout" in kernel.attributes
    block = kernel.regions[0].blocks[0]
    name = ir.StringAttr(kernel.attributes["sym_name"]).value
    with kernel.location, ir.InsertionPoint(kernel):
        worker = func.FuncOp(name, ir.FunctionType.get([emit.pointer()], []))
        entry = worker.add_entry_block()
    with kernel.location, ir.InsertionPoint(entry):
        score = score_type(kernel)
        lanes = target.vector_bytes // emit.bytes_of(score) if in_rows else ir.IntegerAttr(sizes["block_q"]).value
        for op in dropout.written_out(kernel, lanes):
            expand(op)
        words = entry.arguments[0]
        tiles = any("tiles" in op.attributes for op in walk(kernel))
        sizes_of = [ir.IntegerAttr(size).value for size in ir.ArrayAttr(kernel.attributes["tile.buffers"])]
        # Matrix tiles read one buffer while another is written: at the same place of a page, reads would wait for writes.
        apart = [16 * (5 + 6 * number) if tiles else 0 for number in range(len(sizes_of))]
        buffers = [_allocate(size + more, score) for size, more in zip(sizes_of, apart, strict=True)]
        buffers.append(_allocate(lanes, score))
        arguments = _unpack(words, list(block.arguments))
        places, nowhere, random = _allocate(lanes, emit.i64()), _allocate(1, score), _allocate(dropout.rooms(kernel, lanes), emit.i64())
        total, blocks, heads = (_word(words, position) for position in (1, 2, 3))

        def body(program: ir.Value) -> None:
            by_keys = in_rows or _grid(sizes) == "pairs"
            listed = "lengths" in sizes  # by the driver, the longest first
            ids = _program(program, blocks, heads, last_first=not by_keys and not listed)
            rules = {**RULES, **row_rules.RULES} if in_rows else RULES
            context = Lowering(target, lanes, score, buffers, ids, places, nowhere, by_keys, random, rules=dict(rules))
            context.values.update(zip(block.arguments, arguments, strict=True))
            context.tiles = tiles
            context.lower_block(block)

        _worker_loop(words, total, body)
        func.ReturnOp([])
    kernel.erase()


def _grid(sizes: ir.DictAttr) -> str:
    return ir.StringAttr(sizes["grid"]).value if "grid" in sizes else "rows"


def _program(program: ir.Value, blocks: ir.Value, heads: ir.Value, last_first: bool) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Block, head and batch of the program with this number."""
    per_batch = emit.mul(blocks, heads)
    batch = arith.DivUIOp(program, per_batch).result
    rest = arith.RemUIOp(program, per_batch).result
    head, block = arith.DivUIOp(rest, blocks).result, arith.RemUIOp(rest, blocks).result
    if last_first:
        block = arith.SubIOp(arith.SubIOp(blocks, emit.integer(1)).result, block).result
    return emit.to_index(block), emit.to_index(head), emit.to_index(batch)


def _worker_loop(words: ir.Value, total: ir.Value, body: object) -> None:
    """while (program = counter++) < total: body(program)."""
    i64 = emit.i64()
    loop = scf.WhileOp([i64], [])
    before = loop.before.blocks.append()
    after = loop.after.blocks.append(i64)
    with ir.InsertionPoint(before):
        taken = llvm.AtomicRMWOp(llvm.AtomicBinOp.add, words, emit.integer(1), llvm.AtomicOrdering.monotonic).res
        more = arith.CmpIOp(arith.CmpIPredicate.slt, taken, total).result
        scf.ConditionOp(more, [taken])
    with ir.InsertionPoint(after):
        body(after.arguments[0])  # type: ignore[operator]
        scf.YieldOp([])


def _word(words: ir.Value, position: int) -> ir.Value:
    return emit.load(emit.i64(), emit.element_pointer(words, emit.integer(position), emit.i64()))


def _unpack(words: ir.Value, arguments: list[ir.Value]) -> list[Lowered]:
    position, unpacked = HEADER, []
    for argument in arguments:
        type_ = argument.type
        if not isinstance(type_, ir.MemRefType):
            unpacked.append(_scalar(_word(words, position), type_))
            position += 1
            continue
        rank = type_.rank
        address = llvm.IntToPtrOp(emit.pointer(), _word(words, position)).result
        numbers = [_word(words, position + 1 + k) for k in range(2 * rank)]
        unpacked.append(MemRef(address, type_.element_type, tuple(numbers[:rank]), tuple(numbers[rank:])))
        position += 1 + 2 * rank
    return unpacked


def _scalar(word: ir.Value, type_: ir.Type) -> ir.Value:
    if isinstance(type_, ir.IndexType):
        return emit.to_index(word)
    if isinstance(type_, ir.F64Type):
        return arith.BitcastOp(type_, word).result
    return arith.BitcastOp(type_, arith.TruncIOp(ir.IntegerType.get_signless(32), word).result).result


def _allocate(elements: int, type_: ir.Type) -> ir.Value:
    op = llvm.AllocaOp(emit.pointer(), emit.integer(max(1, elements)), ir.TypeAttr.get(type_), alignment=64)
    return op.res


def score_type(kernel: ir.Operation) -> ir.Type:
    """The type that the kernel computes in: what it says, else f64 when its first input is, else f32."""
    sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
    if "score" in sizes:
        return ir.TypeAttr(sizes["score"]).value
    memories = [a.type for a in kernel.regions[0].blocks[0].arguments if isinstance(a.type, ir.MemRefType)]
    return ir.F64Type.get() if memories and isinstance(memories[0].element_type, ir.F64Type) else ir.F32Type.get()


def _lower_program_id(context: Lowering, op: ir.Operation) -> None:
    context.values[op.results[0]] = context.program[ir.IntegerAttr(op.attributes["axis"]).value]


def _lower_dim(context: Lowering, op: ir.Operation) -> None:
    memory = context.get(op.operands[0])
    dimension = op.operands[1].owner.operation.attributes["value"]
    if not isinstance(memory, MemRef):
        raise UnsupportedError("memref.dim asks for a size of an argument")
    context.values[op.results[0]] = emit.to_index(memory.sizes[ir.IntegerAttr(dimension).value])


RULES = {
    "memref.dim": _lower_dim,
    "scalar": lower_scalar,
    "scf.for": lower_for,
    "scf.if": lower_if,
    "tile.accumulate": lower_accumulate,
    "tile.add_band": lower_add_band,
    "tile.add_window": lower_add_window,
    "tile.band": lower_band,
    "tile.dot": lower_dot,
    "tile.dot_add": lower_dot_accumulate,
    "tile.dot_rescale": lower_dot_accumulate,
    "tile.fill": lower_fill,
    "tile.gather": lower_gather,
    "tile.load": lower_load,
    "tile.load_pages": lower_load_pages,
    "tile.load_window": lower_load_window,
    "tile.map": lower_map,
    "tile.program_id": _lower_program_id,
    "tile.scatter_add": lower_scatter_add,
    "tile.store": lower_store,
    "attn.range": lower_range,
}
