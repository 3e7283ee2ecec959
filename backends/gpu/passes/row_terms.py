"""Takes terms of a row out of maxima."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.fold_scale import is_free, is_only_read, is_repeatable, may_be_empty, repeated
from attn_mlir.backends.gpu.passes.scaling import Scaler, TermSum, constant, erase_unused, float_maps, is_real, maker
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.magnitudes import Magnitudes
from attn_mlir.passes.simplification.folding import number
from attn_mlir.passes.tiling.scalars import identity

_ROW = frozenset({0})


@dataclass(frozen=True)
class RowTerms(Pass):
    """A term that is the same along a row leaves a maximum along rows: max(s + t) = t + max(s).

    A tile that the same map makes of what it reduces keeps s, too: the maps that read it add t, which other row values may absorb
    (`gpu-exp2`). Only terms that are made of positions and values of the whole kernel, and only maxima in whose place any number near them
    does (`gpu-lazy-rescale`): a derivative may ask which score equals the maximum, bit by bit.
    Scores that may be large stay whole (`gpu-exp2`).
    """

    name = "gpu-row-terms"

    def run(self, module: ir.Operation) -> bool:
        for map_ in list(float_maps(module, rank=2)):
            if map_.name == "tile.map":
                _rewrite(map_)
        return True


def _rewrite(map_: ir.Operation) -> None:
    block = map_.regions[0].blocks[0]
    terminator = block.operations[-1].operation
    kinds = map_.opview.kinds()
    tiles = len(map_.results) - len(kinds)
    for position, kind in enumerate(kinds, tiles):
        value = terminator.operands[position]
        same = [p for p in range(len(map_.results)) if terminator.operands[p] == value]
        others = any(p >= tiles and p != position for p in same)
        if kind != "max" or others or not is_real(value) or not all(is_only_read(map_.results[p]) for p in same):
            continue
        if not is_free(map_.results[position]) or Magnitudes(block).is_large(value):
            continue
        with terminator.location, ir.InsertionPoint(terminator):
            found = _without(value, Scaler(block, bounded=False), block)
        if found is None:
            continue
        plain, term = found
        for p in same:
            terminator.operands[p] = plain
        for p in same:
            empty = kinds[p - tiles] if p >= tiles and may_be_empty(map_, value) else None
            _add_to_reads(map_.results[p], term, block, empty)
        erase_unused(block)


def _without(value: ir.Value, scaler: Scaler, block: ir.Block) -> tuple[ir.Value, ir.Value] | None:
    """(s, t) where `value` is s + t, or a choice between that and an infinite or the lowest number."""
    choice = maker(value, "arith.select")
    if choice is not None:
        condition, a, b = choice.operands
        c = number(b)
        found = _without(a, scaler, block) if c is not None and abs(c) > 1e38 and maker(a, "arith.select") is None else None
        return None if found is None else (arith.select(condition, found[0], b), found[1])
    if maker(value, "arith.addf", "arith.subf", "math.fma") is None or scaler.cheap(value):
        return None
    sum_ = TermSum(scaler, value, 1.0)
    terms = sum_.taken(_ROW)
    if not terms or not sum_.full or not all(is_repeatable(term, block) for term in terms):
        return None
    term = terms[0]
    for other in terms[1:]:
        term = arith.addf(term, other)
    return sum_.emit(), term


def _add_to_reads(result: ir.Value, term: ir.Value, block: ir.Block, kind: str | None) -> None:
    for read in [use.owner.operation for use in result.uses]:
        value, uses = read.results[0], list(read.results[0].uses)
        with read.location, ir.InsertionPoint.after(read):
            total = arith.addf(value, repeated(term, block, {block.arguments[0]: read.operands[1]}))
            if kind is not None:
                nothing = constant(identity(kind, value.type), value.type)
                total = arith.select(arith.cmpf(arith.CmpFPredicate.OEQ, value, nothing), nothing, total)
        for use in uses:
            use.owner.operation.operands[use.operand_number] = total
