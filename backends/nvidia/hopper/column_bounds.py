"""Comparisons of positions in a map over a tile: column j <= a bound that each row has, instead of positions for each element.

A mask such as `q_idx >= kv_idx` compares a position of the row with one that is `begin + j`. Each thread computes, once a row, how large j
may be; then an element costs one comparison with a constant (`j` is known when loops are unrolled).
"""

from dataclasses import dataclass

from attn_mlir.backends.gpu.maxima import is_running_maximum
from attn_mlir.backends.gpu.scalar_bounds import IntegerRanges, fits_int
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import maker

_PREDICATES = {0: ("==", "=="), 1: ("!=", "!="), 2: ("<", ">"), 3: ("<=", ">="), 4: (">", "<"), 5: (">=", "<=")}
"""By MLIR's number of a signed comparison: the operator, and the one for exchanged sides."""
_UPPER = ("<", "<=")
_COLUMNS = 1 << 12
"""More than the columns of a tile."""


@dataclass(frozen=True)
class ColumnBound:
    """`j operator bound`, where the bound is the sum of `terms` (values that do not depend on j, with factors) and `constant`."""

    op: ir.Operation
    operator: str
    terms: tuple[tuple[ir.Value, int], ...]
    constant: int

    @property
    def is_upper(self) -> bool:
        """Whether it keeps the columns up to some one."""
        return self.operator in _UPPER


def comparisons(block: ir.Block, depends: dict[ir.Value, frozenset[int]], ranges: IntegerRanges) -> list[ColumnBound]:
    """The comparisons in a map's region that have this form."""
    found = [_comparison(view.operation, depends, ranges) for view in block.operations if view.operation.name == "arith.cmpi"]
    return [comparison for comparison in found if comparison is not None]


def only_compared(value: ir.Value, found: list[ColumnBound]) -> bool:
    """Whether nothing but these comparisons needs a value."""
    ops = [comparison.op for comparison in found]

    def spared(op: ir.Operation) -> bool:
        return op in ops or (op.name in ("arith.addi", "arith.subi") and only_compared(op.results[0], found))

    return bool(list(value.uses)) and all(spared(use.owner.operation) for use in value.uses)


def upper_bound(condition: ir.Value, found: list[ColumnBound]) -> ColumnBound | None:
    """A comparison that has to be true where `condition` is, and that bounds the columns from above."""
    if isinstance(condition.owner, ir.Block):
        return None
    op = condition.owner.operation
    if op.name == "arith.andi":
        return upper_bound(op.operands[0], found) or upper_bound(op.operands[1], found)
    return next((comparison for comparison in found if comparison.op == op and comparison.is_upper), None)


def is_minus_inf(value: ir.Value) -> bool:
    """Whether it is the constant -inf."""
    op = maker(value)
    if op is None or op.name != "arith.constant" or not isinstance(op.attributes["value"], ir.FloatAttr):
        return False
    return ir.FloatAttr(op.attributes["value"]).value == float("-inf")


def vanishes(value: ir.Value, source: ir.Value) -> bool:
    """Whether a map's value is 0 (or NaN for the whole row) where the element of the tile `source` is -inf."""
    op = maker(value)
    if op is None:
        return False
    if op.name in ("arith.truncf", "arith.extf"):
        return vanishes(op.operands[0], source)
    return op.name in ("math.exp", "math.exp2") and falls(op.operands[0], source)


def falls(value: ir.Value, source: ir.Value) -> bool:
    """Whether it is -inf there."""
    op = maker(value)
    if op is None:
        return False
    match op.name:
        case "tensor.extract":
            return op.operands[0] == source
        case "arith.mulf":
            return falls(op.operands[0], source) and _is_positive(op.operands[1])
        case "arith.subf":
            return falls(op.operands[0], source) and is_running_maximum(op.operands[1])
        case "math.fma":
            return falls(op.operands[0], source) and _is_positive(op.operands[1]) and _is_limited(op.operands[2])
    return False


def _is_limited(value: ir.Value) -> bool:
    """Whether it is finite, or the smaller one of some number and a finite one, so that it is not inf."""
    op = maker(value)
    limited = op is not None and op.name == "arith.minimumf" and any(_finite(operand) is not None for operand in op.operands)
    return limited or _finite(value) is not None


def _is_positive(value: ir.Value) -> bool:
    number = _finite(value)
    return number is not None and number > 0.0


def _finite(value: ir.Value) -> float | None:
    op = maker(value)
    if op is None or op.name != "arith.constant" or not isinstance(op.attributes["value"], ir.FloatAttr):
        return None
    number = ir.FloatAttr(op.attributes["value"]).value
    return number if abs(number) < float("inf") else None


def _comparison(op: ir.Operation, depends: dict[ir.Value, frozenset[int]], ranges: IntegerRanges) -> ColumnBound | None:
    operators = _PREDICATES.get(ir.IntegerAttr(op.attributes["predicate"]).value)
    first, second = (_linear(operand, depends, ranges) for operand in op.operands)
    if operators is None or first is None or second is None:
        return None
    (left, more), (right, less) = first, second
    total = {value: left.get(value, 0) - right.get(value, 0) for value in (*left, *right)}
    columns = [value for value in total if depends.get(value, frozenset()) == {1}]
    if len(columns) != 1 or total[columns[0]] not in (1, -1):
        return None
    sign = total.pop(columns[0])
    # sign j + sum + constant against 0, so j against -sign (sum + constant)
    terms = tuple(sorted(((value, -sign * factor) for value, factor in total.items() if factor), key=lambda term: term[1] < 0))
    constant = -sign * (more - less)
    largest = abs(constant) + sum(abs(factor) * max(map(abs, ranges.of(value))) for value, factor in terms)
    if not fits_int((-largest - _COLUMNS, largest + _COLUMNS)):
        return None
    return ColumnBound(op, operators[0] if sign > 0 else operators[1], terms, constant)


def _linear(value: ir.Value, depends: dict[ir.Value, frozenset[int]], ranges: IntegerRanges) -> tuple[dict[ir.Value, int], int] | None:
    """A sum of values with factors, and a constant; only the column, and values that do not depend on it, are left in it."""
    if 1 not in depends.get(value, frozenset()):
        op = maker(value)
        if op is not None and op.name == "arith.constant" and isinstance(op.attributes["value"], ir.IntegerAttr):
            return {}, ir.IntegerAttr(op.attributes["value"]).value
        return {value: 1}, 0
    if isinstance(value.owner, ir.Block):
        return {value: 1}, 0
    op = value.owner.operation
    if op.name not in ("arith.addi", "arith.subi") or not fits_int(ranges.of(value)):
        return None
    first, second = (_linear(operand, depends, ranges) for operand in op.operands)
    if first is None or second is None:
        return None
    (left, more), (right, less) = first, second
    sign = 1 if op.name == "arith.addi" else -1
    return {value: left.get(value, 0) + sign * right.get(value, 0) for value in (*left, *right)}, more + sign * less
