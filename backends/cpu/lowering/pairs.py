"""Products of bf16 with the AVX-512 instruction that multiplies pairs and accumulates in f32 (`vdpbf16ps`)."""

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.blocks import blocked
from attn_mlir.backends.cpu.lowering.context import Context, LanePairs, LaneTile, Memory, RowPairs, RowTile
from attn_mlir.mlir import arith, ir, scf, vector

_WIDTH = 16


def _i32() -> ir.Type:
    return ir.IntegerType.get_signless(32)


def _words(width: int = _WIDTH) -> ir.VectorType:
    return ir.VectorType.get([width], _i32())


def pack_lanes(context: Context, tile: LaneTile, columns: ir.Value) -> LanePairs:
    """Packs columns (f32 holding bf16 values) in pairs, in place: pair p only overwrites columns already read."""
    half = arith.DivUIOp(columns, emit.index(2)).result
    loop = scf.ForOp(emit.index(0), half, emit.index(1), [])
    with ir.InsertionPoint(loop.body):
        first = emit.mul(loop.induction_variable, emit.index(2))
        even, odd = (_column_bits(context, tile, column) for column in (first, emit.add(first, emit.index(1))))
        word = arith.OrIOp(odd, _upper_half(context, even)).result
        emit.store(word, context.column(tile, loop.induction_variable), alignment=64)
        scf.YieldOp([])
    single = arith.CmpIOp(arith.CmpIPredicate.ne, emit.mul(half, emit.index(2)), columns).result
    last = scf.IfOp(single, [], has_else=False)
    with ir.InsertionPoint(last.then_block):
        even = _column_bits(context, tile, arith.SubIOp(columns, emit.index(1)).result)
        emit.store(_upper_half(context, even), context.column(tile, half), alignment=64)
        scf.YieldOp([])
    return LanePairs(tile.address)


def _column_bits(context: Context, tile: LaneTile, column: ir.Value) -> ir.Value:
    return arith.BitcastOp(_words(context.lanes), context.load_column(tile, column)).result


def _upper_half(context: Context, bits: ir.Value) -> ir.Value:
    """The bf16 in the upper half of each word, moved to the lower one."""
    sixteen = emit.splat(emit.integer(16, 32), context.lanes)
    return arith.ShRUIOp(bits, sixteen).result


def pack_rows(context: Context, address: ir.Value, memory: Memory, buffer: ir.Value, count: ir.Value, columns: int) -> RowPairs:
    """Interleaves rows of bf16 from memory in pairs; a last single row is paired with zeros."""
    half = arith.DivUIOp(count, emit.index(2)).result
    pairs = scf.ForOp(emit.index(0), half, emit.index(1), [])
    with ir.InsertionPoint(pairs.body):
        _pack_row_pair(address, memory, buffer, pairs.induction_variable, columns, single=False)
        scf.YieldOp([])
    odd = arith.CmpIOp(arith.CmpIPredicate.ne, emit.mul(half, emit.index(2)), count).result
    last = scf.IfOp(odd, [], has_else=False)
    with ir.InsertionPoint(last.then_block):
        _pack_row_pair(address, memory, buffer, half, columns, single=True)
        scf.YieldOp([])
    return RowPairs(buffer, columns)


def _pack_row_pair(address: ir.Value, memory: Memory, buffer: ir.Value, pair: ir.Value, columns: int, single: bool) -> None:
    row = emit.mul(emit.to_i64(pair), emit.integer(2))
    even = emit.element_pointer(address, emit.mul(row, memory.strides[2]), memory.element)
    odd = emit.element_pointer(even, memory.strides[2], memory.element)
    target = emit.element_pointer(buffer, emit.mul(emit.to_i64(pair), emit.integer(columns)), _i32())
    whole = columns // _WIDTH * _WIDTH
    for begin, end, width in ((0, whole, _WIDTH), (whole, columns, 1)):
        if begin == end:
            continue
        loop = scf.ForOp(emit.index(begin), emit.index(end), emit.index(width), [])
        with ir.InsertionPoint(loop.body):
            column = loop.induction_variable
            word = _load_words(even, column, width)
            if not single:
                shift = emit.integer(16, 32)
                upper = arith.ShLIOp(_load_words(odd, column, width), shift if width == 1 else emit.splat(shift, width)).result
                word = arith.OrIOp(upper, word).result
            emit.store(word, emit.element_pointer(target, column, _i32()), alignment=4)
            scf.YieldOp([])


def _load_words(row: ir.Value, column: ir.Value, width: int) -> ir.Value:
    """bf16 elements as the lower halves of 32-bit words."""
    i16 = ir.IntegerType.get_signless(16)
    type_ = i16 if width == 1 else ir.VectorType.get([width], i16)
    return arith.ExtUIOp(_i32() if width == 1 else _words(width), emit.load(type_, emit.element_pointer(row, column, i16))).result


def _dot(total: ir.Value, lanes: ir.Value, element: ir.Value) -> ir.Value:
    """total + pairwise products of 16 words of lanes with one broadcast word."""
    pairs = ir.VectorType.get([2 * _WIDTH], ir.BF16Type.get())
    operands = [total, vector.BitCastOp(pairs, lanes).result, vector.BitCastOp(pairs, element).result]
    return ir.Operation.create(
        "llvm.call_intrinsic",
        results=[total.type],
        operands=operands,
        attributes={
            "intrin": ir.StringAttr.get("llvm.x86.avx512bf16.dpbf16ps.512"),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([3, 0]),
            "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
        },
    ).result


