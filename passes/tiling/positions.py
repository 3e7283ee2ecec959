"""How scalars of a region over the elements (i, j) of a tile depend on i and j: by constant steps, or on i - j alone."""

from dataclasses import dataclass

from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import clone_op, maker
from attn_mlir.passes.tiling.scalars import constant_index

_READS = ("memref.load", "memref.dim")
_SIGNED = range(6)
"""Predicates of `arith.cmpi` that tell the sign of a difference."""
_READS_OF_TENSORS = ("tensor.extract", "tensor.dim")


@dataclass(frozen=True)
class Steps:
    """A value that grows by `row` with i and by `column` with j.

    Rows past the last one stand for it: `limit` is the `arith.minsi` that makes them so, None where nothing does.
    """

    row: int
    column: int
    limit: ir.Operation | None = None

    @property
    def same(self) -> bool:
        """Whether it is the same for all elements."""
        return self.row == self.column == 0


_SAME = Steps(0, 0)


class Positions:
    """The values of one region whose arguments from number `first` on are i and j.

    `tensors`: regions of stage 0, where what is read of tensors is taken for what captured ones hold, and no row stands for another one:
    `arith.minsi` is somebody's limit of a position there, and steps end at it.
    """

    def __init__(self, block: ir.Block, first: int = 0, tensors: bool = False) -> None:
        self.block = block
        self._reads = (*_READS, *_READS_OF_TENSORS) if tensors else _READS
        self._limited = not tensors
        self._i, self._j = list(block.arguments)[first : first + 2]
        self._steps: dict[ir.Value, Steps | None] = {self._i: Steps(1, 0), self._j: Steps(0, 1)}
        self._diagonal: set[ir.Value] = set()
        for view in list(block.operations)[:-1]:
            self._note(view.operation)

    def steps(self, value: ir.Value) -> Steps | None:
        """Its steps; None where it has none. What is defined outside of the region is the same for all elements."""
        return self._steps.get(value, _SAME)

    def along_diagonals(self, value: ir.Value) -> bool:
        """Whether a value depends on i - j, and on nothing else that varies."""
        return value in self._diagonal

    def _note(self, op: ir.Operation) -> None:
        operands = list(op.operands)
        steps = _of_op(op, [self.steps(value) for value in operands]) if self._is_pure(op) else None
        if steps is not None and steps.limit is not None and not self._limited:
            steps = None
        varying = [value for value in operands if self.steps(value) != _SAME]
        if steps is not None:
            diagonal = steps.row == -steps.column != 0
        else:
            diagonal = self._is_pure(op) and (all(map(self.along_diagonals, varying)) or self._compares(op))
        for result in op.results:
            self._steps[result] = steps
            if diagonal:
                self._diagonal.add(result)

    def _compares(self, op: ir.Operation) -> bool:
        """Whether numbers are compared, of which the difference is that of i and j, or a multiple: as i and j themselves."""
        if op.name != "arith.cmpi" or ir.IntegerAttr(op.attributes["predicate"]).value not in _SIGNED:
            return False
        a, b = (self.steps(value) for value in op.operands)
        return a is not None and b is not None and a.row - b.row == b.column - a.column != 0

    def _is_pure(self, op: ir.Operation) -> bool:
        return not len(op.regions) and (op.name.startswith(("arith.", "math.")) or op.name in self._reads)

    def copies(self, values: list[ir.Value], i: ir.Value, j: ir.Value) -> list[ir.Value]:
        """The values for a row and a column, computed at the current insertion point."""
        operations = [view.operation for view in list(self.block.operations)[:-1]]
        needed = set(values)
        wanted = []
        for op in reversed(operations):
            if any(result in needed for result in op.results):
                needed.update(op.operands)
                wanted.append(op)
        known = {self._i: i, self._j: j}
        for op in reversed(wanted):
            clone_op(op, known)
        return [known.get(value, value) for value in values]


def _of_op(op: ir.Operation, operands: list[Steps | None]) -> Steps | None:
    if all(each == _SAME for each in operands):
        return _SAME
    if any(each is None for each in operands):
        return None
    known = [each for each in operands if each is not None]
    match op.name:
        case "arith.addi":
            return _sum(known[0], known[1], 1)
        case "arith.subi":
            return _sum(known[0], known[1], -1)
        case "arith.index_cast" | "arith.extsi":
            return known[0]
        case "arith.minsi":
            return _limited(op, known)
        case "arith.muli":
            return _scaled(op, known)
    return None


