"""Packs tiles of bf16 into 32-bit words that hold two neighbours along the dimension that a product sums over."""

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import ColumnPairs, LanePairs, LaneTile, Lowering, MemRef, RowPairs, RowTile
from attn_mlir.backends.cpu.lowering.transpose import transpose
from attn_mlir.mlir import arith, ir, llvm, scf, vector

WIDTH = 16
"""Words in a vector."""


def word_type() -> ir.Type:
    """The type of a word."""
    return ir.IntegerType.get_signless(32)


def word_vector(width: int = WIDTH) -> ir.VectorType:
    """A vector of words."""
    return ir.VectorType.get([width], word_type())


def pack_columns(context: Lowering, columns: ir.Value, count: ir.Value) -> LanePairs:
    """Pairs `count` columns of bf16 that begin at `columns`; the pairs follow them. A last single one is paired with zeros."""
    half = arith.DivUIOp(count, emit.index(2)).result
    even = arith.DivUIOp(emit.add(count, emit.index(1)), emit.index(2)).result
    first = emit.element_pointer(columns, emit.mul(even, emit.index(2 * context.lanes)), ir.BF16Type.get())
    type_ = ir.VectorType.get([context.lanes], ir.IntegerType.get_signless(16))

    def column(number: ir.Value) -> ir.Value:
        offset = emit.mul(number, emit.index(context.lanes))
        return emit.load(type_, emit.element_pointer(columns, offset, type_.element_type), alignment=2 * context.lanes)

    def put(pair: ir.Value, low: ir.Value, high: ir.Value) -> None:
        place = emit.element_pointer(first, emit.mul(pair, emit.index(context.lanes)), word_type())
        emit.store(vector.InterleaveOp(low, high).result, place, alignment=64)

    loop = scf.ForOp(emit.index(0), half, emit.index(1), [])
    with ir.InsertionPoint(loop.body):
        number = emit.mul(loop.induction_variable, emit.index(2))
        put(loop.induction_variable, column(number), column(emit.add(number, emit.index(1))))
        scf.YieldOp([])
    last = scf.IfOp(arith.CmpIOp(arith.CmpIPredicate.ne, half, even).result, [], has_else=False)
    with ir.InsertionPoint(last.then_block):
        put(half, column(emit.mul(half, emit.index(2))), emit.splat(emit.integer(0, 16), context.lanes))
        scf.YieldOp([])
    return LanePairs(first, columns)


def pack_lanes(context: Lowering, tile: LaneTile, columns: ir.Value) -> LanePairs:
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


