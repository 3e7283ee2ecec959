"""The CPU schedule of kernels whose tiles all have static shapes, as linear attention has: tiles lie row by row in per-thread buffers.

Vectors lie along columns. Rows and columns are padded to whole vectors, so that products and transpositions need no tails. `zeros` on a
product says on which side of the diagonal its first factor is zero, `unread` on which nothing depends on its result, `layout` on a load
that its tile can be read in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from attn_mlir.backends.cpu.lowering.kernel import score_type
from attn_mlir.backends.cpu.lowering.row_tiles import elements_of
from attn_mlir.backends.cpu.passes.triangles import unread_of, zeros_of
from attn_mlir.backends.cpu.target import host
from attn_mlir.dialects.numbers import flag
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import clone_op, find_all, maker, walk

_ACCUMULATE = ("tile.dot_add", "tile.dot_rescale")


def is_row_major(kernel: ir.Operation) -> bool:
    """Whether a kernel is scheduled here: a chunk scan; sums that multiply no tiles, in loops or of what maps read in memory; or
    maps of elements that are read in memory, and added to nothing.
    """
    sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
    grid = ir.StringAttr(sizes["grid"]).value if "grid" in sizes else ""
    products = find_all(kernel, "tile.dot", *_ACCUMULATE, "tile.accumulate", "tile.scatter_add")
    sums = find_all(kernel, "scf.for", "tile.cumsum") or [
        op for map_ in find_all(kernel, "tile.map") for op in find_all(map_, "memref.load")
    ]
    return grid == "chunks" or (grid in ("rows", "elements") and not products and bool(sums))


def schedule_rows(kernel: ir.Operation) -> bool:
    """Annotates a tiled kernel; returns False after an error."""
    lanes = host().vector_bytes // (8 if isinstance(score_type(kernel), ir.F64Type) else 4)
    _separate_fills(kernel)
    buffers = _Buffers(lanes, score_type(kernel))
    if not _place(kernel.regions[0].blocks[0], buffers, {}):
        return False
    for op in find_all(kernel, "tile.dot", *_ACCUMULATE):
        side = zeros_of(list(op.operands)[-2])
        if side is not None and not flag(op, "transpose_a"):
            op.attributes["zeros"] = ir.StringAttr.get(side, op.context)
    for op in find_all(kernel, "tile.dot"):
        side = unread_of(op.results[0])
        if side is not None:
            op.attributes["unread"] = ir.StringAttr.get(side, op.context)
    transposing = [op for op in find_all(kernel, "tile.dot", *_ACCUMULATE) if flag(op, "transpose_b")]
    made = [op.results[0] for op in transposing if op.name == "tile.dot"]
    turned = [value for op in transposing for value in list(op.operands)[-2:]]
    scratch = [max((elements_of(tile.type, buffers.lanes, buffers.score) for tile in tiles), default=0) for tiles in (made, turned)]
    i64 = ir.IntegerType.get_signless(64, kernel.context)
    sizes = [ir.IntegerAttr.get(i64, size) for size in [*buffers.sizes, *scratch]]
    kernel.attributes["tile.buffers"] = ir.ArrayAttr.get(sizes, kernel.context)
    kernel.attributes["tile.layout"] = ir.StringAttr.get("row_major", kernel.context)
    kernel.attributes["tile.target"] = ir.StringAttr.get("cpu", kernel.context)
    return True


def _separate_fills(kernel: ir.Operation) -> None:
    """A loop changes the tile that it starts from, so a filled one that has further uses, or lies outside, is made once more for it."""
    for loop in find_all(kernel, "scf.for"):
        for number, initial in list(enumerate(loop.operands))[3:]:
            op = maker(initial, "tile.fill") if _is_tile(initial) else None
            if op is not None and (len(list(initial.uses)) > 1 or op.block != loop.block):
                with ir.InsertionPoint(loop), op.location:
                    loop.operands[number] = clone_op(op, {}).results[0]


@dataclass
class _Buffers:
    """Numbers buffers; one that nothing reads any more serves again."""

    lanes: int
    score: ir.Type
    sizes: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)

    def take(self, type_: ir.Type) -> int:
        elements = elements_of(type_, self.lanes, self.score)
        fitting = [number for number in self.free if self.sizes[number] >= elements]
        if fitting:
            number = min(fitting, key=lambda n: self.sizes[n])
            self.free.remove(number)
            return number
        self.sizes.append(elements)
        return len(self.sizes) - 1


def _place(block: ir.Block, buffers: _Buffers, homes: dict[ir.Value, int]) -> bool:
    """Gives the tiles of a block buffers; `homes` has those from outside."""
    operations = [view.operation for view in block.operations]
    shared = _shared(operations)
    last: dict[ir.Value, int] = {}
    for number, op in enumerate(operations):
        for value in [value for each in [op, *walk(op)] for value in each.operands if _is_tile(value)]:
            last[_root(shared, value)] = number
    taken: dict[int, ir.Value] = {}
    for number, op in enumerate(operations):
        if op.name in ("scf.for", "scf.if"):
            for body in [region.blocks[0] for region in op.regions if len(region.blocks)]:
                homes.update(
                    (argument, homes[_root(shared, initial)])
                    for argument, initial in zip(list(body.arguments)[1:], list(op.operands)[3:], strict=False)
                    if _is_tile(argument)
                )
                if not _place(body, buffers, homes):
                    return False
        if op.name in _ACCUMULATE and last[_root(shared, op.operands[0])] > number and _reads(operations[number + 1 :], op.operands[0]):
            op.location.emit_error("tile-schedule: an accumulator is updated in place, but its old value is used again")
            return False
        numbers = []
        for result in [result for result in op.results if _is_tile(result)]:
            root = _root(shared, result)
            if root not in homes:
                homes[root] = buffers.take(result.type)
                taken[homes[root]] = root
            homes[result] = homes[root]
            numbers.append(homes[result])
        if numbers:
            _set_buffers(op, numbers)
        if op.name == "tile.load" and _in_place(op.results[0], buffers):
            op.attributes["layout"] = ir.ArrayAttr.get([ir.StringAttr.get("memory", op.context)], op.context)
        for home in [home for home, root in taken.items() if last.get(root, number) <= number]:
            buffers.free.append(home)
            del taken[home]
    return True


def _in_place(tile: ir.Value, buffers: _Buffers) -> bool:
    """Whether a loaded tile can be read where it is: whole vectors of scores that nothing changes."""
    type_ = ir.RankedTensorType(tile.type)
    if type_.rank != 2 or type_.element_type != buffers.score or any(size % buffers.lanes for size in type_.shape):
        return False
    users = [(use.owner.operation, use.operand_number) for use in tile.uses]
    return all(op.name in ("tensor.extract", "tile.dot") or (op.name in _ACCUMULATE and number > 0) for op, number in users)


def _shared(operations: Sequence[ir.Operation]) -> dict[ir.Value, ir.Value]:
    """Which tiles are an older one changed in place: sums, what loops carry, and maps of a carried tile element by element."""
    shared: dict[ir.Value, ir.Value] = {}
    for op in operations:
        if op.name in _ACCUMULATE:
            shared[op.results[0]] = op.operands[0]
        elif op.name == "scf.for":
            shared.update((r, i) for r, i in zip(op.results, list(op.operands)[3:], strict=True) if _is_tile(r))
    yielded = list(operations[-1].operands)
    loop = operations[-1].parent
    if loop is None or loop.name != "scf.for":
        return shared
    arguments = list(loop.regions[0].blocks[0].arguments)[1:]
    made = [(a, v) for a, v in zip(arguments, yielded, strict=True) if _is_tile(v) and not isinstance(v.owner, ir.Block)]
    return shared | {value: argument for argument, value in made if _maps(value.owner.operation, argument, operations)}


def _maps(op: ir.Operation, argument: ir.Value, operations: Sequence[ir.Operation]) -> bool:
    """Whether a map reads `argument` at the element that it computes, and nothing else reads it then or later."""
    if op.name != "tile.map" or op not in operations or len(op.results) != 1:
        return False
    indices = list(op.regions[0].blocks[0].arguments)
    own = [each for each in walk(op) if argument in list(each.operands)]
    return all(list(each.operands)[1:] == indices for each in own) and not _reads(operations[operations.index(op) + 1 : -1], argument)


def _reads(operations: Sequence[ir.Operation], value: ir.Value) -> bool:
    return any(value in list(each.operands) for op in operations for each in [op, *walk(op)])


def _root(shared: dict[ir.Value, ir.Value], value: ir.Value) -> ir.Value:
    while value in shared:
        value = shared[value]
    return value


def _is_tile(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def _set_buffers(op: ir.Operation, numbers: list[int]) -> None:
    i64 = ir.IntegerType.get_signless(64, op.context)
    op.attributes["buffer"] = ir.ArrayAttr.get([ir.IntegerAttr.get(i64, number) for number in numbers], op.context)
