"""Turns a scheduled kernel into a worker: a function that takes programs of the grid until none is left.

The worker's only argument points to 64-bit words: 0 the counter of programs taken, 1 the number of programs, 2 that of
query blocks, 3 that of heads; then for each argument of the kernel, in order, a scalar in one word, or a memref as address,
sizes and strides (in elements). Programs with the last query blocks come first: under a causal mask they are the longest.
"""

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import Context, Lowered, Memory
from attn_mlir.backends.cpu.lowering.control import lower_for, lower_if
from attn_mlir.backends.cpu.lowering.dots import lower_dot, lower_dot_accumulate
from attn_mlir.backends.cpu.lowering.maps import lower_map, lower_scalar
from attn_mlir.backends.cpu.lowering.memory import lower_fill, lower_load, lower_store
from attn_mlir.backends.cpu.lowering.range import lower_range
from attn_mlir.backends.cpu.target import CpuTarget
from attn_mlir.mlir import arith, func, ir, llvm, scf

HEADER = 4


def lower_kernel(kernel: ir.Operation, target: CpuTarget) -> None:
    """Replaces `kernel` by its worker, under the same name."""
    sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
    lanes = ir.IntegerAttr(sizes["block_q"]).value
    block = kernel.regions[0].blocks[0]
    name = ir.StringAttr(kernel.attributes["sym_name"]).value
    with kernel.location, ir.InsertionPoint(kernel):
        worker = func.FuncOp(name, ir.FunctionType.get([emit.pointer()], []))
        entry = worker.add_entry_block()
    with kernel.location, ir.InsertionPoint(entry):
        score = _score_type(kernel)
        words = entry.arguments[0]
        buffers = [_allocate(ir.IntegerAttr(size).value, score) for size in ir.ArrayAttr(kernel.attributes["tile.buffers"])]
        buffers.append(_allocate(lanes, score))
        arguments = _unpack(words, list(block.arguments))
        total, blocks, heads = (_word(words, position) for position in (1, 2, 3))
        _worker_loop(words, total, lambda program: _body(kernel, block, target, lanes, score, buffers, arguments, program, blocks, heads))
        func.ReturnOp([])
    kernel.erase()


def _body(
    kernel: ir.Operation, block: ir.Block, target: CpuTarget, lanes: int, score: ir.Type, buffers: list[ir.Value],
    arguments: list[Lowered], program: ir.Value, blocks: ir.Value, heads: ir.Value,
) -> None:  # fmt: skip
    per_batch = emit.mul(blocks, heads)
    batch = arith.DivUIOp(program, per_batch).result
    rest = arith.RemUIOp(program, per_batch).result
    head = arith.DivUIOp(rest, blocks).result
    query = arith.SubIOp(arith.SubIOp(blocks, emit.integer(1)).result, arith.RemUIOp(rest, blocks).result).result
    ids = (emit.to_index(query), emit.to_index(head), emit.to_index(batch))
    context = Context(target, lanes, score, buffers, ids, rules=dict(RULES))
    context.values.update(zip(block.arguments, arguments, strict=True))
    context.lower_block(block)


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
        unpacked.append(Memory(address, type_.element_type, tuple(numbers[:rank]), tuple(numbers[rank:])))
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


def _score_type(kernel: ir.Operation) -> ir.Type:
    """f64 when the kernel computes in f64 (its inputs are), else f32."""
    query = ir.MemRefType(kernel.regions[0].blocks[0].arguments[0].type)
    return ir.F64Type.get() if isinstance(query.element_type, ir.F64Type) else ir.F32Type.get()


def _lower_program_id(context: Context, op: ir.Operation) -> None:
    context.values[op.results[0]] = context.program[ir.IntegerAttr(op.attributes["axis"]).value]


def _lower_dim(context: Context, op: ir.Operation) -> None:
    memory = context.get(op.operands[0])
    dimension = op.operands[1].owner.operation.attributes["value"]
    if not isinstance(memory, Memory):
        raise TypeError("memref.dim asks for a size of an argument")
    context.values[op.results[0]] = emit.to_index(memory.sizes[ir.IntegerAttr(dimension).value])


RULES = {
    "memref.dim": _lower_dim,
    "scalar": lower_scalar,
    "scf.for": lower_for,
    "scf.if": lower_if,
    "tile.dot": lower_dot,
    "tile.dot_add": lower_dot_accumulate,
    "tile.dot_rescale": lower_dot_accumulate,
    "tile.fill": lower_fill,
    "tile.load": lower_load,
    "tile.map": lower_map,
    "tile.program_id": _lower_program_id,
    "tile.store": lower_store,
    "attn.range": lower_range,
}