def _sum(a: Steps, b: Steps, sign: int) -> Steps | None:
    if a.row and b.row and not _alike(a.limit, b.limit):
        return None
    row = a.row + sign * b.row
    return Steps(row, a.column + sign * b.column, (a.limit if a.row else b.limit) if row else None)


def _alike(a: ir.Operation | None, b: ir.Operation | None) -> bool:
    return a is b if a is None or b is None else a == b


def _limited(op: ir.Operation, operands: list[Steps]) -> Steps | None:
    """min(position of row i, the last one)."""
    varying = [each for each in operands if not each.same]
    if len(varying) != 1 or (varying[0].row, varying[0].column) != (1, 0) or varying[0].limit is not None:
        return None
    return Steps(1, 0, op)


def _scaled(op: ir.Operation, operands: list[Steps]) -> Steps | None:
    for number, each in enumerate(operands):
        constant = maker(op.operands[1 - number], "arith.constant")
        if not each.same and constant is not None:
            factor = ir.IntegerAttr(constant.attributes["value"]).value
            return Steps(each.row * factor, each.column * factor, each.limit if factor else None)
    return None


@dataclass(frozen=True)
class Window:
    """Where the elements of a tile are in memory: as `tile.load_window` tells it, before the tile is there."""

    indices: tuple[ir.Value, ...]
    row_steps: tuple[int, ...]
    column_steps: tuple[int, ...]
    limit: ir.Operation | None

    def place(self, positions: Positions, rows: int) -> tuple[ir.Value, list[ir.Value]]:
        """The number of rows, at most so many, and the offsets, at the current insertion point."""
        zero, most = constant_index(0), constant_index(rows)
        offsets = positions.copies(list(self.indices), zero, zero)
        if self.limit is None:
            return most, offsets
        # Rows up to the limit: min(x + i, last) = x + min(i, last - x).
        moving = [value for value in self.limit.operands if positions.steps(value) != _SAME]
        still = [value for value in self.limit.operands if value not in moving]
        first, last = positions.copies([moving[0], still[0]], zero, zero)
        left = arith.AddIOp(arith.SubIOp(last, first).result, constant_index(1)).result
        return arith.MinSIOp(left, most).result, offsets


def window_of(positions: Positions, indices: list[ir.Value]) -> Window | None:
    """The window that indices walk over with both rows and columns; None where they do not."""
    found = [positions.steps(value) for value in indices]
    if any(each is None for each in found):
        return None
    steps = [each for each in found if each is not None]
    limits = [each.limit for each in steps if each.row]
    if not limits or not any(each.column for each in steps) or not all(_alike(limit, limits[0]) for limit in limits):
        return None
    return Window(tuple(indices), tuple(each.row for each in steps), tuple(each.column for each in steps), limits[0])


def over_pairs(map_: ir.Operation) -> int | None:
    """The rows of a `tile.map` over pairs of positions; None for other maps, those over channels among them.

    Its number of columns is that of the positions which are left, or it reads a product of queries and keys at its own element.
    """
    extents = list(map_.operands)
    rows = maker(extents[0], "arith.constant") if len(extents) == 2 else None
    if rows is None or (maker(extents[1], "arith.constant") is not None and not reads_product(map_)):
        return None
    number = ir.IntegerAttr(rows.attributes["value"]).value
    return number if number > 1 else None


def reads_product(map_: ir.Operation) -> bool:
    """Whether a map reads what `tile.dot` makes, or a map of that; products that are added up have channels for columns."""
    pending, seen = [map_], set[ir.Operation]()
    while pending:
        op = pending.pop()
        if op.name == "tile.dot":
            return True
        if op in seen or op.name != "tile.map":
            continue
        seen.add(op)
        element = list(op.regions[0].blocks[0].arguments)
        reads = [view.operation for view in op.regions[0].blocks[0].operations if view.operation.name == "tensor.extract"]
        made = [maker(read.operands[0]) for read in reads if list(read.operands)[1:] == element]
        pending += [each for each in made if each is not None]
    return False
