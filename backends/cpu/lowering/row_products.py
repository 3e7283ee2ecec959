"""Products of tiles that lie row by row: outer products of broadcast numbers with vectors of columns, in blocks that fill the registers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import Lowering, RowMajor
from attn_mlir.backends.cpu.lowering.prefetch import ask, pieces_of, taken
from attn_mlir.backends.cpu.lowering.row_tiles import counted, elements_of, get_tile, in_buffer, padded, tile_in
from attn_mlir.backends.cpu.lowering.transpose import transpose
from attn_mlir.dialects.numbers import flag
from attn_mlir.mlir import arith, ir, scf, vector

_LITTLE = 1e-6
"""Factors of states from which on their last digits matter."""
_SPLIT = 4
"""Vectors of columns from which on blocks of half of them, of which some are not needed, take less time."""

Put = Callable[[ir.Value, ir.Value], object]
"""Takes the first column, and the vector of sums, of a row's product."""


def lower_dot(context: Lowering, op: ir.Operation) -> None:
    """`tile.dot`; where that turns fewer numbers, a b^T is made as (b a^T)^T."""
    target = tile_in(context, op.results[0].type, context.buffer(op))
    made = target
    if exchanged := _is_exchanged(context, op):
        made = in_buffer(context.buffers[-3], target.kept, target.columns, target.rows, context.lanes)

    def row(row: ir.Value) -> Put:
        return lambda column, total: emit.store(total, made.at(row, column), alignment=_alignment(context, made))

    _multiply(context, op, made, row, exchanged)
    if exchanged:
        turn(context, made, target)
    context.values[op.results[0]] = target


def _is_exchanged(context: Lowering, op: ir.Operation) -> bool:
    """Whether less is turned where the factors of a product with a transposed one change places."""
    if not flag(op, "transpose_b") or flag(op, "transpose_a"):
        return False
    a, b = (0 if value in context.transposed else _size(context, value) for value in op.operands)
    return a + _size(context, op.results[0]) < b


def _size(context: Lowering, tile: ir.Value) -> int:
    return elements_of(tile.type, context.lanes, context.score)


def lower_dot_accumulate(context: Lowering, op: ir.Operation) -> None:
    """`tile.dot_add` and `tile.dot_rescale`, in place."""
    target = get_tile(context, op.operands[0])
    scale = get_tile(context, op.operands[1]) if op.name == "tile.dot_rescale" else None
    type_ = ir.VectorType.get([context.lanes], context.score)

    def row(row: ir.Value) -> Put:
        factors = [] if scale is None else _factors(context, scale, row)

        def put(column: ir.Value, total: ir.Value) -> None:
            place = target.at(row, column)
            old = emit.load(type_, place, alignment=_alignment(context, target))
            if scale is None:
                total = arith.AddFOp(old, total).result
            for factor in factors:
                total = vector.FMAOp(old, factor, total).result
            emit.store(total, place, alignment=_alignment(context, target))

        return put

    _multiply(context, op, target, row)
    context.values[op.results[0]] = target


def _factors(context: Lowering, scale: RowMajor, row: ir.Value) -> list[ir.Value]:
    """The factor of a row, for all lanes: two that add up to it, the small one first, where it has more digits than scores."""
    whole = emit.load(scale.kept, scale.at(None, row))
    parts = [emit.cast_float(whole, context.score)]
    if scale.kept != context.score:
        rest = arith.SubFOp(whole, emit.cast_float(parts[0], scale.kept)).result
        # What is left of little does not add up over products, and would be subnormal, which takes a hundred cycles.
        large = arith.CmpFOp(arith.CmpFPredicate.OGT, parts[0], emit.number(context.score, _LITTLE)).result
        parts.insert(0, arith.SelectOp(large, emit.cast_float(rest, context.score), emit.number(context.score, 0.0)).result)
    return [emit.splat(part, context.lanes) for part in parts]


def _alignment(context: Lowering, tile: RowMajor) -> int:
    return context.score_bytes * (context.lanes if tile.stride is None else 1)


