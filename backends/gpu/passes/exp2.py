"""Exponentials and logarithms to base 2, which the hardware has."""

import math
from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.scaling import Scaler, constant, float_maps, is_real, maker, unnamed
from attn_mlir.mlir import arith, ir
from attn_mlir.mlir import math as math_ops
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.simplification.folding import number

_LOG2_E, _LN_2 = 1.0 / math.log(2.0), math.log(2.0)
_LARGE, _LARGEST = 2.0**28, 3.4028234e38
"""From `_LARGE` on half of a float32's last place, times log2(e), is 16 and more; up to 2^128 it is added up without overflow."""


@dataclass(frozen=True)
class Exp2(Pass):
    """Replaces exp by exp2 of the argument times log2(e), and log by log2 times log(2).

    In maps over pairs the factor goes where it costs nothing for an element: exp(c s - m) becomes exp2(fma(s, c', m')) with
    m' = -m log2(e) computed once for a row (or column) and kept finite where m is. Two roundings may become one or another. Differences
    of a row's and a column's value, or of two elements, are taken before, so that exp of the difference of equal ones is 1. So are those
    of elements in whose place a large finite number may stand, as -1e30 for masked ones: the residual of m' would overflow.
    """

    name = "gpu-exp2"

    def run(self, module: ir.Operation) -> bool:
        for map_ in list(float_maps(module)):
            block = map_.regions[0].blocks[0]
            for op in [op for op in find_all(map_, "math.exp", "math.log") if is_real(op.results[0])]:
                with unnamed(op.location), ir.InsertionPoint(op):
                    result = _exp(op, Scaler(block, bounded=True)) if op.name == "math.exp" else _log(op)
                op.results[0].replace_all_uses_with(result)
                op.erase()
        return True


def _exp(op: ir.Operation, scaler: Scaler) -> ir.Value:
    x = op.operands[0]
    if scaler.rank == 1 or _difference(x, scaler):
        return math_ops.exp2(arith.mulf(x, constant(_LOG2_E, x.type)), loc=op.location)
    return math_ops.exp2(scaler.scaled(x, _LOG2_E), loc=op.location)


def _difference(x: ir.Value, scaler: Scaler) -> bool:
    """Whether it is a difference of two elements of one tile, or of two values that cost an element nothing, or take no factor in."""
    op = maker(x, "arith.subf")
    if op is None:
        return False
    reads = [read.operands[0] for read in (maker(value, "tensor.extract") for value in op.operands) if read is not None]
    one_tile = len(reads) == 2 and reads[0] == reads[1]
    large = any(_may_be_large(read) for read in reads)
    return one_tile or large or all(map(scaler.cheap, op.operands)) or not any(map(scaler.free, op.operands))


def _may_be_large(tile: ir.Value) -> bool:
    """Whether the map that makes a tile puts a number in place of others that is finite and large, or is known at run time only."""
    made = None if isinstance(tile.owner, ir.Block) else tile.owner.operation
    if made is None or made.name != "tile.map" or len(made.regions[0].blocks[0].arguments) < 2:
        return False
    chosen = [value for op in find_all(made, "arith.select") if is_real(op.results[0]) for value in list(op.operands)[1:]]
    return any(_is_large(value, made) for value in chosen)


def _is_large(value: ir.Value, made: ir.Operation) -> bool:
    """Whether a value of a map may be from `_LARGE` on, and not the lowest or largest, which stay finite."""
    known = number(value)
    if known is not None:
        return _LARGE <= abs(known) < _LARGEST
    if isinstance(value.owner, ir.Block):
        return True
    op = value.owner.operation
    return op.name == "memref.load" or op.block != made.regions[0].blocks[0]


def _log(op: ir.Operation) -> ir.Value:
    x = op.operands[0]
    return arith.mulf(math_ops.log2(x), constant(_LN_2, x.type), loc=op.location)
