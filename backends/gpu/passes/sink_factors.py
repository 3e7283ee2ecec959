"""Moves factors to where they are computed once for a row or column."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.scaling import Scaler, Sum, constant, factor, float_maps, is_real, maker, unnamed, used_once
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.simplification.folding import number

_SUMS = ("arith.addf", "arith.subf")


@dataclass(frozen=True)
class SinkFactors(Pass):
    """In maps over pairs: c (e (r x + t)) becomes e ((c r) x + (c t)) where r and t belong to a row or column, and c is a constant.

    Divisions by constants become multiplications. u (x + t) becomes fma(x, u, u t) where u and t belong to one row or column and the
    product is added to something. One rounding more or less; nothing is computed twice for an element.
    """

    name = "gpu-sink-factors"

    def run(self, module: ir.Operation) -> bool:
        for map_ in list(float_maps(module, rank=2)):
            block = map_.regions[0].blocks[0]
            for op in find_all(map_, "arith.mulf", "arith.divf", *_SUMS)[::-1]:
                if is_real(op.results[0]) and any(True for _ in op.results[0].uses):
                    _rewrite(op, Scaler(block, bounded=False))
        return True


def _rewrite(op: ir.Operation, scaler: Scaler) -> None:
    if scaler.cheap(op.results[0]):
        return
    with unnamed(op.location), ir.InsertionPoint(op):
        result = _regrouped(op, scaler) if op.name in _SUMS else _sunk(op, scaler)
    if result is not None:
        op.results[0].replace_all_uses_with(result)
        op.erase()


def _sunk(op: ir.Operation, scaler: Scaler) -> ir.Value | None:
    found = factor(op.results[0])
    if found is None:
        return None
    x, c = found
    if not scaler.cheap(x) and scaler.free(x):
        return scaler.scaled(x, c)
    return arith.mulf(x, constant(c, x.type)) if op.name == "arith.divf" else None


def _regrouped(op: ir.Operation, scaler: Scaler) -> ir.Value | None:
    if not any(_is_distributable(operand, scaler) for operand in op.operands):
        return None
    return Sum(scaler, op.results[0], 1.0).emit()


def _is_distributable(value: ir.Value, scaler: Scaler) -> bool:
    """Whether it is u (x + t), used once, where u, x and t are cheap."""
    op = maker(value, "arith.mulf")
    for u, total in [] if op is None or not used_once(value) else [tuple(op.operands), tuple(op.operands)[::-1]]:
        sum_ = maker(total, *_SUMS)
        if sum_ is not None and scaler.cheap(u) and number(u) is None and not scaler.cheap(total) and used_once(total):
            return all(scaler.cheap(term) for term in sum_.operands)
    return False
