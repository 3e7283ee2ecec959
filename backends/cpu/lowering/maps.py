"""The rule for `tile.map`: scalar code becomes vector code over query rows, in one loop over columns."""

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import ColumnTile, LaneTile, Lowering, MemRef, RowTile
from attn_mlir.backends.cpu.lowering.dropout import prepare
from attn_mlir.backends.cpu.lowering.gather import read_memory
from attn_mlir.backends.cpu.lowering.packing import pack_columns
from attn_mlir.backends.cpu.lowering.vector_maps import lower_vectors, width_of
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import arith, ir, scf
from attn_mlir.passes.tiling.scalars import identity


def lower_map(context: Lowering, op: ir.Operation) -> None:
    """`tile.map` on query rows (vectors) or on rows of keys and values (scalars)."""
    body = op.regions[0].blocks[0]
    if len(body.arguments) == 1:
        _lower_rows(context, op, body)
    elif op.results and "layout" in op.attributes and context.layout(op) == "rows":
        _lower_scalar_map(context, op, body)
    else:
        _lower_columns(context, op, body)


def _lower_rows(context: Lowering, op: ir.Operation, body: ir.Block) -> None:
    """A map over rows alone needs no loop: its results are vectors."""
    context.values[body.arguments[0]] = emit.lane_numbers(context.lanes)
    for view in list(body.operations)[:-1]:
        lower_scalar(context, view.operation)
    for result, value in zip(op.results, body.operations[-1].operation.operands, strict=True):
        context.values[result] = emit.splat(context.scalar(value), context.lanes)


def _lower_columns(context: Lowering, op: ir.Operation, body: ir.Block) -> None:
    i, j = body.arguments
    operations = [view.operation for view in body.operations]
    yielded = list(operations[-1].operands)
    segments = list(ir.DenseI32ArrayAttr(operations[-1].attributes["operandSegmentSizes"]))
    kinds = op.opview.kinds()
    context.values[i] = emit.lane_numbers(context.lanes)
    in_loop = uses_column(operations[:-1], j)
    for inner in operations[:-1]:
        if inner not in in_loop:
            lower_scalar(context, inner)
    kept = prepare(context, in_loop, context.scalar(op.operands[1]))
    initial = [emit.number(context.row_type, identity(kind, context.score)) for kind in kinds]
    tiles = [LaneTile(context.buffer(op, position)) for position in range(segments[0])]
    loop = scf.ForOp(emit.index(0), context.scalar(op.operands[1]), emit.index(1), initial)
    with ir.InsertionPoint(loop.body):
        context.values[j] = loop.induction_variable
        for inner in in_loop:
            if inner in kept:
                context.values[inner.results[0]] = kept[inner](loop.induction_variable)
            else:
                lower_scalar(context, inner)
        for position, tile in enumerate(tiles):
            element = emit.splat(context.scalar(yielded[position]), context.lanes)
            if context.layout(op, position) == "lane_pairs":
                offset = emit.mul(loop.induction_variable, emit.index(context.lanes))
                emit.store(element, emit.element_pointer(tile.address, offset, ir.BF16Type.get()), alignment=2 * context.lanes)
            else:
                context.store_column(emit.cast_float(element, context.score), tile, loop.induction_variable)
        parts = [emit.splat(context.scalar(value), context.lanes) for value in yielded[segments[0] :]]
        flags = "nsz" if context.tiles else "none"  # in three instructions instead of six
        scf.YieldOp([_combine(kind, total, part, flags) for kind, total, part in zip(kinds, loop.inner_iter_args, parts, strict=True)])
    context.values.update(zip(op.results, [*tiles, *loop.results], strict=True))
    for position, tile in enumerate(tiles):
        if context.layout(op, position) == "lane_pairs":
            context.values[op.results[position]] = pack_columns(context, tile.address, context.scalar(op.operands[1]))


