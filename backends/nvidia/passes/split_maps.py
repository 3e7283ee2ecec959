"""Computes what needs the first of two products only while the second one is in flight."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.maps import is_free, number_in
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

    Of a map none of whose results needs both products, the early one makes whole results, rounded as they are. What the early map needs
    of numbers that are made between the products or behind them, and of tensors that the kernel only reads, is made before the wait for
    the first product then.

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
    if top.name == "warp.map" and (early := _results_of(top, first.results[0], second.results[0])):
        _separate(top, early, first, second)
        return
    found = [_needed(map_, first.results[0], second.results[0]) for map_ in inner]
    if len({number_in(value, map_.regions[0].blocks[0]) for value, map_ in zip(found, inner, strict=True)}) > 1:
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


def _results_of(map_: ir.Operation, first: ir.Value, second: ir.Value) -> list[int]:
    """Which results of a map need the first product, where each needs one of both; none where some need both, or all need the first."""
    of_first, of_second = _depending(map_, first), _depending(map_, second)
    yielded = list(_end(map_).operands)
    early = [n for n, value in enumerate(yielded) if value in of_first]
    apart = not any(value in of_first and value in of_second for value in yielded) and len(early) < len(yielded)
    return early if apart and not any(ir.StringAttr(kind).value for kind in ir.ArrayAttr(map_.attributes["reductions"])) else []


def _separate(map_: ir.Operation, early: list[int], first: ir.Operation, second: ir.Operation) -> None:
    """Makes two maps of one: of some results before the wait for the second product, and of the others. Raises Refused, as `_lift`."""
    yielded, results = list(_end(map_).operands), list(map_.results)
    late = [n for n in range(len(results)) if n not in early]
    for numbers, place in ((early, second), (late, map_)):
        values = [yielded[n] for n in numbers]
        if place == second:
            _lift(_slice(values, map_), first, second)
        with map_.location, ir.InsertionPoint(place):
            made = _map_of(values, [results[n].type for n in numbers], map_)
        for n, value in zip(numbers, made, strict=True):
            results[n].replace_all_uses_with(value)
    map_.erase()


def _early(value: ir.Value, map_: ir.Operation, first: ir.Operation, second: ir.Operation) -> ir.Value:
    """A map before the wait for the second product: a tile of a number of a map. Raises Refused where it cannot stand there."""
    _lift(_slice([value], map_), first, second)
    with map_.location, ir.InsertionPoint(second):
        return _map_of([value], [ir.RankedTensorType(first.results[0].type)], map_)[0]


def _map_of(values: list[ir.Value], types: list[ir.Type], map_: ir.Operation) -> list[ir.Value]:
    """A map of some numbers of another one, at the current insertion point."""
    block, needed = map_.regions[0].blocks[0], _slice(values, map_)

    def body(*places: ir.Value) -> list[ir.Value]:
        known: dict[ir.Value, ir.Value] = dict(zip(block.arguments, places, strict=True))
        for op in needed:
            clone_op(op, known)
        return [known[value] for value in values]

    return build.map_(list(map_.attributes["shape"]), types, [""] * len(types), body)


def _lift(needed: list[ir.Operation], first: ir.Operation, second: ir.Operation) -> None:
    """Moves what some ops of a map need, and is made behind the second product, before the wait for the first one.

    Raises Refused, with nothing changed, where something else than numbers, and maps of them, is in between.
    """
    ops = [view.operation for view in second.block.operations]
    begin, at = ops.index(first), ops.index(second)
    makers = [made for op in needed for value in op.operands if (made := maker(value)) is not None and made.block == second.block]
    if all(ops.index(made) < at for made in makers):
        return
    moved: set[ir.Operation] = set()
    while makers:
        made = makers.pop()
        if made in moved or made == first or ops.index(made) < begin:
            continue
        if not all(is_free(op) for op in walk(made)) or not is_free(made):
            raise Refused("a map needs numbers that are made behind the products")
        moved.add(made)
        values = [value for op in (made, *walk(made)) for value in op.operands]
        makers += [each for value in values if (each := maker(value)) is not None and each.block == second.block]
    if first in {each for op in moved for value in op.operands if (each := maker(value)) is not None}:
        raise Refused("a map needs numbers that are made behind the products")
    for op in [each for each in ops if each in moved]:
        op.move_before(first)


def _end(map_: ir.Operation) -> ir.Operation:
    """The `warp.yield` of a map."""
    return [view.operation for view in map_.regions[0].blocks[0].operations][-1]


def _slice(values: list[ir.Value], map_: ir.Operation) -> list[ir.Operation]:
    """The ops of a map's region that make some values, in order."""
    needed: set[ir.Value] = set(values)
    found: list[ir.Operation] = []
    for op in reversed([view.operation for view in map_.regions[0].blocks[0].operations]):
        if any(result in needed for result in op.results):
            found.append(op)
            needed |= set(op.operands)
    return found[::-1]
