"""Exponentials and logarithms to base 2, which the hardware has."""

import math
from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.scaling import Scaler, constant, float_maps, is_real, maker, unnamed, used_once
from attn_mlir.backends.gpu.passes.settling import Settler, settle
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
    factor of the weights, or overflow. exp(s - m - l) becomes exp2(fma(s - m, c', l')) then, for m and l of one row. Products that such
    differences are taken of become multiply-adds, which compilers do not join with the difference.
    """

    name = "gpu-exp2"

    def run(self, module: ir.Operation) -> bool:
        settler = Settler()
        for map_ in list(float_maps(module)):
            block = map_.regions[0].blocks[0]
            for op in [op for op in find_all(map_, "math.exp", "math.log") if is_real(op.results[0])]:
                with unnamed(op.location), ir.InsertionPoint(op):
                    result = _exp(op, Scaler(block, bounded=True), Magnitudes(block)) if op.name == "math.exp" else _log(op)
                op.results[0].replace_all_uses_with(result)
                op.erase()
            settler.settle(map_)
        return True


def _exp(op: ir.Operation, scaler: Scaler, magnitudes: Magnitudes) -> ir.Value:
    x = op.operands[0]
    if scaler.rank == 1:
        return math_ops.exp2(arith.mulf(x, constant(_LOG2_E, x.type)), loc=op.location)
    whole = _of_large(x, scaler, magnitudes)
    if whole is not None:
        difference, rest = whole
        settle(difference)
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
        if deeper is not None and deeper[1] is None and _is_read_alike(other, deeper[0]):
            return deeper[0], (other, 1.0 if op.name == "arith.addf" else -1.0)
        if deeper is not None or op.name == "arith.subf":
            return x, None
    return None


def _is_read_alike(value: ir.Value, difference: ir.Value) -> bool:
    """Whether a value is read at the same place as what a difference takes away: both are values of a row, as its maximum and a logarithm.

    Else what is taken away may be a number of the user's, and only `value` brings the rest of it near 0.
    """
    op = difference.owner.operation
    reads = [maker(x, "memref.load", "tensor.extract") for x in (value, op.operands[1])]
    return op.name == "arith.subf" and all(reads) and list(reads[0].operands)[1:] == list(reads[1].operands)[1:]


def _log(op: ir.Operation) -> ir.Value:
    x = op.operands[0]
    return arith.mulf(math_ops.log2(x), constant(_LN_2, x.type), loc=op.location)
