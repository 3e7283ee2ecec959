"""One reciprocal for several elements."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.scaling import Scaler, constant, factor, float_maps, maker, unnamed, used_once
from attn_mlir.dialects.numbers import i64
from attn_mlir.mlir import arith, ir
from attn_mlir.mlir import math as math_ops
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.simplification.folding import number

SHARED = "gpu.shared"
"""Attribute of a division of a constant: how many elements of a row may share its reciprocal. Its divisors are between 2^(-126 / number)
and 1, or NaN."""
WIDE = "gpu.shared_wide"
"""Attribute of such a division: divisors are between 2^(-252 / number) and 1, so that products of half of them are scaled on the way."""

_WIDE_MOST = 2.0
"""Largest dividend of such a division: times the largest reciprocal, 2^126, it is no more than 2^127."""


@dataclass(frozen=True)
class ShareReciprocals(Pass):
    """In maps over rows and keys: a / (1 + exp2(t)) becomes (2^-p a) / min(2^-p + exp2(t - p), 1), which an emitter may compute for n
    elements with one reciprocal and products: 1 / x_1 = x_2 x_3 x_4 / (x_1 x_2 x_3 x_4), and no product is too small or large.

    That the divisor does not exceed 1 changes quotients below 2^-p a only, to 2^-p a. Four elements, and p = 31 where quotients are rounded
    to f16, which has no such numbers, or taken from what they are small against, as in a tanh; else p = 63, where products of two are
    scaled by 2^63 on the way, which costs half a product for each element. Then 1 <= |a| <= 2, so that a times the reciprocal of four
    divisors is a number; of other constants a two elements, and p = 63.
    """

    name = "gpu-share-reciprocals"

    def run(self, module: ir.Operation) -> bool:
        for kernel in [op for op in find_all(module, "func.func") if _is_over_rows(op)]:
            for map_ in list(float_maps(kernel, rank=2)):
                for op in find_all(map_, "arith.addf"):
                    scaler = Scaler(map_.regions[0].blocks[0], bounded=False)
                    if isinstance(op.results[0].type, ir.F32Type) and not scaler.cheap(op.results[0]):
                        _rewrite(op, scaler)
        return True


def shared_divisions(block: ir.Block, depends: dict[ir.Value, frozenset[int]]) -> list[ir.Operation]:
    """The divisions of a map that elements of a row may do together; none where pairs are masked, as NaN of one would reach the others."""
    operations = [view.operation for view in block.operations]
    found = [op for op in operations if SHARED in op.attributes and depends[op.results[0]] == frozenset({0, 1})]
    helpers = {helper_of(op) for op in found}
    nested = any(_needs(op.operands[1], found) for op in found)
    return [] if len(helpers) != 1 or nested or any(op.name == "arith.select" for op in operations) else found


def helper_of(division: ir.Operation) -> str:
    """The function that makes quotients of elements together."""
    return f"quotients_{ir.IntegerAttr(division.attributes[SHARED]).value}{'_wide' if WIDE in division.attributes else ''}"


def unclamped(division: ir.Operation) -> tuple[ir.Value, ir.Value]:
    """x and c of a / min(x + c, 1), which shared quotients compute themselves; see `ShareReciprocals`."""
    clamped = maker(division.operands[1], "arith.minimumf")
    sum_ = maker(division.operands[1] if clamped is None else clamped.operands[0], "arith.addf")
    if sum_ is None:
        raise ValueError("quotients that share a reciprocal have sums as divisors")
    x, least = sum_.operands
    return x, least


def _needs(value: ir.Value, ops: list[ir.Operation]) -> bool:
    """Whether a value is made of a result of one of the ops."""
    if isinstance(value.owner, ir.Block):
        return False
    op = value.owner.operation
    return op in ops or any(_needs(operand, ops) for operand in op.operands)


def _is_over_rows(function: ir.Operation) -> bool:
    """Over pairs, where more products of matrices hide special functions, products of reciprocals cost more than they save."""
    kernel = function.attributes["tile.kernel"] if "tile.kernel" in function.attributes else None
    return kernel is not None and ("grid" not in kernel or ir.StringAttr(kernel["grid"]).value == "rows")


def _rewrite(sum_: ir.Operation, scaler: Scaler) -> None:
    e = next((op for op in (maker(operand, "math.exp2") for operand in sum_.operands) if op is not None), None)
    if e is None or not any(number(operand) == 1.0 for operand in sum_.operands) or not used_once(e.results[0]):
        return
    users = [use.owner.operation for use in sum_.results[0].uses]
    if len(users) != 1 or users[0].name != "arith.divf" or users[0].operands[1] != sum_.results[0]:
        return
    division, type_ = users[0], sum_.results[0].type
    dividend = number(division.operands[0])
    if dividend is None or not 2.0**-8 <= abs(dividend) <= 2.0**8:
        return
    rounded = _is_rounded(division.results[0], dividend, scaler)
    wide, power = not rounded and 1.0 <= abs(dividend) <= _WIDE_MOST, 31 if rounded else 63
    with unnamed(division.location), ir.InsertionPoint(division):
        small = arith.addf(math_ops.exp2(_less(e.operands[0], power, scaler)), constant(2.0**-power, type_))
        divisor = arith.minimumf(small, constant(1.0, type_))
        quotient = arith.divf(constant(dividend * 2.0**-power, type_), divisor, loc=division.location)
        quotient.owner.operation.attributes[SHARED] = i64(4 if rounded or wide else 2)
        if wide:
            quotient.owner.operation.attributes[WIDE] = ir.UnitAttr.get()
    division.results[0].replace_all_uses_with(quotient)
    for op in (division, sum_, e):
        op.erase()


def _less(t: ir.Value, power: int, scaler: Scaler) -> ir.Value:
    """t - power, at no cost where t is a product, or has a term that belongs to a row or column."""
    less = constant(-float(power), t.type)
    op = maker(t, "arith.mulf", "math.fma") if used_once(t) and not scaler.cheap(t) else None
    if op is not None and op.name == "arith.mulf":
        return math_ops.fma(*op.operands, less)
    if op is not None and scaler.cheap(op.operands[2]):
        return math_ops.fma(*list(op.operands)[:2], arith.addf(op.operands[2], less))
    return arith.addf(t, less)


def _is_rounded(quotient: ir.Value, dividend: float, scaler: Scaler) -> bool:
    """Whether all that is made of the quotient is rounded to f16, or begins with a sum that absorbs small ones."""
    todo, seen = [quotient], set[ir.Value]()
    while todo:
        value = todo.pop()
        seen.add(value)
        for op in (use.owner.operation for use in value.uses):
            if op.name == "tile.yield":
                return False
            if op.name == "arith.truncf":
                if str(op.results[0].type) != "f16":
                    return False
            elif not _absorbs(op, quotient, dividend, scaler):
                todo += [result for result in op.results if result not in seen]
    return True


def _absorbs(op: ir.Operation, quotient: ir.Value, dividend: float, scaler: Scaler) -> bool:
    """Whether `op` is u (c - quotient), where c is no smaller than the dividend by much."""
    if op.name in ("arith.addf", "arith.subf") and quotient in op.operands:
        c = next((number(operand) for operand in op.operands if number(operand) is not None), None)
        return c is not None and abs(c) >= abs(dividend) / 64
    if op.name != "math.fma" or quotient not in list(op.operands)[:2]:
        return False
    a, b, c = op.operands
    (u, first), (other, second) = _multiple(b if a == quotient else a), _multiple(c)
    return scaler.cheap(u) and u == other and abs(second) >= abs(first * dividend) / 64


def _multiple(value: ir.Value) -> tuple[ir.Value, float]:
    """(u, c) for c u."""
    found = factor(value)
    if found is not None:
        return found
    negated = maker(value, "arith.negf")
    return (negated.operands[0], -1.0) if negated is not None else (value, 1.0)
