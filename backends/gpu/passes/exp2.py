"""Exponentials and logarithms to base 2, which the hardware has."""

import math
from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.scaling import Scaler, constant, float_maps, is_real, maker, unnamed, used_once
from attn_mlir.dialects.regions import element_of
from attn_mlir.mlir import arith, ir
from attn_mlir.mlir import math as math_ops
from attn_mlir.passes.base import Pass
from attn_mlir.passes.magnitudes import Magnitudes
from attn_mlir.passes.regions import find_all

_LOG2_E, _LN_2 = 1.0 / math.log(2.0), math.log(2.0)


@dataclass(frozen=True)
class Exp2(Pass):
    """Replaces exp by exp2 of the argument times log2(e), and log by log2 times log(2).

    In maps over pairs the factor goes where it costs nothing for an element: exp(c s - m) becomes exp2(fma(s, c', m')) with
    m' = -m log2(e) computed once for a row (or column) and kept finite where m is. Two roundings may become one or another. Differences
    of a row's and a column's value, or of two elements, are taken before, so that exp of the difference of equal ones is 1. So are those
    of scores that may be large (`passes/magnitudes.py`), as where -1e30 or a captured number masks them: the residual of m' would be a
    factor of the weights, or overflow. exp(s - m - l) becomes exp2(fma(s - m, c', l')) then.
    """

    name = "gpu-exp2"

    def run(self, module: ir.Operation) -> bool:
        for map_ in list(float_maps(module)):
            block = map_.regions[0].blocks[0]
            for op in [op for op in find_all(map_, "math.exp", "math.log") if is_real(op.results[0])]:
                with unnamed(op.location), ir.InsertionPoint(op):
                    result = _exp(op, Scaler(block, bounded=True), Magnitudes(block)) if op.name == "math.exp" else _log(op)
                op.results[0].replace_all_uses_with(result)
                op.erase()
        return True


def _exp(op: ir.Operation, scaler: Scaler, magnitudes: Magnitudes) -> ir.Value:
    x = op.operands[0]
    if scaler.rank == 1:
        return math_ops.exp2(arith.mulf(x, constant(_LOG2_E, x.type)), loc=op.location)
    whole = _of_large(x, scaler, magnitudes)
    if whole is not None:
        difference, rest = whole
        _settle(difference)
        last = constant(0.0, x.type) if rest is None else scaler.bound(scaler.scaled(rest[0], rest[1] * _LOG2_E), _LOG2_E)
        return math_ops.exp2(math_ops.fma(difference, constant(_LOG2_E, x.type), last), loc=op.location)
    if _difference(x, scaler):
        return math_ops.exp2(arith.mulf(x, constant(_LOG2_E, x.type)), loc=op.location)
    return math_ops.exp2(scaler.scaled(x, _LOG2_E), loc=op.location)


def _difference(x: ir.Value, scaler: Scaler) -> bool:
    """Whether it is a difference of two elements of one tile, or of two values that cost an element nothing, or take no factor in."""
    op = maker(x, "arith.subf")
    if op is None:
        return False
    reads = [read.operands[0] for read in (maker(value, "tensor.extract") for value in op.operands) if read is not None]
    one_tile = len(reads) == 2 and reads[0] == reads[1]
    return one_tile or all(map(scaler.cheap, op.operands)) or not any(map(scaler.free, op.operands))


def _of_large(x: ir.Value, scaler: Scaler, magnitudes: Magnitudes) -> tuple[ir.Value, tuple[ir.Value, float] | None] | None:
    """(d, (t, sign)) where x is d + sign t, d is of elements that may be large and a row's or column's value, and t is such a value."""
    op = maker(x, "arith.subf", "arith.addf")
    if op is None:
        return None
    for number, value in enumerate(op.operands):
        other = op.operands[1 - number]
        if scaler.cheap(value) or not scaler.cheap(other) or not magnitudes.is_large(value):
            continue
        inside = (number == 0 or op.name == "arith.addf") and used_once(value)
        deeper = _of_large(value, scaler, magnitudes) if inside else None
        if deeper is not None and deeper[1] is None:
            return deeper[0], (other, 1.0 if op.name == "arith.addf" else -1.0)
        if deeper is not None or op.name == "arith.subf":
            return x, None
    return None


def _settle(difference: ir.Value) -> None:
    """Products that it is taken of become multiply-adds: compilers would make one multiply-add of a product and the difference."""
    for operand in difference.owner.operation.operands:
        read = maker(operand, "tensor.extract")
        of_map = read is not None and maker(read.operands[0], "tile.map") is not None
        _settle_products(element_of(read.operands[0]) if of_map else operand)


def _settle_products(value: ir.Value) -> None:
    op = maker(value, "arith.mulf", "arith.select", "arith.negf")
    if op is None or not is_real(value):
        return
    if op.name != "arith.mulf":
        for operand in list(op.operands)[1 if op.name == "arith.select" else 0 :]:
            _settle_products(operand)
        return
    with unnamed(op.location), ir.InsertionPoint(op):
        settled = math_ops.fma(*op.operands, constant(0.0, value.type))
    value.replace_all_uses_with(settled)
    op.erase()


def _log(op: ir.Operation) -> ir.Value:
    x = op.operands[0]
    return arith.mulf(math_ops.log2(x), constant(_LN_2, x.type), loc=op.location)
