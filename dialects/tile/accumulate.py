"""Sums in global memory: matrix products and scattered values are added to what is there."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialects.tile.dialect import Tile
from attn_mlir.dialects.variadic import single_variadic
from attn_mlir.dialects.verify import check, entry_block, is_score_type, terminator
from attn_mlir.mlir import ext, ir


def _is_tile(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType) and type_.rank == 2


class AccumulateOp(Tile.Operation, name="accumulate"):
    """target[slot, batch, head, row + j] += the sum over i of a[i, j] b[i], for the first `count` columns j of a.

    The sum runs over the rows of `b`; where `a` has more rows, those do not count. `target` is [slots, B, H, S, D].
    """

    a: ext.Operand[Any]
    b: ext.Operand[Any]
    target: ext.Operand[Any]
    slot: ext.Operand[ir.IndexType]
    batch: ext.Operand[ir.IndexType]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    count: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        a, b, target = self.a.type, self.b.type, self.target.type
        if not check(self, _is_tile(a) and _is_tile(b), f"sums products of rank-2 tiles, got {a} and {b}"):
            return False
        if not check(self, a.element_type == b.element_type, f"multiplies equal element types, got {a} and {b}"):
            return False
        if not check(self, isinstance(target, ir.MemRefType) and target.rank == 5, f"adds to a memref of rank 5, got {target}"):
            return False
        if not check(self, b.shape[1] == target.shape[4], f"keeps the head dimension {target.shape[4]}, got {b}"):
            return False
        return check(self, is_score_type(target.element_type), f"adds to f32 or f64, got {target}")


class ScatterYieldOp(Tile.Operation, name="scatter_yield", traits=[ir.IsTerminatorTrait, ext.Pure]):
    """Ends the region of `tile.scatter_add`: a value, whether it is to be added, and where."""

    value: ext.Operand[Any]
    present: ext.Operand[Any]
    indices: Sequence[ext.Operand[ir.IndexType]]


@single_variadic
class ScatterAddOp(Tile.Operation, name="scatter_add"):
    """Adds values at computed places: for each column j < N and in it each row i < M, target[indices] += value.

    The extents are (M, N) or (M). The region takes (i, j) or (i), as that of `tile.map` does, and ends in
    `tile.scatter_yield`. Where nothing is to be added, the indices may be anything.
    """

    target: ext.Operand[Any]
    extents: Sequence[ext.Operand[ir.IndexType]]
    body: ext.Region

    def verify_invariants(self) -> bool:
        target, extents = self.target.type, list(self.extents)
        fits = isinstance(target, ir.MemRefType) and is_score_type(target.element_type)
        if not check(self, fits, f"adds to a memref of f32 or f64, got {target}"):
            return False
        return check(self, len(extents) in (1, 2), f"runs over one or two extents, got {len(extents)}")

    def verify_region_invariants(self) -> bool:
        block, rank = entry_block(self), len(list(self.extents))
        got = [a.type for a in block.arguments] if block is not None else []
        fits = len(got) == rank and all(isinstance(t, ir.IndexType) for t in got)
        if not check(self, fits, f"region has {rank} indices, got ({', '.join(map(str, got))})"):
            return False
        last = terminator(block)
        if not check(self, last is not None and last.operation.name == "tile.scatter_yield", "ends in 'tile.scatter_yield'"):
            return False
        value, present, *indices = (operand.type for operand in last.operation.operands)
        target = ir.MemRefType(self.target.type)
        fits = value == target.element_type and str(present) == "i1"
        if not check(self, fits, f"yields a value of {target.element_type} and an i1, got {value} and {present}"):
            return False
        return check(self, len(indices) == target.rank, f"yields {target.rank} indices, got {len(indices)}")