def _lower_scalar_map(context: Lowering, op: ir.Operation, body: ir.Block) -> None:
    """A map over keys or values: plain scalar loops, which LLVM may vectorise; vectors where it reads rows in another order."""
    columns = ir.RankedTensorType(op.results[0].type).shape[1]
    tile = RowTile(context.buffer(op), emit.integer(columns))
    *operations, last = (view.operation for view in body.operations)
    i, j = body.arguments
    width = width_of(context, columns, operations, j)
    whole = columns // width * width if width else 0
    rows = scf.ForOp(emit.index(0), context.scalar(op.operands[0]), emit.index(1), [])
    with ir.InsertionPoint(rows.body):
        context.values[i] = rows.induction_variable
        if whole:
            lower_vectors(context, op, tile, rows.induction_variable, whole, width, lower_scalar)
        if whole < columns:
            loop = scf.ForOp(emit.index(whole), emit.index(columns), emit.index(1), [])
            with ir.InsertionPoint(loop.body):
                context.values[j] = loop.induction_variable
                for inner in operations:
                    lower_scalar(context, inner)
                value = emit.cast_float(context.scalar(last.operands[0]), context.score)
                offset = emit.add(emit.mul(emit.to_i64(rows.induction_variable), tile.stride), emit.to_i64(loop.induction_variable))
                emit.store(value, emit.element_pointer(tile.address, offset, context.score))
                scf.YieldOp([])
        scf.YieldOp([])
    context.values[op.results[0]] = tile


def _combine(kind: str, total: ir.Value, part: ir.Value, flags: str) -> ir.Value:
    if kind == "sum":
        return arith.AddFOp(total, part).result
    fast = ir.Attribute.parse(f"#arith.fastmath<{flags}>")
    return (arith.MaximumFOp if kind == "max" else arith.MinimumFOp)(total, part, fastmath=fast).result


def uses_column(operations: list[ir.Operation], j: ir.Value) -> list[ir.Operation]:
    """The ops that (transitively) use the column j; the others can run before the loop over columns."""
    values, found = {j}, []
    for op in operations:
        if any(operand in values for operand in op.operands):
            values.update(op.results)
            found.append(op)
    return found


def lower_scalar(context: Lowering, op: ir.Operation) -> None:
    """One op of a map's region, or of the kernel: on vectors when an operand is one."""
    if op.name == "memref.dim":
        context.rules[op.name](context, op)
        return
    if op.name == "tensor.extract":
        with op.location:
            context.values[op.results[0]] = _read_tile(context, op)
        return
    if op.name == "memref.load":
        memory = context.get(op.operands[0])
        if not isinstance(memory, MemRef):
            raise UnsupportedError("memref.load reads an argument")
        with op.location:
            context.values[op.results[0]] = read_memory(context, memory, [context.scalar(v) for v in list(op.operands)[1:]])
        return
    if op.name == "arith.extf" and op.operands[0] in context.unrounded:
        context.values[op.results[0]] = emit.cast_float(context.unrounded[op.operands[0]], op.results[0].type)
        return
    operands = [context.scalar(operand) for operand in op.operands]
    context.length.count(op)
    if not any(isinstance(operand.type, ir.VectorType) for operand in operands):
        clone = emit.repeat(op, operands, [result.type for result in op.results])
    else:
        wide = [emit.splat(operand, context.lanes) for operand in operands]
        clone = emit.repeat(op, wide, [ir.VectorType.get([context.lanes], result.type) for result in op.results])
    context.values.update(zip(op.results, clone, strict=True))


def _read_tile(context: Lowering, op: ir.Operation) -> ir.Value:
    tile, indices = context.get(op.operands[0]), list(op.operands)[1:]
    if isinstance(tile, ir.Value):
        return tile
    element = ir.RankedTensorType(op.operands[0].type).element_type
    if isinstance(tile, LaneTile):
        # 16-bit tiles hold rounded values in the score type: rounding again is exact.
        return emit.cast_float(context.load_column(tile, context.scalar(indices[1])), element)
    if isinstance(tile, ColumnTile):
        return _read_column(context, op, emit.load(ir.VectorType.get([context.lanes], tile.kept), tile.at(context.scalar(indices[1]))))
    if not isinstance(tile, RowTile):
        raise UnsupportedError("tensor.extract reads a tile")
    offset = emit.add(emit.mul(emit.to_i64(context.scalar(indices[0])), tile.stride), emit.to_i64(context.scalar(indices[1])))
    return emit.cast_float(emit.load(context.score, emit.element_pointer(tile.address, offset, context.score)), element)


def _read_column(context: Lowering, op: ir.Operation, value: ir.Value) -> ir.Value:
    """A column as it is kept, as what the region takes it for."""
    element = op.results[0].type
    if not isinstance(element, ir.FloatType):
        return emit.from_storage(value, element)
    if emit.element_of(value.type) != element:
        context.unrounded[op.results[0]] = value
    return emit.cast_float(value, element)
