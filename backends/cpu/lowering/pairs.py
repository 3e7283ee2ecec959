"""Products of bf16 with the AVX-512 instruction that multiplies pairs and accumulates in f32 (`vdpbf16ps`)."""

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.blocks import blocked, overlapping
from attn_mlir.backends.cpu.lowering.context import LanePairs, LaneTile, Lowered, Lowering, RowPairs, RowTile
from attn_mlir.backends.cpu.lowering.packing import WIDTH, word_type, word_vector
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import arith, ir, scf, vector


def dot_words(total: ir.Value, lanes: ir.Value, element: ir.Value, real: bool = True) -> ir.Value:
    """total + pairwise products of 16 words with 16 others; not `real`: without the instruction for it."""
    if not real:
        for half in (_upper, _lower):
            total = vector.FMAOp(half(lanes), half(element), total).result
        return total
    pairs = ir.VectorType.get([2 * WIDTH], ir.BF16Type.get())
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


def _upper(words: ir.Value) -> ir.Value:
    """The bf16 in the upper half of each word, as f32."""
    mask = emit.splat(emit.integer(-65536, 32), WIDTH)
    return _as_f32(arith.AndIOp(words, mask).result)


def _lower(words: ir.Value) -> ir.Value:
    """That in the lower half."""
    return _as_f32(arith.ShLIOp(words, emit.splat(emit.integer(16, 32), WIDTH)).result)


def _as_f32(words: ir.Value) -> ir.Value:
    return arith.BitcastOp(ir.VectorType.get([WIDTH], ir.F32Type.get()), words).result


def _load_lanes(context: Lowering, tile: LanePairs, pair: ir.Value) -> list[ir.Value]:
    base = emit.element_pointer(tile.address, emit.mul(emit.to_i64(pair), emit.integer(context.lanes)), word_type())
    return [
        emit.load(word_vector(), emit.element_pointer(base, emit.integer(begin), word_type()), alignment=64)
        for begin in range(0, context.lanes, WIDTH)
    ]


def _multiply(context: Lowering, tile: LanePairs, pairs: ir.Value, initial: list[ir.Value], rows: int, element: object) -> list[ir.Value]:
    """Runs over the pairs; `element(pair, row)` loads the word to broadcast. Accumulators come row by row."""
    slices, real = context.lanes // WIDTH, context.target.executes("avx512_bf16")
    loop = scf.ForOp(emit.index(0), pairs, emit.index(1), initial)
    with ir.InsertionPoint(loop.body):
        lanes = _load_lanes(context, tile, loop.induction_variable)
        totals = []
        for row in range(rows):
            word = emit.splat(element(loop.induction_variable, row), WIDTH)  # type: ignore[operator]
            totals += [dot_words(loop.inner_iter_args[row * slices + s], lanes[s], word, real) for s in range(slices)]
        scf.YieldOp(totals)
    return list(loop.results)


def lower_dot(context: Lowering, op: ir.Operation, count: ir.Value) -> None:
    """`tile.dot` with keys in memory: two elements of a key are one word."""
    left, right = context.get(op.operands[0]), context.get(op.operands[1])
    if not isinstance(left, LanePairs) or not isinstance(right, RowTile):
        raise UnsupportedError("pairs multiply query rows with keys in memory")
    depth = ir.RankedTensorType(op.operands[0].type).shape[1] // 2
    target = LaneTile(context.buffer(op))
    rows = context.target.rows_per_step(context.lanes, 4)
    part = ir.VectorType.get([WIDTH], context.score)
    slices = context.lanes // WIDTH

    def block(first: ir.Value, rows: int) -> None:
        keys = []
        for r in range(rows):
            key = emit.add(emit.to_i64(first), emit.integer(r))
            keys.append(emit.element_pointer(right.address, emit.mul(key, right.stride), ir.BF16Type.get()))
        zero = emit.number(part, 0.0)

        def element(pair: ir.Value, row: int) -> ir.Value:
            return emit.load(word_type(), emit.element_pointer(keys[row], pair, word_type()), alignment=2)

        totals = _multiply(context, left, emit.index(depth), [zero] * (rows * slices), rows, element)
        for r in range(rows):
            base = context.column(target, emit.add(first, emit.index(r)))
            _store_slices(context, base, totals[r * slices : (r + 1) * slices])

    overlapping(count, rows, block)
    context.values[op.results[0]] = target


def lower_dot_accumulate(context: Lowering, op: ir.Operation, scale: ir.Value | None, a: ir.Value, b: ir.Value, count: ir.Value) -> None:
    """`tile.dot_add` and `tile.dot_rescale` with pairs of weights and of values."""
    accumulator, left, right = context.get(op.operands[0]), context.get(a), row_pairs(context.get(b))
    if not isinstance(accumulator, LaneTile) or not isinstance(left, LanePairs) or not isinstance(right, RowPairs):
        raise UnsupportedError("pairs accumulate weights times packed values")
    rows = context.target.rows_per_step(context.lanes, 4)
    part = ir.VectorType.get([WIDTH], context.score)
    slices = context.lanes // WIDTH
    pairs = arith.DivUIOp(emit.add(count, emit.index(1)), emit.index(2)).result
    factors = [None if scale is None else _slice(scale, s * WIDTH, part) for s in range(slices)]

    def block(first: ir.Value, rows: int) -> None:
        bases = [context.column(accumulator, emit.add(first, emit.index(r))) for r in range(rows)]
        column = emit.element_pointer(right.address, first, word_type())

        def element(pair: ir.Value, row: int) -> ir.Value:
            offset = emit.add(emit.mul(emit.to_i64(pair), emit.integer(right.columns)), emit.integer(row))
            return emit.load(word_type(), emit.element_pointer(column, offset, word_type()), alignment=4)

        totals = _multiply(context, left, pairs, [emit.number(part, 0.0)] * (rows * slices), rows, element)
        for r, base in enumerate(bases):
            for s in range(slices):
                place = emit.element_pointer(base, emit.integer(s * WIDTH), context.score)
                old = emit.load(part, place, alignment=64)
                emit.store(add_scaled(old, factors[s], totals[r * slices + s]), place, alignment=64)

    blocked(emit.index(0), emit.index(right.columns), rows, block)
    context.values[op.results[0]] = accumulator


def add_scaled(old: ir.Value, scale: ir.Value | None, total: ir.Value) -> ir.Value:
    """old * scale + total; without a scale, old + total."""
    return arith.AddFOp(old, total).result if scale is None else vector.FMAOp(old, scale, total).result


def row_pairs(tile: Lowered) -> Lowered | None:
    """The tile two rows at a time."""
    return tile.pairs if isinstance(tile, RowTile) else tile


def _slice(value: ir.Value, begin: int, part: ir.VectorType) -> ir.Value:
    if ir.VectorType(value.type).shape == part.shape:
        return value
    return vector.ExtractStridedSliceOp(part, value, [begin], [WIDTH], [1]).result


def _store_slices(context: Lowering, base: ir.Value, values: list[ir.Value]) -> None:
    for s, value in enumerate(values):
        emit.store(value, emit.element_pointer(base, emit.integer(s * WIDTH), context.score), alignment=64)