def pack_lane_rows(context: Lowering, source: tuple[ir.Value, MemRef], buffer: ir.Value, count: ir.Value, columns: int) -> LanePairs:
    """Pairs of columns, a multiple of 32, of rows from an address on: transposes squares of words. Lanes past `count` repeat the last."""
    (address, memory), last = source, arith.SubIOp(count, emit.index(1)).result
    lanes = scf.ForOp(emit.index(0), emit.index(context.lanes), emit.index(WIDTH), [])
    with ir.InsertionPoint(lanes.body):
        first = lanes.induction_variable
        rows = [arith.MinSIOp(emit.add(first, emit.index(lane)), last).result for lane in range(WIDTH)]
        sources = [emit.element_pointer(address, emit.mul(emit.to_i64(row), memory.strides[2]), memory.element) for row in rows]
        loop = scf.ForOp(emit.index(0), emit.index(columns // 2), emit.index(WIDTH), [])
        with ir.InsertionPoint(loop.body):
            pair = loop.induction_variable
            words = [emit.load(word_vector(), emit.element_pointer(row, pair, word_type()), alignment=2) for row in sources]
            for number, line in enumerate(transpose(words)):
                offset = emit.add(emit.mul(emit.add(pair, emit.index(number)), emit.index(context.lanes)), first)
                emit.store(line, emit.element_pointer(buffer, offset, word_type()), alignment=64)
            scf.YieldOp([])
        scf.YieldOp([])
    return LanePairs(buffer)


def _column_bits(context: Lowering, tile: LaneTile, column: ir.Value) -> ir.Value:
    return arith.BitcastOp(word_vector(context.lanes), context.load_column(tile, column)).result


def _upper_half(context: Lowering, bits: ir.Value) -> ir.Value:
    """The bf16 in the upper half of each word, moved to the lower one."""
    sixteen = emit.splat(emit.integer(16, 32), context.lanes)
    return arith.ShRUIOp(bits, sixteen).result


def pack_rows(address: ir.Value, memory: MemRef, buffer: ir.Value, count: ir.Value, columns: int) -> RowPairs:
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


def _pack_row_pair(address: ir.Value, memory: MemRef, buffer: ir.Value, pair: ir.Value, columns: int, single: bool) -> None:
    row = emit.mul(emit.to_i64(pair), emit.integer(2))
    even = emit.element_pointer(address, emit.mul(row, memory.strides[2]), memory.element)
    odd = emit.element_pointer(even, memory.strides[2], memory.element)
    target = emit.element_pointer(buffer, emit.mul(emit.to_i64(pair), emit.integer(columns)), word_type())
    whole = columns // WIDTH * WIDTH
    for begin, end, width in ((0, whole, WIDTH), (whole, columns, 1)):
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
            emit.store(word, emit.element_pointer(target, column, word_type()), alignment=4)
            scf.YieldOp([])


def _load_words(row: ir.Value, column: ir.Value, width: int) -> ir.Value:
    """bf16 elements as the lower halves of 32-bit words."""
    i16 = ir.IntegerType.get_signless(16)
    type_ = i16 if width == 1 else ir.VectorType.get([width], i16)
    return arith.ExtUIOp(word_type() if width == 1 else word_vector(width), emit.load(type_, emit.element_pointer(row, column, i16))).result


def pack_row_columns(address: ir.Value, memory: MemRef, tile: ColumnPairs, count: ir.Value) -> None:
    """Pairs rows of bf16 from memory, column by column; zeros follow `count` rows up to a whole group."""
    rows = 2 * WIDTH
    spare = emit.room(rows * tile.columns, memory.element)
    squares = emit.mul(tile.groups(count), emit.index(tile.group // WIDTH))
    loop = scf.ForOp(emit.index(0), squares, emit.index(1), [])
    with ir.InsertionPoint(loop.body):
        first = emit.mul(loop.induction_variable, emit.index(rows))
        left = arith.MaxSIOp(arith.SubIOp(count, first).result, emit.index(0)).result
        source = emit.element_pointer(address, emit.mul(emit.to_i64(first), memory.strides[2]), memory.element)
        some = arith.CmpIOp(arith.CmpIPredicate.slt, left, emit.index(rows)).result
        branch = scf.IfOp(some, [], has_else=False)
        with ir.InsertionPoint(branch.then_block):
            _copy_with_zeros(RowTile(source, memory.strides[2]), RowTile(spare, emit.integer(tile.columns)), left, tile.columns)
            scf.YieldOp([])
        stride = arith.SelectOp(some, emit.integer(tile.columns), memory.strides[2]).result
        _pack_square(RowTile(arith.SelectOp(some, spare, source).result, stride), tile, arith.DivUIOp(first, emit.index(2)).result)
        scf.YieldOp([])


def _copy_with_zeros(source: RowTile, target: RowTile, count: ir.Value, columns: int) -> None:
    """`count` of 32 rows, whose columns are a multiple of 16, and zeros for the others."""
    part = ir.VectorType.get([WIDTH], ir.IntegerType.get_signless(16))
    for begin, end, there in ((emit.index(0), count, True), (count, emit.index(2 * WIDTH), False)):
        rows = scf.ForOp(begin, end, emit.index(1), [])
        with ir.InsertionPoint(rows.body):
            row = emit.to_i64(rows.induction_variable)
            read, written = (emit.element_pointer(each.address, emit.mul(row, each.stride), part.element_type) for each in (source, target))
            loop = scf.ForOp(emit.index(0), emit.index(columns), emit.index(WIDTH), [])
            with ir.InsertionPoint(loop.body):
                column = loop.induction_variable
                place = emit.element_pointer(read, column, part.element_type)
                value = emit.load(part, place, alignment=2) if there else emit.number(part, 0)
                emit.store(value, emit.element_pointer(written, column, part.element_type), alignment=32)
                scf.YieldOp([])
            scf.YieldOp([])


def _pack_square(source: RowTile, tile: ColumnPairs, pairs: ir.Value) -> None:
    """32 rows, which become the pairs from `pairs` on."""
    i16 = ir.IntegerType.get_signless(16)
    rows = [emit.element_pointer(source.address, emit.mul(emit.integer(row), source.stride), i16) for row in range(2 * WIDTH)]
    wide = not tile.columns % (2 * WIDTH)
    loop = scf.ForOp(emit.index(0), emit.index(tile.columns), emit.index(2 * WIDTH if wide else WIDTH), [])
    with ir.InsertionPoint(loop.body):
        first = loop.induction_variable

        def bits(row: int) -> ir.Value:
            return emit.load(ir.VectorType.get([2 * WIDTH], i16), emit.element_pointer(rows[row], first, i16), alignment=2)

        def word(pair: int) -> ir.Value:
            low, high = (_load_words(rows[2 * pair + n], first, WIDTH) for n in range(2))
            return arith.OrIOp(arith.ShLIOp(high, emit.splat(emit.integer(16, 32), WIDTH)).result, low).result

        def put(number: int, line: ir.Value) -> None:
            offset = tile.offset(emit.add(first, emit.index(number)), pairs)
            emit.store(line, emit.element_pointer(tile.address, offset, word_type()), alignment=64)

        # One half is stored before the other is read: registers do not suffice for both.
        for half in range(2) if wide else ():
            words = [_in_pairs(bits(2 * pair), bits(2 * pair + 1), half) for pair in range(WIDTH)]
            for number, line in enumerate(transpose(words)):
                put(number // 4 * 8 + number % 4 + 4 * half, line)
        for number, line in () if wide else enumerate(transpose([word(pair) for pair in range(WIDTH)])):
            put(number, line)
        scf.YieldOp([])


def _in_pairs(even: ir.Value, odd: ir.Value, half: int) -> ir.Value:
    """Words of two rows of 32 numbers of 16 bits: of every 8 columns the first 4 or the last 4, which takes one instruction."""
    order = [8 * group + 4 * half + n + 32 * row for group in range(4) for n in range(4) for row in range(2)]
    return vector.BitCastOp(word_vector(), llvm.ShuffleVectorOp(even.type, even, odd, ir.DenseI32ArrayAttr.get(order)).res).result
