"""Compares columns of a tile with one bound a row, instead of positions for each element."""

from dataclasses import dataclass, replace

from attn_mlir.backends.gpu.structure import constant
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.layouts import fragment
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker

_SIGNED = {2: (0, True), 3: (0, False), 4: (1, True), 5: (1, False)}
"""Of signed predicates of `arith.cmpi`: which side is the lower one, and whether they must differ."""
_EXCHANGED = {2: 4, 4: 2, 3: 5, 5: 3}
"""Of these, the one for exchanged sides."""
_QUOTIENTS = {0: [(False, False), (True, True)], 2: [(True, False)], 3: [(True, True)], 4: [(False, True)], 5: [(False, False)]}
"""What x / c == q, < q, <= q, > q and >= q say of x: whether it is below, else not below, and whether q c + c, else q c."""


@dataclass(frozen=True)
class BoundColumns(Pass):
    """In maps over tiles, comparisons that hold up to some column of a row, as `q_idx >= kv_idx` of a causal mask, become one: a map over
    row values computes how many columns that are (`i32`), and each element compares its column with it. So do those that hold from a column
    on, as the other side of a sliding window, with the first such column.

    A quotient of a column and a constant is compared as the column: x / c == q where q c <= x < q c + c, as of chunks of keys.

    A comparison may be one side of `arith.ori` whose other side is the same for all columns: the bound is past the end where that holds.
    Others stay, as do those of maps where no bound depends on the row. Without such a comparison the kernel stays as it is, with the reason
    in `warp.refused`.
    """

    name = "warp-bound-columns"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _bound)
        return True


def _bound(kernel: ir.Operation) -> None:
    maps = [op for op in find_all(kernel, "warp.map") if len(list(op.regions[0].blocks[0].arguments)) == 2]
    change_parts(maps, _change, "there is no map over a tile")


@dataclass(frozen=True)
class _Bound:
    """A condition `column < sum(plus) - sum(minus)` (or not more, where `strict` is false); no summand depends on the column.

    `below`: the column is more than that. min(column, most) may stand for it. `unless`: or this condition holds.
    """

    op: ir.Operation
    plus: tuple[ir.Value, ...]
    minus: tuple[ir.Value, ...]
    strict: bool
    below: bool
    most: ir.Value | None = None
    unless: ir.Value | None = None

    @property
    def numbers(self) -> tuple[ir.Value, ...]:
        return (*self.plus, *self.minus)


def _change(map_: ir.Operation) -> None:
    """Replaces the comparisons of a map. Raises Refused, with nothing changed."""
    block = map_.regions[0].blocks[0]
    row, column = block.arguments
    tile = next((f for r in map_.results if (f := fragment(r.type)) is not None and f.form == "tile"), None)
    instruction = tile.instruction if tile is not None else fragment(map_.results[0].type).instruction  # type: ignore[union-attr]
    _multiply_out(block, column)
    by_row, by_column = _reached(block, row), _reached(block, column)
    groups: list[list[_Bound]] = []
    for top in _tops(block):
        found = _bounds(top, column, by_column, True)
        groups += [group for below in (False, True) if (group := [bound for bound in found if bound.below == below])]
    groups = [group for group in groups if any(v in by_row for bound in group for v in bound.numbers)]
    if not groups:
        raise Refused("no map compares columns with what depends on the row")
    rows, columns = tuple(map_.attributes["shape"])
    whole = ir.IntegerType.get_signless(32, map_.context)
    with map_.location, ir.InsertionPoint(map_):
        type_ = ir.RankedTensorType(build.fragment_type(instruction, "rows", [rows], whole))

        def body(i: ir.Value) -> list[ir.Value]:
            known = {row: i}
            return [(_first if group[0].below else _count)(group, block, known, columns, whole) for group in groups]

        bounds = build.map_([rows], [type_] * len(groups), [""] * len(groups), body)
    order = [view.operation for view in block.operations]
    for group, bound in zip(groups, bounds, strict=True):
        first = min((each.op for each in group), key=order.index)  # those of an inner `and` may stand before the others
        with first.location, ir.InsertionPoint(first):
            read = ir.Operation.create("tensor.extract", results=[whole], operands=[bound, row]).result
            own = arith.IndexCastOp(whole, column).result
            predicate = arith.CmpIPredicate.sge if group[0].below else arith.CmpIPredicate.slt
            inside = arith.CmpIOp(predicate, own, read).result
        for each in group:
            each.op.results[0].replace_all_uses_with(inside)


