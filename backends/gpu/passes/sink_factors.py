"""Moves factors to where they are computed once for a row or column."""

from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.scaling import (
    Scaler,
    TermSum,
    constant,
    erase_unused,
    factor,
    float_maps,
    is_real,
    maker,
    unnamed,
    used_once,
)
from attn_mlir.backends.gpu.scalar_ops import EXACT
from attn_mlir.mlir import arith, ir
from attn_mlir.mlir import math as math_ops
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.simplification.folding import number

_SUMS = ("arith.addf", "arith.subf")


@dataclass(frozen=True)
class SinkFactors(Pass):
    """In maps over pairs: c (e (r x + t)) becomes e ((c r) x + (c t)) where r and t belong to a row or column, and c is a constant.

    Divisions by constants, and by values of a row or column, become multiplications; several such factors of one product become one.
    u (x + t) becomes fma(x, u, u t) where u and t belong to one row or column and the product is added to something, or t is a constant.
    One rounding more or less; nothing is computed twice for an element. What `gpu-exact-jumps` marked stays as it is, and sums of scores
    that may be large (`gpu-exp2`) stay whole.
    """

    name = "gpu-sink-factors"

    def run(self, module: ir.Operation) -> bool:
        for map_ in list(float_maps(module, rank=2)):
            block = map_.regions[0].blocks[0]
            for op in find_all(map_, "arith.divf"):
                _rewrite(op, block, _reciprocal)
            erase_unused(block)
            for op in find_all(map_, "arith.mulf", "arith.divf", *_SUMS)[::-1]:
                _rewrite(op, block, _regrouped if op.name in _SUMS else _sunk)
            erase_unused(block)
            for op in find_all(map_, "arith.mulf")[::-1]:
                _rewrite(op, block, _gathered)
            erase_unused(block)
            for op in find_all(map_, "arith.mulf")[::-1]:
                _rewrite(op, block, _by_cheap)
        return True


def _rewrite(op: ir.Operation, block: ir.Block, rule: Callable[[ir.Operation, Scaler], ir.Value | None]) -> None:
    scaler = Scaler(block, bounded=False)
    if EXACT in op.attributes or not is_real(op.results[0]) or scaler.cheap(op.results[0]) or not any(True for _ in op.results[0].uses):
        return
    with unnamed(op.location), ir.InsertionPoint(op):
        result = rule(op, scaler)
    if result is not None:
        op.results[0].replace_all_uses_with(result)
        op.erase()


def _reciprocal(op: ir.Operation, scaler: Scaler) -> ir.Value | None:
    """x / u = x (1 / u), for u of a row, of a column or of neither."""
    x, u = op.operands
    return arith.mulf(x, arith.divf(constant(1.0, u.type), u)) if scaler.cheap(u) and number(u) is None else None


def _sunk(op: ir.Operation, scaler: Scaler) -> ir.Value | None:
    found = factor(op.results[0])
    if found is None:
        return None
    x, c = found
    if not scaler.cheap(x) and scaler.free(x):
        return scaler.scaled(x, c)
    return arith.mulf(x, constant(c, x.type)) if op.name == "arith.divf" else None


def _gathered(op: ir.Operation, scaler: Scaler) -> ir.Value | None:
    """(u x) (v y) = (x y) (u v), for u and v of the same row or column, or of neither; w (x + t) y = (w x + w t) y, for w of neither."""
    if any(use.owner.operation.name == "arith.mulf" for use in op.results[0].uses) and used_once(op.results[0]):
        return None  # a part of a longer product
    full: list[ir.Value] = []
    cheap: dict[frozenset[int], list[ir.Value]] = {}
    todo = list(op.operands)[::-1]
    while todo:
        value = todo.pop()
        if scaler.cheap(value):
            cheap.setdefault(scaler.depends(value), []).append(value)
            continue
        product = maker(value, "arith.mulf") if used_once(value) else None
        if product is None:
            full.append(value)
        else:
            todo += list(product.operands)[::-1]
    several = any(len(values) > 1 for values in cheap.values())
    sums = [value for value in full if frozenset() in cheap and _takes_factor(value, scaler)]
    if not full or not (several or sums):
        return None
    for values in cheap.values():
        while len(values) > 1:
            values[:2] = [arith.mulf(*values[:2])]
    for sum_ in sums[:1]:
        full[full.index(sum_)] = _times(sum_.owner.operation, cheap.pop(frozenset())[0], scaler)
    total = full[0]
    for factor_ in [*full[1:], *(u for (u,) in cheap.values())]:
        total = arith.mulf(total, factor_)
    return total


def _takes_factor(value: ir.Value, scaler: Scaler) -> bool:
    """Whether it is a sum with a term of a row or column, which a factor costs nothing as it is a multiply-add then."""
    op = maker(value, *_SUMS) if used_once(value) and not scaler.whole(value) else None
    return op is not None and any(scaler.cheap(term) and scaler.depends(term) for term in op.operands)


def _times(sum_: ir.Operation, u: ir.Value, scaler: Scaler) -> ir.Value:
    """u times a sum with a cheap term, as a multiply-add."""
    minus = arith.negf(u) if sum_.name == "arith.subf" else u
    (x, of_x), (t, of_t) = zip(sum_.operands, (u, minus), strict=True)
    if scaler.cheap(x):
        (x, of_x), (t, of_t) = (t, of_t), (x, of_x)
    return math_ops.fma(x, of_x, arith.mulf(t, of_t))


def _by_cheap(op: ir.Operation, scaler: Scaler) -> ir.Value | None:
    """(c x) u = x (c u) and u (c - x) = u c - u x, for u of a row, of a column or of neither, and constants c."""
    x, u = op.operands
    if scaler.cheap(x):
        x, u = u, x
    if not scaler.cheap(u) or number(u) is not None or scaler.cheap(x) or not used_once(x):
        return None
    found = factor(x)
    if found is not None:
        return arith.mulf(found[0], scaler.scaled(u, found[1]))
    sum_ = maker(x, *_SUMS) if not scaler.whole(x) else None
    if sum_ is not None and any(number(term) is not None for term in sum_.operands):
        return TermSum(scaler, op.results[0], 1.0).emit()
    return None


def _regrouped(op: ir.Operation, scaler: Scaler) -> ir.Value | None:
    if scaler.whole(op.results[0]) or not any(_is_distributable(operand, scaler) for operand in op.operands):
        return None
    return TermSum(scaler, op.results[0], 1.0).emit()


def _is_distributable(value: ir.Value, scaler: Scaler) -> bool:
    """Whether it is u (x + t), used once, where u, x and t are cheap."""
    op = maker(value, "arith.mulf")
    for u, total in [] if op is None or not used_once(value) else [tuple(op.operands), tuple(op.operands)[::-1]]:
        sum_ = maker(total, *_SUMS)
        if sum_ is None or scaler.whole(total):
            continue
        if scaler.cheap(u) and number(u) is None and not scaler.cheap(total) and used_once(total):
            return all(scaler.cheap(term) for term in sum_.operands)
    return False
