"""Distances of positions as differences of floats."""

from dataclasses import dataclass, field

from attn_mlir.backends.gpu.passes.scaling import float_maps, maker, unnamed
from attn_mlir.backends.gpu.scalar_bounds import IntegerRanges
from attn_mlir.backends.gpu.scalars import dependence
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all

_EXACT = 1 << 24
"""Integers up to here are exact in f32."""


@dataclass(frozen=True)
class FloatPositions(Pass):
    """float(kv - q) becomes float(j) + float(begin - q): one addition for an element, where a conversion costs as much as an exponential.

    Only sums of positions are taken apart that are exact in f32 (see the limits in `scalar_bounds`), so that the result is the same.
    """

    name = "gpu-float-positions"

    def run(self, module: ir.Operation) -> bool:
        ranges = IntegerRanges()
        for map_ in list(float_maps(module, rank=2)):
            depends = dependence(map_.regions[0].blocks[0])
            for op in find_all(map_, "arith.sitofp"):
                if depends[op.results[0]] != frozenset({0, 1}):
                    continue
                with unnamed(op.location), ir.InsertionPoint(op):
                    result = _split(op, depends, ranges)
                if result is not None:
                    op.results[0].replace_all_uses_with(result)
                    op.erase()
        return True


@dataclass
class _Sum:
    """A sum of integers with signs."""

    terms: list[tuple[ir.Value, int]] = field(default_factory=list)

    def add(self, value: ir.Value, sign: int) -> None:
        """Adds the terms of a value."""
        op = maker(value, "arith.addi", "arith.subi", "arith.index_cast")
        if op is None or str(op.operands[0].type) not in ("index", "i64"):
            self.terms.append((value, sign))
            return
        self.add(op.operands[0], sign)
        if op.name != "arith.index_cast":
            self.add(op.operands[1], sign if op.name == "arith.addi" else -sign)

    def is_exact(self, ranges: IntegerRanges) -> bool:
        """Whether it is exact in f32."""
        low = high = 0
        for value, sign in self.terms:
            a, b = sorted(sign * bound for bound in ranges.of(value))
            low, high = low + a, high + b
        return -_EXACT <= low and high <= _EXACT

    def emit(self, type_: ir.Type) -> tuple[ir.Value, int]:
        """The sum as a float, and its sign: that of all terms, if they have the same."""
        signs = {sign for _, sign in self.terms}
        overall = signs.pop() if len(signs) == 1 else 1
        ordered = sorted(self.terms, key=lambda term: -term[1] * overall)
        total = _as_index(ordered[0][0])
        for value, sign in ordered[1:]:
            total = (arith.addi if sign == overall else arith.subi)(total, _as_index(value))
        i64 = ir.IntegerType.get_signless(64)
        return arith.SIToFPOp(type_, arith.IndexCastOp(i64, total).result).result, overall


def _as_index(value: ir.Value) -> ir.Value:
    return value if isinstance(value.type, ir.IndexType) else arith.IndexCastOp(ir.IndexType.get(), value).result


def _split(op: ir.Operation, depends: dict[ir.Value, frozenset[int]], ranges: IntegerRanges) -> ir.Value | None:
    """The sum of what depends on the column and of the rest; None where it cannot be told apart exactly."""
    whole = _Sum()
    whole.add(op.operands[0], 1)
    columns, rest = _Sum(), _Sum()
    for value, sign in whole.terms:
        on = depends.get(value, frozenset())
        if on == frozenset({0, 1}):
            return None
        (columns if 1 in on else rest).terms.append((value, sign))
    if not columns.terms or not rest.terms or not columns.is_exact(ranges) or not rest.is_exact(ranges):
        return None
    (x, x_sign), (y, y_sign) = columns.emit(op.results[0].type), rest.emit(op.results[0].type)
    if x_sign < 0 and y_sign < 0:
        return arith.negf(arith.addf(x, y))
    if x_sign < 0:
        return arith.subf(y, x)
    return arith.addf(x, y) if y_sign > 0 else arith.subf(x, y)