def _multiply_out(block: ir.Block, column: ir.Value) -> None:
    """Compares what depends on the column itself, instead of its quotient by a constant, rounded down, with others."""
    by_column = _reached(block, column)
    for compare in [view.operation for view in block.operations if view.operation.name == "arith.cmpi"]:
        predicate, sides = ir.IntegerAttr(compare.attributes["predicate"]).value, list(compare.operands)
        if sides[0] not in by_column:
            predicate, sides = _EXCHANGED.get(predicate, predicate), sides[::-1]
        quotient = maker(sides[0], "arith.floordivsi")
        size = constant(quotient.operands[1]) if quotient is not None else None
        if quotient is None or not isinstance(size, int) or size < 1 or sides[1] in by_column or predicate not in _QUOTIENTS:
            continue
        with compare.location, ir.InsertionPoint(compare):
            first = arith.MulIOp(sides[1], build.index(size)).result
            ends = {True: arith.AddIOp(first, build.index(size)).result, False: first}
            made = [
                arith.CmpIOp(arith.CmpIPredicate.slt if below else arith.CmpIPredicate.sge, quotient.operands[0], ends[next_]).result
                for below, next_ in _QUOTIENTS[predicate]
            ]
            both = made[0] if len(made) == 1 else arith.AndIOp(*made).result
        compare.results[0].replace_all_uses_with(both)
        compare.erase()


def _tops(block: ir.Block) -> list[ir.Value]:
    """Conditions of selects."""
    ops = [view.operation for view in block.operations]
    return list(dict.fromkeys(op.operands[0] for op in ops if op.name == "arith.select"))


def _bounds(condition: ir.Value, column: ir.Value, by_column: set[ir.Value], whole: bool = False) -> list[_Bound]:
    """The conditions that must all hold where one does, and bound the columns; those used only here, unless one is the `whole`."""
    made = maker(condition, "arith.andi", "arith.cmpi", "arith.ori")
    if made is None or condition not in by_column:
        return []
    if len(list(condition.uses)) != 1 and not whole:
        return []
    if made.name == "arith.andi":
        return [bound for operand in made.operands for bound in _bounds(operand, column, by_column)]
    if made.name == "arith.cmpi":
        found = _compared(made, column, by_column)
        return [found] if found is not None else []
    inner = [value for value in made.operands if value in by_column]
    same = [value for value in made.operands if value not in by_column]
    compared = maker(inner[0], "arith.cmpi") if len(inner) == 1 else None
    found = _compared(compared, column, by_column) if compared is not None and len(list(inner[0].uses)) == 1 else None
    return [replace(found, op=made, unless=same[0])] if found is not None else []


def _compared(compare: ir.Operation, column: ir.Value, by_column: set[ir.Value]) -> _Bound | None:
    """What a comparison says of the column; None where it is another one than of sums of numbers."""
    found = _SIGNED.get(ir.IntegerAttr(compare.attributes["predicate"]).value)
    if found is None:
        return None
    lower, upper = compare.operands[found[0]], compare.operands[1 - found[0]]
    least = next((op for v in by_column if (op := maker(v, "arith.minsi")) is not None and column in list(op.operands)), None)
    most = next((v for v in least.operands if v not in by_column), None) if least is not None else None
    for place, bound in ((column, None), (least.results[0] if least is not None and most is not None else None, most)):
        sums = [_linear(value, place, by_column) for value in (lower, upper)] if place is not None else [None]
        if any(each is None for each in sums):
            continue
        (times, plus, minus), (others, more, less) = (each for each in sums if each is not None)
        # lower - upper is at most 0: `sign` times the column, and what is added to it and taken away.
        sign, added, taken = times - others, (*plus, *less), (*minus, *more)
        if sign == 1:
            return _Bound(compare, taken, added, found[1], False, bound)
        if sign == -1:
            return _Bound(compare, added, taken, found[1], True, bound)
    return None