def _load_lanes(context: Context, tile: LanePairs, pair: ir.Value) -> list[ir.Value]:
    base = emit.element_pointer(tile.address, emit.mul(emit.to_i64(pair), emit.integer(context.lanes)), _i32())
    return [
        emit.load(_words(), emit.element_pointer(base, emit.integer(begin), _i32()), alignment=64)
        for begin in range(0, context.lanes, _WIDTH)
    ]


def _multiply(context: Context, tile: LanePairs, pairs: ir.Value, initial: list[ir.Value], rows: int, element: object) -> list[ir.Value]:
    """Runs over the pairs; `element(pair, row)` loads the word to broadcast. Accumulators come row by row."""
    slices = context.lanes // _WIDTH
    loop = scf.ForOp(emit.index(0), pairs, emit.index(1), initial)
    with ir.InsertionPoint(loop.body):
        lanes = _load_lanes(context, tile, loop.induction_variable)
        totals = []
        for row in range(rows):
            word = emit.splat(element(loop.induction_variable, row), _WIDTH)  # type: ignore[operator]
            totals += [_dot(loop.inner_iter_args[row * slices + s], lanes[s], word) for s in range(slices)]
        scf.YieldOp(totals)
    return list(loop.results)


def lower_dot(context: Context, op: ir.Operation, count: ir.Value) -> None:
    """`tile.dot` with keys in memory: two elements of a key are one word."""
    left, right = context.get(op.operands[0]), context.get(op.operands[1])
    if not isinstance(left, LanePairs) or not isinstance(right, RowTile):
        raise TypeError("pairs multiply query rows with keys in memory")
    depth = ir.RankedTensorType(op.operands[0].type).shape[1] // 2
    target = LaneTile(context.buffer(op))
    rows = context.target.rows_per_step(context.lanes, 4)
    part = ir.VectorType.get([_WIDTH], context.score)
    slices = context.lanes // _WIDTH

    def block(first: ir.Value, rows: int) -> None:
        keys = []
        for r in range(rows):
            key = emit.add(emit.to_i64(first), emit.integer(r))
            keys.append(emit.element_pointer(right.address, emit.mul(key, right.stride), ir.BF16Type.get()))
        zero = emit.number(part, 0.0)

        def element(pair: ir.Value, row: int) -> ir.Value:
            return emit.load(_i32(), emit.element_pointer(keys[row], pair, _i32()), alignment=2)

        totals = _multiply(context, left, emit.index(depth), [zero] * (rows * slices), rows, element)
        for r in range(rows):
            base = context.column(target, emit.add(first, emit.index(r)))
            _store_slices(context, base, totals[r * slices : (r + 1) * slices])

    blocked(emit.index(0), count, rows, block)
    context.values[op.results[0]] = target


def lower_dot_accumulate(context: Context, op: ir.Operation, scale: ir.Value | None, a: ir.Value, b: ir.Value, count: ir.Value) -> None:
    """`tile.dot_add` and `tile.dot_rescale` with pairs of weights and of values."""
    accumulator, left, right = context.get(op.operands[0]), context.get(a), context.get(b)
    if not isinstance(accumulator, LaneTile) or not isinstance(left, LanePairs) or not isinstance(right, RowPairs):
        raise TypeError("pairs accumulate weights times packed values")
    rows = context.target.rows_per_step(context.lanes, 4)
    part = ir.VectorType.get([_WIDTH], context.score)
    slices = context.lanes // _WIDTH
    pairs = arith.DivUIOp(emit.add(count, emit.index(1)), emit.index(2)).result
    factors = None if scale is None else [_slice(scale, s * _WIDTH, part) for s in range(slices)]

    def block(first: ir.Value, rows: int) -> None:
        bases = [context.column(accumulator, emit.add(first, emit.index(r))) for r in range(rows)]
        initial = []
        for base in bases:
            for s in range(slices):
                value = emit.load(part, emit.element_pointer(base, emit.integer(s * _WIDTH), context.score), alignment=64)
                initial.append(value if factors is None else arith.MulFOp(value, factors[s]).result)
        column = emit.element_pointer(right.address, first, _i32())

        def element(pair: ir.Value, row: int) -> ir.Value:
            offset = emit.add(emit.mul(emit.to_i64(pair), emit.integer(right.columns)), emit.integer(row))
            return emit.load(_i32(), emit.element_pointer(column, offset, _i32()), alignment=4)

        totals = _multiply(context, left, pairs, initial, rows, element)
        for r, base in enumerate(bases):
            _store_slices(context, base, totals[r * slices : (r + 1) * slices])

    blocked(emit.index(0), emit.index(right.columns), rows, block)
    context.values[op.results[0]] = accumulator


def _slice(value: ir.Value, begin: int, part: ir.VectorType) -> ir.Value:
    if ir.VectorType(value.type).shape == part.shape:
        return value
    return vector.ExtractStridedSliceOp(part, value, [begin], [_WIDTH], [1]).result


def _store_slices(context: Context, base: ir.Value, values: list[ir.Value]) -> None:
    for s, value in enumerate(values):
        emit.store(value, emit.element_pointer(base, emit.integer(s * _WIDTH), context.score), alignment=64)
