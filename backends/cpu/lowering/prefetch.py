"""What the next iteration of a loop reads and writes is asked for while products of this iteration are computed."""

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import Lowering, MemRef, Upcoming
from attn_mlir.mlir import arith, ir, llvm
from attn_mlir.passes.tiling.scalars import known_index

_LINE = 64
_CYCLES = 8
"""Cycles of a product for each line: what more of them cannot be asked for without waiting."""
_AT_ONCE = 4
"""Lines asked for one after another: some more of them, from far away, and what is behind them waits."""
_SHORTEST = 16
"""Steps of a piece of a product between requests."""


def announce(context: Lowering, op: ir.Operation, memory: MemRef, address: ir.Value, shape: tuple[int, int], row: ir.Value) -> None:
    """Notes the tile of `shape` that a load or store at `address`, row `row` of memory, takes in the next iteration, if that is known."""
    rows = _rows_an_iteration(op, row)
    if rows is None or rows == 0:
        return
    width = emit.bytes_of(memory.element)
    stride = emit.mul(memory.strides[2], emit.integer(width))
    following = emit.element_pointer(address, emit.mul(memory.strides[2], emit.integer(rows)), memory.element)
    lines = -(-shape[1] * width // _LINE)
    context.upcoming.append(Upcoming(following, stride, shape[0], lines, op.name == "tile.store"))


def taken(context: Lowering, cycles: int) -> list[Upcoming]:
    """What can be asked for during a product of so many cycles."""
    found: list[Upcoming] = []
    lines = cycles // _CYCLES
    while context.upcoming and context.upcoming[0].rows * context.upcoming[0].lines <= lines:
        found.append(context.upcoming.pop(0))
        lines -= found[-1].rows * found[-1].lines
    return found


def ask(upcoming: list[Upcoming], part: ir.Value, parts: int) -> None:
    """Asks for part `part` of `parts` of the lines."""
    for tile in upcoming:
        total = tile.rows * tile.lines
        each = -(-total // parts)
        for n in range(each):
            number = arith.MinSIOp(emit.add(emit.mul(part, emit.index(each)), emit.index(n)), emit.index(total - 1)).result
            row = arith.DivUIOp(number, emit.index(tile.lines)).result
            line = arith.RemUIOp(number, emit.index(tile.lines)).result
            offset = emit.add(emit.mul(emit.to_i64(row), tile.stride), emit.mul(emit.to_i64(line), emit.integer(_LINE)))
            llvm.Prefetch(emit.element_pointer(tile.address, offset, _byte()), int(tile.written), 3, 1)


def pieces_of(upcoming: list[Upcoming], parts: int, depth: int) -> int:
    """In how many pieces the depth of a block is done, so that no more than _AT_ONCE lines are asked for at a time."""
    lines = sum(tile.rows * tile.lines for tile in upcoming)
    pieces = 1
    while lines > _AT_ONCE * parts * pieces and depth % (2 * pieces) == 0 and depth // (2 * pieces) >= _SHORTEST:
        pieces *= 2
    return pieces


def _byte() -> ir.Type:
    return ir.IntegerType.get_signless(8)


def _rows_an_iteration(op: ir.Operation, row: ir.Value) -> int | None:
    """By how many rows `row` moves in an iteration of the loop whose body holds the op; None where that is unknown."""
    loop = op.parent
    if loop is None or loop.name != "scf.for":
        return None
    step = known_index(loop.operands[2])
    slope = _slope(row, loop.regions[0].blocks[0])
    return None if step is None or slope is None else slope * step


def _slope(value: ir.Value, body: ir.Block) -> int | None:
    """How fast a number grows with the induction variable of the loop with this body."""
    if isinstance(value.owner, ir.Block):
        return int(value == body.arguments[0]) if value.owner == body else 0
    op = value.owner.operation
    if op.block != body:
        return 0
    if op.name in ("arith.addi", "arith.subi"):
        a, b = (_slope(operand, body) for operand in op.operands)
        return None if a is None or b is None else a + b if op.name == "arith.addi" else a - b
    if op.name == "arith.muli":
        factors = [(_slope(x, body), known_index(y)) for x, y in (tuple(op.operands), tuple(op.operands)[::-1])]
        return next((slope * factor for slope, factor in factors if slope is not None and factor is not None), None)
    return 0 if op.name == "arith.constant" else None
