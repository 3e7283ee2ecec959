"""What chunk scans read from memory for each row: once, and ahead of its use."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.scalars import dependence, frontier
from attn_mlir.backends.gpu.structure import constant
from attn_mlir.dialects.tile import build
from attn_mlir.mlir import ir, tensor
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import block_of, clone_op, find_all, walk

_ROW = frozenset({0})


@dataclass(frozen=True)
class RowValues(Pass):
    """In kernels with the grid "chunks": row values that a map of two dimensions reads from memory become a map over rows.

    The emitter loads those of the next chunk while the current one is multiplied. Elements of captured tensors that are the same in all
    iterations of the loop are read before it.
    """

    name = "amd-row-values"

    def run(self, module: ir.Operation) -> bool:
        for function in find_all(module, "func.func"):
            if "tile.kernel" not in function.attributes or "grid" not in (sizes := ir.DictAttr(function.attributes["tile.kernel"])):
                continue
            if ir.StringAttr(sizes["grid"]).value != "chunks":
                continue
            for loop in [view.operation for view in block_of(function).operations if view.operation.name == "scf.for"]:
                _hoist(loop)
            for map_ in find_all(function, "tile.map"):
                if len(block_of(map_).arguments) == 2:
                    _split(map_)
        return True


def _hoist(loop: ir.Operation) -> None:
    """Moves reads of arguments whose places are known before a loop there."""
    inside = {result for op in walk(loop) for result in op.results}
    inside |= {argument for op in [loop, *walk(loop)] for region in op.regions for block in region.blocks for argument in block.arguments}
    for load in find_all(loop, "memref.load"):
        if not any(operand in inside for operand in load.operands):
            load.move_before(loop)


def _split(map_: ir.Operation) -> None:
    block = block_of(map_)
    values = [v for v in frontier(block, dependence(block), _ROW) if isinstance(v.type, ir.F32Type) and _is_read(v, block)]
    if not values:
        return
    extent = map_.operands[0]
    rows = constant(extent)
    if rows is None:
        return
    with map_.location, ir.InsertionPoint(map_):
        type_ = ir.RankedTensorType.get([int(rows)], values[0].type)

        def body(i: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            known = {block.arguments[0]: i}
            return [_clone(value, block, known) for value in values], []

        made, _ = build.map_([extent], [type_] * len(values), [], [], body)
    for value, row in zip(values, made, strict=True):
        with value.owner.location, ir.InsertionPoint.at_block_begin(block):
            read = tensor.ExtractOp(row, [block.arguments[0]]).result
        value.replace_all_uses_with(read)


def _is_read(value: ir.Value, block: ir.Block) -> bool:
    """Whether a value is made of elements of memory, and of no tile."""
    seen, pending, loads = set[ir.Value](), [value], 0
    while pending:
        current = pending.pop()
        if current in seen or isinstance(current.owner, ir.Block) or current.owner.operation.block != block:
            continue
        seen.add(current)
        if current.owner.operation.name == "tensor.extract":
            return False
        loads += current.owner.operation.name == "memref.load"
        pending += list(current.owner.operation.operands)
    return loads > 0


def _clone(value: ir.Value, block: ir.Block, known: dict[ir.Value, ir.Value]) -> ir.Value:
    """The value in another map, with what it is made of."""
    if value in known or isinstance(value.owner, ir.Block) or value.owner.operation.block != block:
        return known.get(value, value)
    for operand in value.owner.operation.operands:
        known[operand] = _clone(operand, block, known)
    return clone_op(value.owner.operation, known).results[0]