def _linear(value: ir.Value, place: ir.Value, by_column: set[ir.Value]) -> tuple[int, tuple[ir.Value, ...], tuple[ir.Value, ...]] | None:
    """How often a number has the column in it, and what is added to that and taken away; None where it is something else."""
    if value == place:
        return 1, (), ()
    if value not in by_column:
        return 0, (value,), ()
    made = maker(value, "arith.addi", "arith.subi")
    parts = [_linear(operand, place, by_column) for operand in made.operands] if made is not None else [None]
    if made is None or parts[0] is None or parts[1] is None:
        return None
    (times, plus, minus), (others, more, less) = parts[0], parts[1]
    if made.name == "arith.addi":
        return times + others, (*plus, *more), (*minus, *less)
    return times - others, (*plus, *less), (*minus, *more)


def _reached(block: ir.Block, start: ir.Value) -> set[ir.Value]:
    """The numbers of a map that depend on one of its indices, with this one."""
    found = {start}
    for view in block.operations:
        if any(v in found for v in view.operation.operands):
            found |= set(view.operation.results)
    return found


def _count(group: list[_Bound], block: ir.Block, known: dict[ir.Value, ir.Value], columns: int, whole: ir.Type) -> ir.Value:
    """How many columns lie below all bounds of a row."""
    count = build.index(columns)
    for bound in group:
        limit = _limit(bound, block, known)
        if not bound.strict:
            limit = arith.AddIOp(limit, build.index(1)).result
        if bound.most is not None:
            always = arith.CmpIOp(arith.CmpIPredicate.slt, _copied(bound.most, block, known), limit).result
            limit = arith.SelectOp(always, build.index(columns), limit).result
        if bound.unless is not None:
            limit = arith.SelectOp(_copied(bound.unless, block, known), build.index(columns), limit).result
        count = arith.MinSIOp(count, limit).result
    return arith.IndexCastOp(whole, arith.MaxSIOp(count, build.index(0)).result).result


def _first(group: list[_Bound], block: ir.Block, known: dict[ir.Value, ir.Value], columns: int, whole: ir.Type) -> ir.Value:
    """The first column from which on all conditions hold; that past the end where they never do."""
    last = build.index(0)
    for bound in group:
        first = _limit(bound, block, known)
        if bound.strict:
            first = arith.AddIOp(first, build.index(1)).result
        if bound.most is not None:
            never = arith.CmpIOp(arith.CmpIPredicate.slt, _copied(bound.most, block, known), first).result
            first = arith.SelectOp(never, build.index(columns), first).result
        if bound.unless is not None:
            first = arith.SelectOp(_copied(bound.unless, block, known), build.index(0), first).result
        last = arith.MaxSIOp(arith.MinSIOp(first, build.index(columns)).result, last).result
    return arith.IndexCastOp(whole, last).result


def _limit(bound: _Bound, block: ir.Block, known: dict[ir.Value, ir.Value]) -> ir.Value:
    """What the column is compared with, where the row is known."""
    plus, minus = ([_copied(value, block, known) for value in values] for values in (bound.plus, bound.minus))
    limit = plus[0] if plus else build.index(0)
    for value in plus[1:]:
        limit = arith.AddIOp(limit, value).result
    for value in minus:
        limit = arith.SubIOp(limit, value).result
    return limit


def _copied(value: ir.Value, block: ir.Block, known: dict[ir.Value, ir.Value]) -> ir.Value:
    """A number of a map's region, where its row is known."""
    if value in known or isinstance(value.owner, ir.Block) or value.owner.operation.block != block:
        return known.get(value, value)
    for operand in value.owner.operation.operands:
        _copied(operand, block, known)
    clone_op(value.owner.operation, known)
    return known[value]
