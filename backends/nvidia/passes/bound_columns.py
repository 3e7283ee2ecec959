"""Compares columns of a tile with one bound a row, instead of positions for each element."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.layouts import fragment
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker

_SIGNED = {2: (0, True), 3: (0, False), 4: (1, True), 5: (1, False)}
"""Of signed predicates of `arith.cmpi`: which side is the lower one, and whether they must differ."""


@dataclass(frozen=True)
class BoundColumns(Pass):
    """In maps over tiles, comparisons that hold up to some column of a row, as `q_idx >= kv_idx` of a causal mask, become one: a map over
    row values computes how many columns that are (`i32`), and each element compares its column with it. In kernels that add to global
    memory, whose columns are queries, so do those that hold from a column on, which is computed then.

    Others stay, as do those of maps where no bound depends on the row. Without such a comparison the kernel stays as it is, with the reason
    in `warp.refused`.
    """

    name = "warp-bound-columns"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _bound)
        return True


def _bound(kernel: ir.Operation) -> None:
    maps = [op for op in find_all(kernel, "warp.map") if len(list(op.regions[0].blocks[0].arguments)) == 2]
    from_below = bool(find_all(kernel, "warp.atomic_add"))
    change_parts(maps, lambda map_: _change(map_, from_below), "there is no map over a tile")


@dataclass(frozen=True)
class _Bound:
    """A comparison `column + added < limit` (or not more, where `strict` is false); neither `added` nor the limit depends on the column.

    `below`: the limit is less than the sum, in which min(column, most) may stand for the column.
    """

    op: ir.Operation
    added: tuple[ir.Value, ...]
    limit: ir.Value
    strict: bool
    below: bool = False
    most: ir.Value | None = None


def _change(map_: ir.Operation, from_below: bool) -> None:
    """Replaces the comparisons of a map. Raises Refused, with nothing changed."""
    block = map_.regions[0].blocks[0]
    row, column = block.arguments
    tile = next((f for r in map_.results if (f := fragment(r.type)) is not None and f.form == "tile"), None)
    instruction = tile.instruction if tile is not None else fragment(map_.results[0].type).instruction  # type: ignore[union-attr]
    by_row, by_column = _reached(block, row), _reached(block, column)
    groups = [group for top in _tops(block) if (group := _bounds(top, column, by_column))]
    if from_below:
        groups += [[bound] for top in _tops(block) if (bound := _from_below(top, column, by_column)) is not None]
    groups = [group for group in groups if any(v in by_row for bound in group for v in (*bound.added, bound.limit))]
    if not groups:
        raise Refused("no map compares columns with what depends on the row")
    rows, columns = tuple(map_.attributes["shape"])
    whole = ir.IntegerType.get_signless(32, map_.context)
    with map_.location, ir.InsertionPoint(map_):
        type_ = ir.RankedTensorType(build.fragment_type(instruction, "rows", [rows], whole))

        def body(i: ir.Value) -> list[ir.Value]:
            known = {row: i}
            return [_count(group, block, known, columns, whole) for group in groups]

        bounds = build.map_([rows], [type_] * len(groups), [""] * len(groups), body)
    for group, bound in zip(groups, bounds, strict=True):
        first = group[0].op
        with first.location, ir.InsertionPoint(first):
            read = ir.Operation.create("tensor.extract", results=[whole], operands=[bound, row]).result
            own = arith.IndexCastOp(whole, column).result
            predicate = arith.CmpIPredicate.sge if group[0].below else arith.CmpIPredicate.slt
            inside = arith.CmpIOp(predicate, own, read).result
        for each in group:
            each.op.results[0].replace_all_uses_with(inside)


def _tops(block: ir.Block) -> list[ir.Value]:
    """Conditions of selects, and comparisons that are used otherwise."""
    ops = [view.operation for view in block.operations]
    return list(dict.fromkeys(op.operands[0] for op in ops if op.name == "arith.select"))


def _bounds(condition: ir.Value, column: ir.Value, by_column: set[ir.Value]) -> list[_Bound]:
    """The comparisons that must all hold where a condition does, and bound the columns from above; those used only here."""
    made = maker(condition, "arith.andi", "arith.cmpi")
    if made is None or len(list(condition.uses)) != 1:
        return []
    if made.name == "arith.andi":
        return [bound for operand in made.operands for bound in _bounds(operand, column, by_column)]
    found = _SIGNED.get(ir.IntegerAttr(made.attributes["predicate"]).value)
    if found is None:
        return []
    lower, upper = made.operands[found[0]], made.operands[1 - found[0]]
    added = _added(lower, column, by_column)
    return [_Bound(made, added, upper, found[1])] if added is not None and upper not in by_column else []


def _from_below(condition: ir.Value, column: ir.Value, by_column: set[ir.Value]) -> _Bound | None:
    """The comparison that a condition is, where it bounds the columns from below."""
    made = maker(condition, "arith.cmpi")
    found = _SIGNED.get(ir.IntegerAttr(made.attributes["predicate"]).value) if made is not None else None
    if made is None or found is None:
        return None
    limit, sum_ = made.operands[found[0]], made.operands[1 - found[0]]
    least = next((op for v in by_column if (op := maker(v, "arith.minsi")) is not None and column in list(op.operands)), None)
    most = next((v for v in least.operands if v not in by_column), None) if least is not None else None
    for place, bound in ((column, None), (least.results[0] if least is not None and most is not None else None, most)):
        added = _added(sum_, place, by_column) if place is not None else None
        if added is not None and limit not in by_column:
            return _Bound(made, added, limit, found[1], True, bound)
    return None


def _added(value: ir.Value, column: ir.Value, by_column: set[ir.Value]) -> tuple[ir.Value, ...] | None:
    """What is added to the column to make a number; None where it is something else."""
    if value == column:
        return ()
    made = maker(value, "arith.addi")
    if made is None:
        return None
    own = [v for v in made.operands if v in by_column]
    others = [v for v in made.operands if v not in by_column]
    if len(own) != 1:
        return None
    inner = _added(own[0], column, by_column)
    return None if inner is None else (*inner, *others)


def _reached(block: ir.Block, start: ir.Value) -> set[ir.Value]:
    """The numbers of a map that depend on one of its indices, with this one."""
    found = {start}
    for view in block.operations:
        if any(v in found for v in view.operation.operands):
            found |= set(view.operation.results)
    return found


def _count(group: list[_Bound], block: ir.Block, known: dict[ir.Value, ir.Value], columns: int, whole: ir.Type) -> ir.Value:
    """How many columns lie below all bounds of a row, or below the first that its bound lets through."""
    if group[0].below:
        return _first(group[0], block, known, columns, whole)
    count = build.index(columns)
    for bound in group:
        limit = _copied(bound.limit, block, known)
        for value in bound.added:
            limit = arith.SubIOp(limit, _copied(value, block, known)).result
        if not bound.strict:
            limit = arith.AddIOp(limit, build.index(1)).result
        count = arith.MinSIOp(count, limit).result
    return arith.IndexCastOp(whole, arith.MaxSIOp(count, build.index(0)).result).result


def _first(bound: _Bound, block: ir.Block, known: dict[ir.Value, ir.Value], columns: int, whole: ir.Type) -> ir.Value:
    """The first column from which on a comparison holds; that past the end where it never does."""
    first = _copied(bound.limit, block, known)
    for value in bound.added:
        first = arith.SubIOp(first, _copied(value, block, known)).result
    if bound.strict:
        first = arith.AddIOp(first, build.index(1)).result
    if bound.most is not None:
        never = arith.CmpIOp(arith.CmpIPredicate.slt, _copied(bound.most, block, known), first).result
        first = arith.SelectOp(never, build.index(columns), first).result
    return arith.IndexCastOp(whole, arith.MaxSIOp(arith.MinSIOp(first, build.index(columns)).result, build.index(0)).result).result


def _copied(value: ir.Value, block: ir.Block, known: dict[ir.Value, ir.Value]) -> ir.Value:
    """A number of a map's region, where its row is known."""
    if value in known or isinstance(value.owner, ir.Block) or value.owner.operation.block != block:
        return known.get(value, value)
    for operand in value.owner.operation.operands:
        _copied(operand, block, known)
    clone_op(value.owner.operation, known)
    return known[value]