@dataclass(frozen=True)
class _Left:
    """The first factor, [rows, depth], or in memory [depth, rows]."""

    tile: RowMajor
    transposed: bool

    def elements(self, first: ir.Value, count: int) -> Callable[[ir.Value], list[ir.Value]]:
        """A function that gives the addresses of `count` rows' elements at a depth."""
        numbers = [emit.add(first, emit.index(r)) for r in range(count)]
        if self.transposed:
            return lambda k: [self.tile.at(k, number) for number in numbers]
        if self.tile.band:
            return lambda k: [self.tile.at(number, k) for number in numbers]
        rows = [self.tile.at(number, emit.index(0)) for number in numbers]
        return lambda k: [emit.element_pointer(row, k, self.tile.kept) for row in rows]


def _multiply(context: Lowering, op: ir.Operation, target: RowMajor, finish: Callable[[ir.Value], Put], exchanged: bool = False) -> None:
    """Calls `finish(row)(first column, vector)` for all vectors of a b, or of b^T a^T where factors are `exchanged`."""
    first, second = list(op.operands)[-2:]
    if exchanged:
        first, second = second, first
    a = get_tile(context, first)
    left = _Left(a, flag(op, "transpose_a"))
    depth = a.rows if left.transposed else a.columns
    right = _transposed(context, second) if flag(op, "transpose_b") else get_tile(context, second)
    vectors = target.width // context.lanes
    unread = _unread(op, exchanged)
    rows, wide = block_sizes(target.rows, vectors // 2 if unread and vectors >= _SPLIT else vectors, context.target.registers)
    down, across = -(-target.rows // rows), -(-vectors // wide)
    upcoming = [] if unread else taken(context, target.rows * vectors * depth // 2)
    pieces = 1 if "zeros" in op.attributes else pieces_of(upcoming, down * across, depth)

    def part(row: ir.Value, column: ir.Value) -> ir.Value:
        """The number of the block that begins here."""
        from_left = arith.DivUIOp(column, emit.index(wide * context.lanes)).result
        return emit.add(emit.mul(from_left, emit.index(down)), arith.DivUIOp(row, emit.index(rows)).result)

    def block(row: ir.Value, rows: int, column: ir.Value, wide: int) -> None:
        type_ = ir.VectorType.get([context.lanes], context.score)
        elements = left.elements(row, rows)

        def step(k: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
            steps = [right.at(k, emit.add(column, emit.index(n * context.lanes))) for n in range(wide)]
            vectors = [emit.load(type_, step, alignment=_alignment(context, right)) for step in steps]
            totals = []
            for r, address in enumerate(elements(k)):
                factor = emit.splat(emit.load(context.score, address), context.lanes)
                totals += [vector.FMAOp(factor, vectors[n], sums[r * wide + n]).result for n in range(wide)]
            return totals

        def piece(number: ir.Value, begin: ir.Value, end: ir.Value, sums: Sequence[ir.Value]) -> Sequence[ir.Value]:
            ask(upcoming, number, down * across * pieces)
            loop = scf.ForOp(begin, end, emit.index(1), list(sums))
            with ir.InsertionPoint(loop.body):
                scf.YieldOp(step(loop.induction_variable, list(loop.inner_iter_args)))
            return list(loop.results)

        zeros = [emit.number(type_, 0.0)] * (rows * wide)
        if pieces == 1:
            results = piece(part(row, column), *_span(op, row, rows, depth), zeros)
        else:
            size, first = emit.index(depth // pieces), emit.mul(part(row, column), emit.index(pieces))
            loop = scf.ForOp(emit.index(0), emit.index(depth), size, zeros)
            with ir.InsertionPoint(loop.body):
                k = loop.induction_variable
                number = emit.add(first, arith.DivUIOp(k, size).result)
                scf.YieldOp(piece(number, k, emit.add(k, size), list(loop.inner_iter_args)))
            results = list(loop.results)
        for r in range(rows):
            put = finish(emit.add(row, emit.index(r)))
            for n in range(wide):
                put(emit.add(column, emit.index(n * context.lanes)), results[r * wide + n])

    def columns(column: ir.Value, wide: int) -> None:
        end = emit.add(column, emit.index(wide * context.lanes))

        def if_read(row: ir.Value, count: int) -> None:
            needed = {"above": (emit.add(row, emit.index(count)), column), "below": (end, row)}
            later, earlier = needed[unread]
            with ir.InsertionPoint(scf.IfOp(arith.CmpIOp(arith.CmpIPredicate.sgt, later, earlier).result, []).then_block):
                block(row, count, column, wide)
                scf.YieldOp([])

        row_blocks(target.rows, rows, if_read if unread else lambda row, count: block(row, count, column, wide))

    row_blocks(target.width, wide * context.lanes, lambda column, count: columns(column, count // context.lanes))


def _unread(op: ir.Operation, exchanged: bool) -> str:
    """The side of the diagonal on which a product, or its transpose, is not needed; "" where all of it is."""
    side = ir.StringAttr(op.attributes["unread"]).value if "unread" in op.attributes else ""
    return {"above": "below", "below": "above"}.get(side, "") if exchanged else side


def _span(op: ir.Operation, row: ir.Value, rows: int, depth: int) -> tuple[ir.Value, ir.Value]:
    """Where the first factor of a product is not zero in all of these rows."""
    begin, end = emit.index(0), emit.index(depth)
    match ir.StringAttr(op.attributes["zeros"]).value if "zeros" in op.attributes else "":
        case "above":
            end = arith.MinSIOp(emit.add(row, emit.index(rows)), end).result
        case "below":
            begin = row
    return begin, end


def block_sizes(rows: int, vectors: int, registers: int) -> tuple[int, int]:
    """Rows and vectors of columns of a block of sums: as many as fit into registers beside their factors, with few left over."""
    best, found = (-1.0, 0.0), (1, 1)
    for wide in range(1, min(vectors, 6) + 1):
        for high in range(1, min(rows, 12) + 1):
            if high * wide + wide + 1 > registers:
                continue
            # Loads for each multiplication, on sizes rounded up to whole blocks; enough sums in flight hide the latency.
            steps = -(-rows // high) * -(-vectors // wide)
            cost = steps * (max(high * wide, 8, high + wide) + 0.05 * (high + wide))
            score = (-cost, float(high * wide))
            if best == (-1.0, 0.0) or score > best:
                best, found = score, (high, wide)
    return found


def row_blocks(size: int, step: int, body: Callable[[ir.Value, int], None]) -> None:
    """`body(first, count)` for [0, size) in whole steps, then for what is left."""
    whole = size // step * step
    if whole == step:
        body(emit.index(0), step)
    elif whole:
        counted(emit.index(whole), step, lambda first: body(first, step))
    if whole < size:
        body(emit.index(whole), size - whole)


def _transposed(context: Lowering, value: ir.Value) -> RowMajor:
    """A tile with rows and columns exchanged, in the last buffer but one; it stays there for the next product with it."""
    tile = get_tile(context, value)
    target = in_buffer(context.buffers[-2], tile.kept, tile.columns, tile.rows, context.lanes)
    if value not in context.transposed:
        turn(context, tile, target)
        context.transposed = [value]
    return target


def turn(context: Lowering, tile: RowMajor, target: RowMajor) -> None:
    """Writes a tile, with its padding, into `target` with rows and columns exchanged."""
    lanes = context.lanes
    type_ = ir.VectorType.get([lanes], tile.kept)

    def square(row: ir.Value, column: ir.Value) -> None:
        rows = [emit.load(type_, tile.at(emit.add(row, emit.index(r)), column), alignment=_alignment(context, tile)) for r in range(lanes)]
        for number, made in enumerate(transpose(rows)):
            emit.store(made, target.at(emit.add(column, emit.index(number)), row), alignment=_alignment(context, target))

    counted(emit.index(padded(tile.rows, lanes)), lanes, lambda row: counted(emit.index(tile.width), lanes, lambda c: square(row, c)))
