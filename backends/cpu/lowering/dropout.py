"""`attn.kept` inside a `tile.map`: the random words of 16 keys are made once, before the loop over columns.

With query rows in lanes, the words of a group of keys are vectors, kept for the group; the loop reads a word and a byte of it. With keys in
lanes, words are made for several queries at a time, and become a mask for each query, with a bit for each key.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import Lowering
from attn_mlir.mlir import arith, ir, scf, vector
from attn_mlir.passes.dropout import Words
from attn_mlir.passes.regions import find_all, maker
from attn_mlir.philox import BITS, GROUP

_KEPT = 5
"""Vectors for a group: four words, and the least byte that is kept."""
_QUERIES = 16
_MOST_LANES = 48
"""Bits of a mask, but for keys of the first group that come before the tile's."""


@dataclass(frozen=True)
class _Form:
    """How an `attn.kept` stands in its map: which operand runs along the columns, from what on."""

    base: ir.Value
    keys_in_columns: bool


def form_of(op: ir.Operation, lanes: int) -> _Form | None:
    """None for one that is written out for each pair."""
    body = op.block
    if body.owner.operation.name != "tile.map" or len(body.arguments) != 2:
        return None
    i, j = body.arguments
    *_, q_idx, kv_idx = op.operands
    along = _along(body, j)
    moving = [position for position, value in enumerate(op.operands) if value in along]
    if moving not in ([6], [7]):
        return None
    sum_ = maker(kv_idx if moving == [7] else q_idx, "arith.addi")
    if sum_ is None or j not in list(sum_.operands):
        return None
    base = next((value for value in sum_.operands if value != j), None)
    of_row = _along(body, i)
    if base is None or base in along or base in of_row:
        return None
    if moving == [7]:
        return _Form(base, True)
    others = any(value in of_row for value in list(op.operands)[:6])
    return None if others or lanes > _MOST_LANES else _Form(base, False)


def _along(body: ir.Block, argument: ir.Value) -> set[ir.Value]:
    """What depends on an argument of a block."""
    found = {argument}
    for view in body.operations:
        if any(operand in found for operand in view.operation.operands):
            found.update(view.operation.results)
    return found


def written_out(kernel: ir.Operation, lanes: int) -> list[ir.Operation]:
    """Those of a kernel that are arithmetic of each pair: all but the first of each map that has a form."""
    first: dict[ir.Block, ir.Operation] = {}
    for op in find_all(kernel, "attn.kept"):
        if "tile.layout" not in kernel.attributes and form_of(op, lanes) is not None:
            first.setdefault(op.block, op)
    return [op for op in find_all(kernel, "attn.kept") if op not in first.values()]


