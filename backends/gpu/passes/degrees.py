"""How values of a kernel change when a running maximum is replaced by another number.

If the carried number is d larger, a value either grows by a multiple of d (the maximum itself, logarithms), or is multiplied by exp of
a multiple of d (weights, sums), or stays. In a loop there are two such shifts: of the number that it begins and ends an iteration with.
"""

import math
from dataclasses import dataclass

from attn_mlir.mlir import ir
from attn_mlir.passes.simplification.folding import number


class Mismatch(Exception):
    """A value changes in another way."""


@dataclass(frozen=True)
class Degree:
    """`log`: the value grows by old * d_old + new * d_new; otherwise it is multiplied by exp of that."""

    old: float = 0.0
    new: float = 0.0
    log: bool = False

    @property
    def plain(self) -> bool:
        return self.old == 0.0 and self.new == 0.0


_PLAIN = Degree()
_LOWEST = -3.4028234663852886e38


class Degrees:
    """The degrees of values of one loop, or of what follows all loops."""

    def __init__(self, number: int, powers: list[float], maximum: ir.Operation | None) -> None:
        """Carried value `number` is the maximum, made by the op `maximum`; the others have these powers of exp(d)."""
        self._number, self._powers, self._maximum = number, powers, maximum
        self._known: dict[ir.Value, Degree] = {}

    def loop(self, loop: ir.Operation) -> None:
        """Raises Mismatch unless every carried value ends an iteration as it begins it."""
        block = loop.regions[0].blocks[0]
        for position, argument in enumerate(list(block.arguments)[1:]):
            self._known[argument] = Degree(self._powers[position], 0.0, position == self._number)
        *body, last = (view.operation for view in block.operations)
        for op in body:
            self._tile_op(op)
        for position, value in enumerate(last.operands):
            found, wanted = self._of(value), Degree(0.0, self._powers[position], position == self._number)
            if found != wanted and not (found.plain and wanted.plain):
                raise Mismatch

    def rest(self, block: ir.Block, loops: list[ir.Operation], partial: bool = False) -> None:
        """Raises Mismatch unless what is stored stays the same; of `partial` results, unless it changes as it is carried."""
        for position, result in enumerate(loops[-1].results):
            self._known[result] = Degree(0.0, self._powers[position], position == self._number)
        for view in block.operations:
            if view.operation not in loops and not (partial and view.operation.name.startswith("tile.store")):
                self._tile_op(view.operation)

    def _of(self, value: ir.Value) -> Degree:
        return self._known.get(value, _PLAIN)

    def _tile_op(self, op: ir.Operation) -> None:
        if all(self._of(operand).plain for operand in op.operands) and op.name != "tile.map":
            if op.regions and any(len(region.blocks) for region in op.regions):
                raise Mismatch
            return
        match op.name:
            case "tile.map":
                self._map(op)
            case "tile.dot_rescale":
                c, scale, a, b = (self._of(operand) for operand in op.operands)
                if _product(c, scale) != a or not b.plain:
                    raise Mismatch
                self._known[op.results[0]] = a
            case "tile.dot_add":
                c, a, b = (self._of(operand) for operand in op.operands)
                if c != a or not b.plain:
                    raise Mismatch
                self._known[op.results[0]] = a
            case _:
                raise Mismatch

    def _map(self, op: ir.Operation) -> None:
        *body, last = (view.operation for view in op.regions[0].blocks[0].operations)
        for inner in body:
            degree = self._scalar(inner)
            if not degree.plain:
                self._known.update(dict.fromkeys(inner.results, degree))
        for value, result in zip(last.operands, op.results, strict=True):
            degree = self._of(value)
            if not degree.plain:
                self._known[result] = degree
        kinds = op.opview.kinds()
        for kind, value in zip(kinds, list(last.operands)[len(list(last.operands)) - len(kinds) :], strict=True):
            degree = self._of(value)
            if kind == "sum" and degree.log and not degree.plain:
                raise Mismatch

    def _scalar(self, op: ir.Operation) -> Degree:
        if self._maximum is not None and op == self._maximum:
            if not self._of(op.operands[1]).plain:
                raise Mismatch
            return Degree(0.0, 1.0, True)
        degrees = [self._of(operand) for operand in op.operands]
        if all(degree.plain for degree in degrees):
            return _PLAIN
        match op.name:
            case "tensor.extract" | "arith.truncf" | "arith.extf":
                return degrees[0]
            case "arith.addf" | "arith.subf":
                return self._sum(op, degrees, -1.0 if op.name == "arith.subf" else 1.0)
            case "arith.negf":
                return Degree(-degrees[0].old, -degrees[0].new, True) if degrees[0].log else degrees[0]
            case "arith.mulf" if not any(degree.log for degree in degrees):
                return _product(*degrees)
            case "arith.divf" if not any(degree.log for degree in degrees):
                return _product(degrees[0], Degree(-degrees[1].old, -degrees[1].new))
            case "math.exp" if degrees[0].log:
                return Degree(degrees[0].old, degrees[0].new)
            case "math.log" if not degrees[0].log:
                return Degree(degrees[0].old, degrees[0].new, True)
            case "arith.cmpf" if not any(degree.log for degree in degrees) and number(op.operands[1]) == 0.0:
                return _PLAIN
            case "arith.cmpf" if number(op.operands[1]) == _LOWEST:
                return _PLAIN  # asks whether there was a key at all
            case "arith.select" if degrees[0].plain:
                return self._choice(op, degrees)
        raise Mismatch

    def _sum(self, op: ir.Operation, degrees: list[Degree], sign: float) -> Degree:
        a, b = degrees
        if (a.log or a.plain) and (b.log or b.plain):
            return Degree(a.old + sign * b.old, a.new + sign * b.new, True)
        if a == b or number(op.operands[1]) == 0.0:
            return a
        raise Mismatch

    def _choice(self, op: ir.Operation, degrees: list[Degree]) -> Degree:
        _, a, b = degrees
        for one, other, value in ((a, b, op.operands[2]), (b, a, op.operands[1])):
            known = number(value)
            if one == other or (known is not None and (math.isinf(known) if one.log else known == 0.0)):
                return one
        raise Mismatch


def _product(a: Degree, b: Degree) -> Degree:
    if a.log or b.log:
        raise Mismatch
    return Degree(a.old + b.old, a.new + b.new)
