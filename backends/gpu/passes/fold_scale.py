"""Takes constant factors out of maxima."""

import math
from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.scaling import constant, factor, float_maps, is_normal, maker
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import walk
from attn_mlir.passes.simplification.folding import number
from attn_mlir.passes.tiling.scalars import identity


@dataclass(frozen=True)
class FoldScale(Pass):
    """A positive constant factor leaves a maximum, or minimum, along rows: max(c s) = c max(s).

    A tile that the same map makes of what it reduces keeps s, too: the maps that read it multiply, where the factor may vanish in other
    arithmetic (`gpu-exp2`). Factors that are known at run time only stay: their sign is unknown.
    """

    name = "gpu-fold-scale"

    def run(self, module: ir.Operation) -> bool:
        for map_ in list(float_maps(module, rank=2)):
            if map_.name == "tile.map":
                _fold(map_)
        _forward_copies(module)
        return True


def _fold(map_: ir.Operation) -> None:
    terminator = map_.regions[0].blocks[0].operations[-1].operation
    kinds = map_.opview.kinds()
    tiles = len(map_.results) - len(kinds)
    for position, kind in enumerate(kinds, tiles):
        value = terminator.operands[position]
        found = _positive_factor(value) if kind in ("max", "min") else None
        if found is None:
            continue
        positions = [p for p in range(len(map_.results)) if terminator.operands[p] == value]
        others = [p for p in positions if p >= tiles and kinds[p - tiles] == "sum"]
        if others or not all(is_only_read(map_.results[p]) for p in positions):
            continue
        with terminator.location, ir.InsertionPoint(terminator):
            plain = _without(value, found)
        for p in positions:
            terminator.operands[p] = plain
            _scale_reads(map_.results[p], found, kinds[p - tiles] if p >= tiles and may_be_empty(map_, value) else None)


def _positive_factor(value: ir.Value) -> float | None:
    """A positive constant that `value` is a multiple of; a masked score is a multiple of anything."""
    choice = maker(value, "arith.select")
    if choice is not None:
        _, a, b = choice.operands
        for kept, other in ((a, b), (b, a)):
            c = number(other)
            if c is not None and (math.isinf(c) or c == 0.0):
                return _positive_factor(kept)
        return None
    found = factor(value)
    if found is None:
        return None
    inner = _positive_factor(found[0]) if found[1] > 0 else None
    c = found[1] * (inner or 1.0)
    return c if c > 0 and is_normal(c, value.type) else None


def _without(value: ir.Value, c: float) -> ir.Value:
    """`value` by its factor."""
    choice = maker(value, "arith.select")
    if choice is not None:
        condition, a, b = choice.operands
        return arith.select(condition, _without(a, c), _without(b, c))
    found = factor(value)
    if found is None:
        return value  # what is chosen otherwise: 0 or infinite
    return _without(found[0], c) if _positive_factor(found[0]) is not None else found[0]


def may_be_empty(map_: ir.Operation, value: ir.Value) -> bool:
    """Whether the reduction may run over nothing that counts."""
    return maker(map_.operands[1], "arith.constant") is None or maker(value, "arith.select") is not None


def is_only_read(result: ir.Value) -> bool:
    return all(use.owner.operation.name == "tensor.extract" for use in result.uses)


def _scale_reads(result: ir.Value, c: float, kind: str | None) -> None:
    """Multiplies what is read of a tile, or of a reduction of this kind, whose value over nothing stays: later ops may ask for it."""
    for op in [use.owner.operation for use in result.uses]:
        read = op.results[0]
        uses = list(read.uses)
        with op.location, ir.InsertionPoint.after(op):
            scaled = arith.mulf(read, constant(c, read.type))
            if kind is not None:
                nothing = constant(identity(kind, read.type), read.type)
                scaled = arith.select(arith.cmpf(arith.CmpFPredicate.OEQ, read, nothing), nothing, scaled)
        for use in uses:
            use.owner.operation.operands[use.operand_number] = scaled


def _forward_copies(module: ir.Operation) -> None:
    """Reads of a tile that is a mere copy of another become reads of that one; tiles that nothing reads any more disappear."""
    for map_ in [op for op in walk(module) if op.name == "tile.map"]:
        block = map_.regions[0].blocks[0]
        terminator = block.operations[-1].operation
        tiles = ir.DenseI32ArrayAttr(map_.attributes["resultSegmentSizes"])[0]
        kept = list(range(len(map_.results)))
        for p in range(tiles):
            source = _copied(terminator.operands[p], block)
            if source is None or source.type != map_.results[p].type or not is_only_read(map_.results[p]):
                continue
            for op in [use.owner.operation for use in map_.results[p].uses]:
                op.operands[0] = source
            kept.remove(p)
        if len(kept) < len(map_.results):
            _keep_results(map_, terminator, kept, tiles)


def _copied(value: ir.Value, block: ir.Block) -> ir.Value | None:
    """The tile of which `value` is the element at the map's own indices."""
    read = maker(value, "tensor.extract")
    return read.operands[0] if read is not None and list(read.operands)[1:] == list(block.arguments) else None


def _keep_results(map_: ir.Operation, terminator: ir.Operation, kept: list[int], tiles: int) -> None:
    """Replaces the map by one that makes only the results at the positions `kept`."""
    sizes = [sum(p < tiles for p in kept), sum(p >= tiles for p in kept)]
    values = [terminator.operands[p] for p in kept]
    with map_.location, ir.InsertionPoint(map_):
        attributes = {"reductions": map_.attributes["reductions"], "resultSegmentSizes": ir.DenseI32ArrayAttr.get(sizes)}
        types = [map_.results[p].type for p in kept]
        new = ir.Operation.create("tile.map", results=types, operands=list(map_.operands), attributes=attributes, regions=1)
    with terminator.location, ir.InsertionPoint(terminator):
        ir.Operation.create("tile.yield", operands=values, attributes={"operandSegmentSizes": ir.DenseI32ArrayAttr.get(sizes)})
    terminator.erase()
    map_.regions[0].blocks[0].append_to(new.regions[0])
    for p, result in zip(kept, new.results, strict=True):
        map_.results[p].replace_all_uses_with(result)
    map_.erase()
