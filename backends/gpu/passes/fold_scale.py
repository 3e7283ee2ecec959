"""Takes factors that are the same for all elements out of tiles whose maxima are searched for."""

import math
from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.lazy_rescale import FREE
from attn_mlir.backends.gpu.passes.scaling import Scaler, constant, erase_unused, factor, float_maps, is_normal, is_real, maker
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.magnitudes import Magnitudes
from attn_mlir.passes.regions import walk
from attn_mlir.passes.simplification.folding import number
from attn_mlir.passes.tiling.scalars import identity


@dataclass(frozen=True)
class FoldScale(Pass):
    """A positive constant factor leaves a maximum, or minimum, along rows: max(c s) = c max(s), unless s may be large (`gpu-exp2`).

    A tile that the same map makes of what it reduces keeps s, too: the maps that read it multiply, where the factor may vanish in other
    arithmetic (`gpu-exp2`).

    A factor u that is known at run time only, but is one number for the whole kernel (scales of 8-bit inputs, a temperature by head), is
    computed once, before all loops. It may be negative, 0 or infinite, so that the maximum stays that of u s. The tile keeps s where any
    number near it may stand for the maximum (`gpu-lazy-rescale`): kernels look for that seldom then. A tile that a mask cuts keeps u s, as
    no number times u is -inf whatever u is. So does one of sums and choices, which may hold large numbers in place of -inf: u s and its
    multiple of log2(e) are not rounded there in one way, and of such numbers the difference overflows.
    """

    name = "gpu-fold-scale"

    def run(self, module: ir.Operation) -> bool:
        for map_ in list(float_maps(module, rank=2)):
            if map_.name == "tile.map":
                _fold(map_)
        _forward_copies(module)
        return True


def _fold(map_: ir.Operation) -> None:
    block = map_.regions[0].blocks[0]
    terminator = block.operations[-1].operation
    kinds = map_.opview.kinds()
    tiles = len(map_.results) - len(kinds)
    for position, kind in enumerate(kinds, tiles):
        value = terminator.operands[position]
        found = _positive_factor(value) if kind in ("max", "min") and not Magnitudes(block).is_large(value) else None
        if found is None:
            if kind in ("max", "min"):
                _leave_uniform(map_, position, tiles)
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


def _leave_uniform(map_: ir.Operation, position: int, tiles: int) -> None:
    """Computes u of s u, which a reduction reduces, before all loops, where it is one for the kernel; tiles that equal s u keep s."""
    block = map_.regions[0].blocks[0]
    terminator = block.operations[-1].operation
    value = terminator.operands[position]
    choice = maker(value, "arith.select")
    product = maker(value if choice is None else choice.operands[1], "arith.mulf")
    if product is None or not is_real(value):
        return
    scaler, kernel, parts = Scaler(block, bounded=False), _outermost(map_).block, list(product.operands)
    found = [n for n in range(2) if not scaler.depends(parts[n]) and number(parts[n]) is None and not scaler.cheap(parts[1 - n])]
    if not found or not is_repeatable(parts[found[0]], block, kernel):
        return
    s, u = parts[1 - found[0]], parts[found[0]]
    with product.location, _first_point(u, block, kernel):
        once = repeated(u, block, {})
    product.operands[found[0]] = once
    same = [p for p in range(tiles) if terminator.operands[p] == value and choice is None]
    if is_free(map_.results[position]) and _is_product(s, block) and all(is_only_read(map_.results[p]) for p in same):
        for p in same:
            terminator.operands[p] = s
            _multiply_reads(map_.results[p], once)
    erase_unused(block)


def _is_product(value: ir.Value, block: ir.Block) -> bool:
    """Whether an element is what tiles hold, or a multiple of it."""
    if isinstance(value.owner, ir.Block) or value.owner.operation.block != block:
        return True
    op = value.owner.operation
    if op.name in ("arith.mulf", "arith.divf", "arith.negf", "arith.extf"):
        return all(_is_product(operand, block) for operand in op.operands)
    return op.name in ("tensor.extract", "arith.constant", "memref.load")


def is_free(maximum: ir.Value) -> bool:
    """Whether it only becomes a part of running maxima that need not be exact."""
    return all(_becomes_free(use.owner.operation) for read in maximum.uses for use in read.owner.operation.results[0].uses)


def _becomes_free(op: ir.Operation) -> bool:
    """Whether it is such a maximum, or its operand, lower or higher by a constant."""
    if op.name in ("arith.subf", "arith.addf") and number(op.operands[1]) is not None:
        return all(_becomes_free(use.owner.operation) for use in op.results[0].uses)
    return op.name == "arith.maximumf" and FREE in op.attributes


def _multiply_reads(tile: ir.Value, u: ir.Value) -> None:
    for read in [use.owner.operation for use in tile.uses]:
        uses = [(use.owner.operation, use.operand_number) for use in read.results[0].uses]
        with read.location, ir.InsertionPoint.after(read):
            scaled = arith.mulf(read.results[0], u)
        for user, at in uses:
            user.operands[at] = scaled


def _outermost(op: ir.Operation) -> ir.Operation:
    """The op of the kernel's body in which `op` is."""
    while op.parent is not None and op.parent.operation.name != "func.func":
        op = op.parent.operation
    return op


def _first_point(value: ir.Value, block: ir.Block, kernel: ir.Block) -> ir.InsertionPoint:
    """Where all is there that `value`, a value of `block`, is made of: there loops are no further apart than they were."""
    ops = [view.operation for view in kernel.operations]
    needed = [ops.index(owner) for owner in _sources(value, block) if owner in ops]
    return ir.InsertionPoint.after(ops[max(needed)]) if needed else ir.InsertionPoint(ops[0])


def _sources(value: ir.Value, block: ir.Block) -> list[ir.Operation]:
    """The ops outside of `block` that make what `value` is made of."""
    if isinstance(value.owner, ir.Block):
        return []
    op = value.owner.operation
    return [op] if op.block != block else [owner for operand in op.operands for owner in _sources(operand, block)]


def is_repeatable(value: ir.Value, block: ir.Block, outside: ir.Block | None = None) -> bool:
    """Whether a value of `block` is made of positions, constants and values from outside: of the block `outside` where it is given."""
    if isinstance(value.owner, ir.Block):
        return outside is None or value.owner in (block, outside)
    op = value.owner.operation
    if op.block != block:
        return outside is None or op.block == outside
    return op.name.startswith(("arith.", "memref.")) and all(is_repeatable(operand, block, outside) for operand in op.operands)


def repeated(value: ir.Value, block: ir.Block, known: dict[ir.Value, ir.Value]) -> ir.Value:
    """`value`, a value of `block`, computed again at the insertion point; `known` has what stands for arguments of the block."""
    if value in known:
        return known[value]
    if isinstance(value.owner, ir.Block) or value.owner.operation.block != block:
        return value
    op = value.owner.operation
    operands = [repeated(operand, block, known) for operand in op.operands]
    copy = op.clone()
    for number_, operand in enumerate(operands):
        copy.operation.operands[number_] = operand
    known.update(zip(op.results, copy.operation.results, strict=True))
    return known[value]


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
