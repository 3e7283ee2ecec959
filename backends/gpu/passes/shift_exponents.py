"""Powers of two that multiply exponentials become terms of the exponents."""

import math
from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.scaling import Scaler, constant, erase_unused, factor, float_maps, is_real
from attn_mlir.mlir import arith, ir
from attn_mlir.mlir import math as math_ops
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker

_MOST = 64


@dataclass(frozen=True)
class ShiftExponents(Pass):
    """In maps over pairs: 2^k exp2(x) becomes exp2(x + k), where x is a multiply-add whose last term costs an element nothing.

    What else the exponential is used for must be sums along rows: these are then of the shifted numbers, and who reads one multiplies it by
    2^-k, once a row. So weights that `attn-fit-range` has scaled cost no multiplication. The sum k + term is rounded once more.
    """

    name = "gpu-shift-exponents"

    def run(self, module: ir.Operation) -> bool:
        for map_ in list(float_maps(module, rank=2)):
            for op in find_all(map_, "arith.mulf") if map_.name == "tile.map" else []:
                _rewrite(op, map_)
            erase_unused(map_.regions[0].blocks[0])
        return True


def _rewrite(op: ir.Operation, map_: ir.Operation) -> None:
    found = factor(op.results[0]) if is_real(op.results[0]) else None
    weight, k = (found[0], math.log2(found[1])) if found is not None and found[1] > 0 else (None, 0.0)
    exponential = maker(weight, "math.exp2") if weight is not None else None
    if exponential is None or k != round(k) or not 0 < abs(k) <= _MOST or exponential.block != op.block:
        return
    block = map_.regions[0].blocks[0]
    sum_, scaler = maker(exponential.operands[0], "math.fma"), Scaler(block, bounded=False)
    sums = _sums(exponential.results[0], op, map_)
    if sum_ is None or not scaler.cheap(sum_.operands[2]) or sums is None:
        return
    a, b, term = sum_.operands
    with exponential.location, ir.InsertionPoint(exponential):
        shifted = math_ops.exp2(math_ops.fma(a, b, arith.addf(term, constant(k, term.type))))
    op.results[0].replace_all_uses_with(shifted)
    for number in sums:
        block.operations[-1].operation.operands[number] = shifted
        for read in [use.owner.operation for use in map_.results[number].uses]:
            _multiply(read, 2.0**-k)


def _sums(weight: ir.Value, op: ir.Operation, map_: ir.Operation) -> list[int] | None:
    """Which results of a map are sums of an exponential along rows that maps read; None where it is used for something else but `op`."""
    last = map_.regions[0].blocks[0].operations[-1].operation
    kinds = [*[""] * len(map_.results), *map_.opview.kinds()][-len(map_.results) :]
    found = []
    for use in weight.uses:
        user = use.owner.operation
        if user == op:
            continue
        if user != last or kinds[use.operand_number] != "sum":
            return None
        if any(read.owner.operation.name != "tensor.extract" for read in map_.results[use.operand_number].uses):
            return None
        found.append(use.operand_number)
    return found


def _multiply(read: ir.Operation, by: float) -> None:
    """Whoever reads a number gets it times a constant."""
    users = [(use.owner.operation, use.operand_number) for use in read.results[0].uses]
    with read.location, ir.InsertionPoint.after(read):
        scaled = arith.mulf(read.results[0], constant(by, read.results[0].type))
    for user, number in users:
        user.operands[number] = scaled
