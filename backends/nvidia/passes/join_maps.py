"""Maps of kernels that prepare chunks, joined where one exponential serves both."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import body, operations
from attn_mlir.backends.nvidia.passes.prepare_chunks import ONCE
from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker, walk

_EXP = "math.exp2"


@dataclass(frozen=True)
class JoinMaps(Pass):
    """Joins two maps of a loop of one iteration (`nvidia-prepare-chunks`) that make a tile each, element by element, of the same size,
    and have an exponential in common, where the later one reads nothing that is made after the earlier one.

    Where channels have decays, the residual of what enters the state needs all that its rounded part does; rows of q and of the erase key
    leave by the same decays. A joined map is not joined again: threads would hold more rounded elements than they have registers for.
    """

    name = "nvidia-join-maps"
    after = "cse"

    def run(self, module: ir.Operation) -> bool:
        for loop in find_all(module, "scf.for"):
            if ONCE in loop.attributes:
                _join(loop)
        return True


def _join(loop: ir.Operation) -> None:
    left = [op for op in operations(body(loop)) if op.name == "tile.map" and len(list(op.results)) == 1 and not _reductions(op)]
    left = [op for op in left if len(list(op.operands)) == 2]
    while left:
        first = left.pop(0)
        found = next((each for each in left if _fits(first, each)), None)
        if found is not None:
            left.remove(found)
            _build(first, found)


def _reductions(op: ir.Operation) -> int:
    return len(list(ir.ArrayAttr(op.attributes["reductions"])))


def _fits(first: ir.Operation, second: ir.Operation) -> bool:
    """Whether the second map can be made where the first is, and shares an exponential with it."""
    types = [ir.RankedTensorType(map_.results[0].type).element_type for map_ in (first, second)]
    rounded = [maker(operations(body(map_))[-1].operands[0], "arith.truncf") is not None for map_ in (first, second)]
    wide = all(isinstance(type_, ir.F32Type) or made for type_, made in zip(types, rounded, strict=True))
    alike = list(first.operands) == list(second.operands) and (types[0] == types[1] or wide)
    if not alike or not _exponentials(first) & _exponentials(second):
        return False
    steps = operations(first.block)
    after = set(steps[steps.index(first) :])
    return not any(_maker(value) in after for op in walk(second) for value in op.operands)


def _maker(value: ir.Value) -> ir.Operation | None:
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _exponentials(map_: ir.Operation) -> set[tuple[object, ...]]:
    """What its exponentials are of."""
    return {_key(op.results[0], body(map_)) for op in operations(body(map_)) if op.name == _EXP}


def _key(value: ir.Value, block: ir.Block) -> tuple[object, ...]:
    """Equal for equal arithmetic in maps: by ops, their attributes, and what they take from outside."""
    op = _maker(value)
    if op is None:
        arguments = list(block.arguments)
        return ("argument", arguments.index(value)) if value in arguments else ("outer", value)
    if op.block != block:
        return ("outer", value)
    attributes = tuple(sorted(f"{name} {op.attributes[name]}" for name in op.attributes))
    return (op.name, attributes, str(value.type), *(_key(operand, block) for operand in op.operands))


def _build(first: ir.Operation, second: ir.Operation) -> None:
    """Both, where the first one is; a map makes tiles of one type, so that what only one of them rounds is rounded after it."""
    results = [first.results[0], second.results[0]]
    mixed = results[0].type != results[1].type
    with first.location, ir.InsertionPoint(first):

        def both(*indices: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            made: list[ir.Value] = []
            for map_ in (first, second):
                mapping: dict[ir.Value, ir.Value] = dict(zip(body(map_).arguments, indices, strict=True))
                *steps, end = operations(body(map_))
                for op in steps:
                    clone_op(op, mapping)
                rounded = maker(end.operands[0], "arith.truncf") if mixed else None
                value = end.operands[0] if rounded is None else rounded.operands[0]
                made.append(mapping.get(value, value))
            return made, []

        whole = [_in_f32(value.type) if mixed else value.type for value in results]
        tiles, _ = build.map_(list(first.operands), whole, [], [], both)
        tiles = [_rounded(first, tile, value.type) for tile, value in zip(tiles, results, strict=True)]
    for old, new in zip(results, tiles, strict=True):
        old.replace_all_uses_with(new)
    second.erase()
    first.erase()


def _in_f32(type_: ir.Type) -> ir.Type:
    return ir.RankedTensorType.get(ir.RankedTensorType(type_).shape, ir.F32Type.get())


def _rounded(map_: ir.Operation, tile: ir.Value, type_: ir.Type) -> ir.Value:
    """A tile as one of this type."""
    if tile.type == type_:
        return tile

    def one(*indices: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
        return [arith.TruncFOp(ir.RankedTensorType(type_).element_type, tensor.ExtractOp(tile, list(indices)).result).result], []

    return build.map_(list(map_.operands), [type_], [], [], one)[0][0]
