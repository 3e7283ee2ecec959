"""Computes what needs the first of two products only while the second one is in flight."""

from collections.abc import Hashable
from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker, walk


@dataclass(frozen=True)
class SplitMaps(Pass):
    """In loops, takes a part out of a map that reads the fragments of two products: the number that all of the map needs of the first one
    and that does not depend on the second, such as the exponential of a score. A map of its own makes a tile of these numbers before the
    wait for the second product; the first map reads it. Where an `scf.if` holds two such maps, they share the part, if it is the same.

    `warp-delay-waits` then lets the second product fly meanwhile. A kernel stays as it is, with the reason in `warp.refused`, where no map
    reads two products, or what it needs of the first is the product itself.
    """

    name = "warp-split-maps"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _split)
        return True


def _split(kernel: ir.Operation) -> None:
    blocks = [loop.regions[0].blocks[0] for loop in find_all(kernel, "scf.for")]
    tops = [view.operation for block in blocks for view in block.operations if view.operation.name in ("warp.map", "scf.if")]
    change_parts(tops, _change, "no map reads the fragments of two products")


def _change(top: ir.Operation) -> None:
    """Splits a map of a loop, or those in the branches of a condition. Raises Refused, with nothing changed."""
    inner = [top] if top.name == "warp.map" else [op for op in walk(top) if op.name == "warp.map"]
    first, second = _products(inner, top)
    found = [_needed(map_, first.results[0], second.results[0]) for map_ in inner]
    if len({_key(value, map_) for value, map_ in zip(found, inner, strict=True)}) > 1:
        raise Refused("branches need different numbers of the first product")
    tile = _early(found[0], inner[0], first, second)
    for value, map_ in zip(found, inner, strict=True):
        op = value.owner.operation  # type: ignore[union-attr]
        with op.location, ir.InsertionPoint(op):
            places = list(map_.regions[0].blocks[0].arguments)
            read = ir.Operation.create("tensor.extract", results=[value.type], operands=[tile, *places]).result
        value.replace_all_uses_with(read)


def _products(maps: list[ir.Operation], top: ir.Operation) -> tuple[ir.Operation, ir.Operation]:
    """The waits for the two products that all maps read, in order. Raises Refused where there are others."""
    read = [{op.operands[0] for op in walk(map_) if op.name == "tensor.extract"} for map_ in maps]
    both = set.intersection(*read) if read else set()
    waits = [maker(value, "warp.mma_wait") for value in both]
    waits = [wait for wait in waits if wait is not None and wait.block == top.block]
    if len(waits) != 2:
        raise Refused("no map reads the fragments of two products")
    ops = [view.operation for view in top.block.operations]
    first, second = sorted(waits, key=ops.index)
    if any(ir.IntegerAttr(wait.attributes["pending"]).value for wait in (first, second)):
        raise Refused("products are in flight together already")
    return first, second


def _depending(map_: ir.Operation, *fragments: ir.Value) -> set[ir.Value]:
    """The values of a map's region that depend on one of some fragments."""
    found: set[ir.Value] = set()
    for op in walk(map_):
        if (op.name == "tensor.extract" and op.operands[0] in fragments) or any(v in found for v in op.operands):
            found |= set(op.results)
    return found


def _needed(map_: ir.Operation, first: ir.Value, second: ir.Value) -> ir.Value:
    """The last number through which all that depends on the first product gets it, and which the second one has no part in.

    Raises Refused where that is the product's element itself, or none is an f32.
    """
    late = _depending(map_, second)
    ops = [view.operation for view in map_.regions[0].blocks[0].operations]
    for op in reversed(ops[:-1]):
        value = op.results[0]
        if value in late or op.name == "tensor.extract" or str(value.type) != "f32" or value not in _depending(map_, first):
            continue
        if not _reaches(map_, first, value):
            return value
    raise Refused("what a map needs of the first product is the product itself")


def _reaches(map_: ir.Operation, first: ir.Value, without: ir.Value) -> bool:
    """Whether a map's results depend on a product also in other ways than through one number."""
    found: set[ir.Value] = set()
    for op in walk(map_):
        if (op.name == "tensor.extract" and op.operands[0] == first) or any(v in found for v in op.operands):
            if op.name == "warp.yield":
                return True
            found |= set(op.results) - {without}
    return False


def _key(value: ir.Value, map_: ir.Operation) -> Hashable:
    """What a number of a map's region is, so that equal numbers of two maps have the same."""
    if isinstance(value.owner, ir.Block):
        argument = ir.BlockArgument(value)
        return ("place", argument.arg_number) if argument.owner == map_.regions[0].blocks[0] else value
    op = value.owner.operation
    if op.block != map_.regions[0].blocks[0]:
        return value
    attributes = tuple((name, str(op.attributes[name])) for name in op.attributes)
    return (op.name, attributes, *(_key(operand, map_) for operand in op.operands))


def _early(value: ir.Value, map_: ir.Operation, first: ir.Operation, second: ir.Operation) -> ir.Value:
    """A map before the wait for the second product: a tile of a number of a map. Raises Refused where it cannot stand there."""
    block, needed = map_.regions[0].blocks[0], _slice(value, map_)
    ops = [view.operation for view in second.block.operations]
    for op in needed:
        for operand in op.operands:
            made = None if isinstance(operand.owner, ir.Block) else operand.owner.operation
            if made is not None and made.block == second.block and ops.index(made) > ops.index(second):
                raise Refused("a map needs numbers that are made behind the products")
    type_ = ir.RankedTensorType(first.results[0].type)

    def body(*places: ir.Value) -> list[ir.Value]:
        known: dict[ir.Value, ir.Value] = dict(zip(block.arguments, places, strict=True))
        for op in needed:
            clone_op(op, known)
        return [known[value]]

    with map_.location, ir.InsertionPoint(second):
        return build.map_(list(type_.shape), [type_], [""], body)[0]


def _slice(value: ir.Value, map_: ir.Operation) -> list[ir.Operation]:
    """The ops of a map's region that make a value, in order."""
    needed: set[ir.Value] = {value}
    found: list[ir.Operation] = []
    for op in reversed([view.operation for view in map_.regions[0].blocks[0].operations]):
        if any(result in needed for result in op.results):
            found.append(op)
            needed |= set(op.operands)
    return found[::-1]
