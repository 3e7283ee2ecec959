"""Products of bf16 with AMX: registers of 16 rows of 64 bytes, and an instruction that multiplies two and adds to a third.

Tiles with query rows are transposed, so products with these are made transposed, too: the lanes (query rows) of `LanePairs` are the
columns of the right factor, whose words are pairs along the summed dimension, as the instruction takes them. The left one is keys in
memory, or `ColumnPairs` of values. Sums of rows in memory are made as they lie there, from the columns of `LanePairs` and `RowPairs`.
Two by two tiles of sums at a time read each factor once for two products, in seven of the eight registers.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter "Programming with Intel AMX".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attn_mlir.backends.cpu.lowering import emit, pairs
from attn_mlir.backends.cpu.lowering.blocks import overlapping
from attn_mlir.backends.cpu.lowering.context import ColumnPairs, LanePairs, LaneTile, Lowered, Lowering, RowPairs, RowTile
from attn_mlir.backends.cpu.lowering.emulated_tiles import EmulatedTiles
from attn_mlir.backends.cpu.lowering.packing import WIDTH, word_type, word_vector
from attn_mlir.backends.cpu.lowering.tile_registers import SIDE, TileRegisters
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import arith, ir, scf, vector

_BLOCK = 2 * SIDE
"""Rows and columns of a block of sums."""

Address = Callable[[ir.Value, ir.Value], ir.Value]
"""That of the element, or word, of a row and a column."""


@dataclass(frozen=True)
class _Matrix:
    """Where a factor or the sums lie: `address(row, column)`, and how far rows are apart in bytes (i64)."""

    address: Address
    stride: ir.Value


@dataclass(frozen=True)
class _Product:
    """sums (+)= left x right; pairs along the summed dimension are the columns of left and the rows of right."""

    registers: TileRegisters
    left: _Matrix
    right: _Matrix
    sums: _Matrix

    def block(self, row: ir.Value, rows: int, columns: Sequence[ir.Value], pairs: Sequence[ir.Value], add: bool) -> None:
        """Sums of `rows` rows and 16 columns from each of `columns` on, over 16 pairs from each of `pairs` on; `add` to what is there."""
        starts = [emit.add(row, emit.index(begin)) for begin in range(0, rows, SIDE)]
        places = [[self.sums.address(start, column) for column in columns] for start in starts]
        made = [[self.registers.load(place, self.sums.stride) if add else self.registers.zero() for place in line] for line in places]
        for pair in pairs:
            right = [self.registers.load(self.right.address(pair, column), self.right.stride) for column in columns]
            for n, start in enumerate(starts):
                left = self.registers.load(self.left.address(start, pair), self.left.stride)
                made[n] = [self.registers.multiply(total, left, other) for total, other in zip(made[n], right, strict=True)]
        for totals, line in zip(made, places, strict=True):
            for total, place in zip(totals, line, strict=True):
                self.registers.store(total, place, self.sums.stride)


def lower_dot(context: Lowering, op: ir.Operation, count: ir.Value) -> None:
    """`tile.dot`: the scores of `count` keys in memory, 32 or 16 of them at a time, or without tiles where there are fewer."""
    queries, keys = context.get(op.operands[0]), context.get(op.operands[1])
    if not isinstance(queries, LanePairs) or not isinstance(keys, RowTile):
        raise UnsupportedError("matrix tiles multiply query rows with keys in memory")
    target = LaneTile(context.buffer(op))

    def word(row: ir.Value, pair: ir.Value) -> ir.Value:
        key = emit.element_pointer(keys.address, emit.mul(emit.to_i64(row), keys.stride), ir.BF16Type.get())
        return emit.element_pointer(key, pair, word_type())

    left = _Matrix(word, emit.mul(keys.stride, emit.integer(2)))
    product = _Product(_registers(context), left, _by_lanes(context, queries.address), _by_lanes(context, target.address))
    steps = [emit.index(pair) for pair in range(0, ir.RankedTensorType(op.operands[0].type).shape[1] // 2, SIDE)]

    def block(first: ir.Value, rows: int) -> None:
        _in_lanes(context, lambda lanes: product.block(first, rows, lanes, steps, add=False))

    _in_steps(count, (_BLOCK, SIDE), block, lambda: pairs.lower_dot(context, op, count))
    context.values[op.results[0]] = target


def lower_dot_accumulate(context: Lowering, op: ir.Operation, scale: ir.Value | None, a: ir.Value, b: ir.Value, count: ir.Value) -> None:
    """`tile.dot_add` and `tile.dot_rescale`: weights times values, added to the accumulator."""
    accumulator, weights, values = context.get(op.operands[0]), context.get(a), _column_pairs(context.get(b))
    if not isinstance(accumulator, LaneTile) or not isinstance(weights, LanePairs) or not isinstance(values, ColumnPairs):
        raise UnsupportedError("matrix tiles accumulate weights times packed values")
    if scale is not None:
        _rescale(context, accumulator, values.columns, scale)
    groups = values.groups(count)
    _clear_pairs(context, weights, count, emit.mul(groups, emit.index(values.group)))
    product = _Product(_registers(context), _by_tiles(values), _by_lanes(context, weights.address), _by_lanes(context, accumulator.address))
    loop = scf.ForOp(emit.index(0), groups, emit.index(1), [])
    with ir.InsertionPoint(loop.body):
        begin = emit.mul(loop.induction_variable, emit.index(values.group))
        steps = [emit.add(begin, emit.index(pair)) for pair in range(0, values.group, SIDE)]

        def columns(first: ir.Value, number: int) -> None:
            _in_lanes(context, lambda lanes: product.block(first, number, lanes, steps, add=True))

        _in_blocks(values.columns, columns)
        scf.YieldOp([])
    context.values[op.results[0]] = accumulator


def accumulate(context: Lowering, weights: LanePairs, values: RowPairs, rows: RowTile, terms: ir.Value, count: ir.Value) -> ir.Value:
    """Adds weights times `terms` values to `count` rows of f32 in memory; returns the first row that is left to do, an index.

    All are where some lanes have no value, and fewer than 16 behind whole tiles of rows.
    """
    if weights.columns is None:
        raise UnsupportedError("sums in memory take the weights of a map")
    left = _lines(weights.columns, emit.integer(context.lanes // 2), word_type())
    right = _lines(values.address, emit.integer(values.columns), word_type())
    product = _Product(_registers(context), left, right, _lines(rows.address, rows.stride, context.score))
    steps = [emit.index(pair) for pair in range(0, context.lanes // 2, SIDE)]
    full = arith.CmpIOp(arith.CmpIPredicate.eq, terms, emit.index(context.lanes)).result
    begin = emit.index(0)
    for number in (_BLOCK, SIDE):
        whole = emit.mul(arith.DivUIOp(count, emit.index(number)).result, emit.index(number))
        whole = arith.SelectOp(full, whole, emit.index(0)).result
        loop = scf.ForOp(begin, whole, emit.index(number), [])
        with ir.InsertionPoint(loop.body):
            row = loop.induction_variable

            def columns(first: ir.Value, wide: int, row: ir.Value = row, number: int = number) -> None:
                product.block(row, number, [emit.add(first, emit.index(n)) for n in range(0, wide, SIDE)], steps, add=True)

            _in_blocks(values.columns, columns)
            scf.YieldOp([])
        begin = whole
    return begin


def _registers(context: Lowering) -> TileRegisters:
    """The tile registers of the target, or what does the same in memory."""
    return TileRegisters() if context.target.executes("amx_bf16") else EmulatedTiles(context.target.executes("avx512_bf16"))


def _column_pairs(tile: Lowered) -> Lowered | None:
    """The tile two rows at a time, column by column."""
    return tile.pairs if isinstance(tile, RowTile) else tile


def _by_lanes(context: Lowering, address: ir.Value) -> _Matrix:
    """A tile whose columns are lanes, of words or f32."""
    return _lines(address, emit.integer(context.lanes), context.score)


def _by_tiles(values: ColumnPairs) -> _Matrix:
    """Values in tiles, each of which is dense."""
    return _Matrix(
        lambda column, pair: emit.element_pointer(values.address, values.offset(column, pair), word_type()), emit.integer(4 * SIDE)
    )


def _lines(address: ir.Value, apart: ir.Value, element: ir.Type) -> _Matrix:
    """Rows of elements of four bytes that are `apart` elements (i64) from each other."""

    def place(row: ir.Value, column: ir.Value) -> ir.Value:
        return emit.element_pointer(emit.element_pointer(address, emit.mul(emit.to_i64(row), apart), element), column, element)

    return _Matrix(place, emit.mul(apart, emit.integer(4)))


def _in_lanes(context: Lowering, body: Callable[[list[ir.Value]], None]) -> None:
    """`body` for the first lanes of tiles, two at a time."""
    if context.lanes <= _BLOCK:
        body([emit.index(lane) for lane in range(0, context.lanes, SIDE)])
        return
    loop = scf.ForOp(emit.index(0), emit.index(context.lanes), emit.index(_BLOCK), [])
    with ir.InsertionPoint(loop.body):
        body([emit.add(loop.induction_variable, emit.index(lane)) for lane in range(0, _BLOCK, SIDE)])
        scf.YieldOp([])


def _in_blocks(size: int, body: Callable[[ir.Value, int], None]) -> None:
    """`body(first, number)` for [0, size), a multiple of 16, in blocks and perhaps half of one."""
    whole = size // _BLOCK * _BLOCK
    loop = scf.ForOp(emit.index(0), emit.index(whole), emit.index(_BLOCK), [])
    with ir.InsertionPoint(loop.body):
        body(loop.induction_variable, _BLOCK)
        scf.YieldOp([])
    if whole < size:
        body(emit.index(whole), SIDE)


def _in_steps(count: ir.Value, sizes: Sequence[int], body: Callable[[ir.Value, int], None], otherwise: Callable[[], None]) -> None:
    """`body(first, rows)` for [0, count) in the largest steps that fit, the last of which begins early enough to be whole.

    `otherwise` where none fits.
    """
    if not sizes:
        otherwise()
        return
    size, *smaller = sizes
    branch = scf.IfOp(arith.CmpIOp(arith.CmpIPredicate.sge, count, emit.index(size)).result, [], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        overlapping(count, size, body)
        scf.YieldOp([])
    with ir.InsertionPoint(branch.else_block):
        _in_steps(count, smaller, body, otherwise)
        scf.YieldOp([])


def _rescale(context: Lowering, tile: LaneTile, columns: int, scale: ir.Value) -> None:
    """Multiplies the accumulator where some factor is not 1, which is in few blocks once a row has seen its maximum."""
    one = emit.number(context.row_type, 1.0)
    changed = arith.CmpFOp(arith.CmpFPredicate.UNE, scale, one).result
    some = vector.ReductionOp(ir.IntegerType.get_signless(1), vector.CombiningKind.OR, changed).result
    branch = scf.IfOp(some, [], has_else=False)
    with ir.InsertionPoint(branch.then_block):
        loop = scf.ForOp(emit.index(0), emit.index(columns), emit.index(1), [])
        with ir.InsertionPoint(loop.body):
            d = loop.induction_variable
            context.store_column(arith.MulFOp(context.load_column(tile, d), scale).result, tile, d)
            scf.YieldOp([])
        scf.YieldOp([])


def _clear_pairs(context: Lowering, tile: LanePairs, count: ir.Value, end: ir.Value) -> None:
    """Zeros behind the last pair of weights, up to `end`: what lies there times a zero may be NaN."""
    begin = arith.DivUIOp(emit.add(count, emit.index(1)), emit.index(2)).result
    words = _by_lanes(context, tile.address)
    # A branch, as LLVM makes a call of the loop, after which all tiles are configured again.
    some = scf.IfOp(arith.CmpIOp(arith.CmpIPredicate.slt, begin, end).result, [], has_else=False)
    with ir.InsertionPoint(some.then_block):
        loop = scf.ForOp(begin, end, emit.index(1), [])
        with ir.InsertionPoint(loop.body):
            for lane in range(0, context.lanes, WIDTH):
                emit.store(emit.number(word_vector(), 0), words.address(loop.induction_variable, emit.index(lane)), alignment=64)
            scf.YieldOp([])
        scf.YieldOp([])