def rooms(kernel: ir.Operation, lanes: int) -> int:
    """Words of 64 bits for what is made before the loops of a kernel's maps."""
    if not find_all(kernel, "attn.kept"):
        return 0
    keys = ir.IntegerAttr(ir.DictAttr(kernel.attributes["tile.kernel"])["block_kv"]).value
    return max((keys // GROUP + 2) * _KEPT * lanes, keys + _QUERIES)


Read = Callable[[ir.Value], ir.Value]


def prepare(context: Lowering, operations: list[ir.Operation], columns: ir.Value) -> Mapping[ir.Operation, Read]:
    """For each `attn.kept` of a map: what reads its bits in the loop, at a column."""
    made: dict[ir.Operation, Read] = {}
    for op in operations:
        if op.name == "attn.kept":
            form = form_of(op, context.lanes)
            assert form is not None
            with op.location:
                made[op] = (_by_group if form.keys_in_columns else _by_query)(context, op, context.scalar(form.base), columns)
    return made


def _wide(context: Lowering, value: ir.Value, lanes: int) -> ir.Value:
    return emit.splat(emit.to_i64(context.scalar(value)), lanes)


def _row(context: Lowering, op: ir.Operation, lanes: int) -> ir.Value:
    """b * heads + h."""
    heads, b, h = (_wide(context, op.operands[n], lanes) for n in (3, 4, 5))
    return emit.add(emit.mul(b, heads), h)


def _group(key: ir.Value) -> ir.Value:
    return arith.ShRUIOp(key, emit.integer(4)).result


def _by_group(context: Lowering, op: ir.Operation, base: ir.Value, columns: ir.Value) -> Read:
    """Lanes are queries: words[group][word][lane]."""
    lanes, room = context.lanes, context.random
    wide, narrow = (ir.VectorType.get([lanes], ir.IntegerType.get_signless(bits)) for bits in (64, 32))
    first = emit.to_i64(base)
    begin = _group(first)
    last = _group(emit.add(first, arith.SubIOp(emit.to_i64(columns), emit.integer(1)).result))
    count = emit.to_index(emit.add(arith.SubIOp(last, begin).result, emit.integer(1)))

    def place(group: ir.Value, number: ir.Value) -> ir.Value:
        at = emit.add(emit.mul(group, emit.integer(_KEPT)), number)
        return emit.element_pointer(room, emit.mul(at, emit.integer(lanes)), ir.IntegerType.get_signless(32))

    w = Words(wide)
    keys = w.keys(_wide(context, op.operands[0], lanes))
    drop, offset = (_wide(context, op.operands[n], lanes) for n in (2, 1))
    query, row, shift = w.low(_wide(context, op.operands[6], lanes)), w.low(_row(context, op, lanes)), w.low(offset)
    w.hoist()
    loop = scf.ForOp(emit.index(0), count, emit.index(1), [])
    with ir.InsertionPoint(loop.body):
        group = emit.to_i64(loop.induction_variable)
        four = w.philox([w.low(emit.splat(emit.add(begin, group), lanes)), query, row, shift], keys)
        for number, word in enumerate([*four, w.limit(drop, four)]):
            emit.store(arith.TruncIOp(narrow, word).result, place(group, emit.integer(number)))
        scf.YieldOp([])

    def read(column: ir.Value) -> ir.Value:
        key = emit.add(first, emit.to_i64(column))
        group = arith.SubIOp(_group(key), begin).result
        number = arith.AndIOp(arith.ShRUIOp(key, emit.integer(1)).result, emit.integer(3)).result
        word = emit.load(narrow, place(group, number))
        limit = emit.load(narrow, place(group, emit.integer(_KEPT - 1)))
        second = emit.mul(arith.AndIOp(key, emit.integer(1)).result, emit.integer(8))
        later = emit.mul(arith.AndIOp(key, emit.integer(8)).result, emit.integer(2))
        by = emit.splat(arith.TruncIOp(ir.IntegerType.get_signless(32), emit.add(second, later)).result, lanes)
        shifted = arith.ShRUIOp(word, by).result
        low = arith.AndIOp(shifted, emit.splat(emit.integer((1 << BITS) - 1, 32), lanes)).result
        return arith.CmpIOp(arith.CmpIPredicate.uge, low, limit).result

    return read


def _by_query(context: Lowering, op: ir.Operation, base: ir.Value, columns: ir.Value) -> Read:
    """Lanes are keys: a mask for each query."""
    lanes, room = context.lanes, context.random
    queries = ir.VectorType.get([_QUERIES], emit.i64())
    key = _wide(context, op.operands[7], lanes)
    first, last = (vector.ExtractOp(key, [], [number]).result for number in (0, lanes - 1))
    begin = _group(first)
    groups = emit.to_index(emit.add(arith.SubIOp(_group(last), begin).result, emit.integer(1)))
    w = Words(queries)
    keys = w.keys(_wide(context, op.operands[0], _QUERIES))
    drop, offset = (_wide(context, op.operands[n], _QUERIES) for n in (2, 1))
    row, shift, from_ = w.low(_row(context, op, _QUERIES)), w.low(offset), emit.splat(emit.to_i64(base), _QUERIES)
    w.hoist()
    steps = emit.to_i64(emit.lane_numbers(_QUERIES))
    loop = scf.ForOp(emit.index(0), columns, emit.index(_QUERIES), [])
    with ir.InsertionPoint(loop.body):
        column = emit.to_i64(loop.induction_variable)
        query = w.low(emit.add(emit.add(from_, emit.splat(column, _QUERIES)), steps))
        inner = scf.ForOp(emit.index(0), groups, emit.index(1), [w.constant(0)])
        with ir.InsertionPoint(inner.body):
            group = emit.to_i64(inner.induction_variable)
            four = w.philox([w.low(emit.splat(emit.add(begin, group), _QUERIES)), query, row, shift], keys)
            mask = _mask(w, four, w.limit(drop, four))
            at = emit.splat(emit.mul(group, emit.integer(GROUP)), _QUERIES)
            scf.YieldOp([arith.OrIOp(inner.inner_iter_args[0], arith.ShLIOp(mask, at).result).result])
        emit.store(inner.results[0], emit.element_pointer(room, column, emit.i64()))
        scf.YieldOp([])
    place = arith.SubIOp(key, emit.splat(emit.mul(begin, emit.integer(GROUP)), lanes)).result

    def read(column: ir.Value) -> ir.Value:
        mask = emit.splat(emit.load(emit.i64(), emit.element_pointer(room, column, emit.i64())), lanes)
        bit = ir.VectorType.get([lanes], ir.IntegerType.get_signless(1))
        return arith.TruncIOp(bit, arith.ShRUIOp(mask, place).result).result

    return read


def _mask(w: Words, four: list[ir.Value], limit: ir.Value) -> ir.Value:
    """Bit k says whether the group's key k is kept."""
    found = w.constant(0)
    for key in range(GROUP):
        byte = arith.AndIOp(w.shifted(four[key // 2 % 4], 8 * (key % 2) + 16 * (key // 8)), w.constant((1 << BITS) - 1)).result
        kept = arith.CmpIOp(arith.CmpIPredicate.uge, byte, limit).result
        found = arith.OrIOp(found, w.select(kept, w.constant(1 << key), w.constant(0))).result
    return found
