"""Facts of maps and loops of chunk scans: their sizes, what loops can load early, and which are short."""

from attn_mlir.backends.gpu.structure import body, constant, is_row, operations
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_TURNS = 8
"""Of a short loop."""


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """The sizes of a tile."""
    return tuple(ir.RankedTensorType(value.type).shape)


def element_of(value: ir.Value) -> str:
    """The name of its element's type."""
    return str(ir.RankedTensorType(value.type).element_type)


def own_reads(op: ir.Operation) -> list[ir.Operation]:
    """The reads of a map of two dimensions at its own place."""
    indices = list(body(op).arguments)
    return [read for read in operations(body(op)) if read.name == "tensor.extract" and list(read.operands)[1:] == indices]


def extents(op: ir.Operation) -> tuple[int, ...]:
    """The sizes of a map."""
    makers = [None if isinstance(value.owner, ir.Block) else value.owner.operation for value in op.operands]
    if any(maker is None or maker.name != "arith.constant" for maker in makers):
        raise UnsupportedError(f"scans: maps have static sizes ({op.location})")
    return tuple(ir.IntegerAttr(maker.attributes["value"]).value for maker in makers if maker is not None)


def sums_of(op: ir.Operation) -> list[ir.Value]:
    """What a map adds up along rows."""
    count = len(list(ir.ArrayAttr(op.attributes["reductions"])))
    results = list(op.results)
    return results[len(results) - count :] if count else []


def loads_ahead(loop: ir.Operation) -> list[list[ir.Operation]]:
    """The loads of a loop at places that follow from its position alone, those of the same tile together."""
    found: list[list[ir.Operation]] = []
    for load in operations(body(loop)):
        if load.name != "tile.load" or not all(follows(operand, loop) for operand in list(load.operands)[1:]):
            continue
        if isinstance(load.operands[0].owner, ir.OpView | ir.Operation) and load.operands[0].owner.operation.block == load.block:
            continue
        for group in found:
            if list(group[0].operands) == list(load.operands):
                group.append(load)
                break
        else:
            found.append([load])
    return found


def follows(value: ir.Value, loop: ir.Operation) -> bool:
    """Whether an index is arithmetic on a loop's position and on what is known before it."""
    inner = body(loop)
    if isinstance(value.owner, ir.Block):
        return value.owner != inner or value == inner.arguments[0]
    op = value.owner.operation
    return op.block != inner or (op.name.startswith("arith.") and all(follows(operand, loop) for operand in op.operands))


def follows_rows(indices: list[ir.Value], op: ir.Operation, loop: ir.Operation) -> bool:
    """Whether indices in a map are arithmetic on its row, a loop's position, and what is known before the loop."""
    block = body(op)
    for index in indices:
        if isinstance(index.owner, ir.Block):
            if index.owner == block and index != block.arguments[0]:
                return False
            if index.owner != block and not follows(index, loop):
                return False
            continue
        maker = index.owner.operation
        if maker.block == block:
            if not maker.name.startswith("arith.") or not follows_rows(list(maker.operands), op, loop):
                return False
        elif not follows(index, loop):
            return False
    return True


def few_turns(op: ir.Operation) -> int:
    """How many turns a short loop has that adds up rows, and puts the sums into the one tile that it carries; 0 for other ops."""
    if op.name != "scf.for" or len(list(op.results)) != 1 or is_row(op.results[0].type):
        return 0
    first, *others = operations(body(op))
    bounds = [constant(value) for value in list(op.operands)[:3]]
    if (
        bounds[0] != 0
        or bounds[2] != 1
        or not 0 < int(bounds[1] or 0) <= _TURNS
        or [other.name for other in others] != ["tile.map", "scf.yield"]
    ):
        return 0
    sums = sums_of(first) if first.name == "tile.map" else []
    put = others[0]
    reads = [read for read in operations(body(put)) if read.name == "tensor.extract"]
    alone = len(sums) == 1 and len(list(first.results)) == 1 and len(list(put.results)) == 1 and not sums_of(put)
    known = [sums[0], body(op).arguments[1]] if alone else []
    return int(bounds[1] or 0) if alone and all(read.operands[0] in known for read in reads) else 0
