"""Facts of maps and loops of chunk scans: their sizes, and what loops can load early."""

from collections.abc import Container

from attn_mlir.backends.gpu.structure import body, is_row, operations, yielded
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import maker, walk

_PIECE = 4
"""Numbers of f32 in 16 bytes, which copies of rows take at least."""
_QUOTIENTS = ("arith.floordivsi", "arith.ceildivsi", "arith.divsi", "arith.remsi")
_SAME = ("arith.constant", "arith.addi", "arith.subi", "arith.muli", "arith.minsi", "arith.maxsi", "memref.dim", *_QUOTIENTS)
"""Ops on indices that give the same for the same operands."""


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


def sums_memory(op: ir.Operation) -> bool:
    """Whether a map of two dimensions only adds up rows, of numbers that it reads in memory and of others for each row."""
    sums = sums_of(op)
    tiles = [read for read in walk(op) if read.name == "tensor.extract" and not is_row(read.operands[0].type)]
    return bool(sums) and len(sums) == len(list(op.results)) and not tiles


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


def brought_rows(loop: ir.Operation, tensors: Container[ir.Value]) -> dict[ir.Operation, ir.Operation]:
    """The maps of one dimension that only read numbers of f32 of these tensors, one after another, with the reads."""
    found: dict[ir.Operation, ir.Operation] = {}
    for op in operations(body(loop)):
        if op.name != "tile.map" or len(list(op.operands)) != 1 or len(list(op.results)) != 1 or not is_row(op.results[0].type):
            continue
        (made,), block = yielded(body(op)), body(op)
        read = maker(made, "memref.load")
        if read is None or read.operands[0] not in tensors or not isinstance(made.type, ir.F32Type) or extents(op)[0] % _PIECE:
            continue
        *others, last = list(read.operands)[1:]
        sum_ = maker(last, "arith.addi")
        alike = sum_ is not None and sum_.operands[1] == block.arguments[0] and follows(sum_.operands[0], loop)
        if alike and all(follows(index, loop) for index in others):
            found[op] = read
    return found


def quotients(loop: ir.Operation) -> list[ir.Value]:
    """The divisions of indices before a loop, in it, and in its maps, that are the same for all of its turns."""
    inside = [loop, *walk(loop)]
    blocks = [block for op in inside for region in op.regions for block in region.blocks]

    def varies(value: ir.Value) -> bool:
        if isinstance(value.owner, ir.Block):
            return value.owner in blocks
        op = value.owner.operation
        return op.block in blocks and (op.name not in _SAME or any(map(varies, op.operands)))

    every = [*operations(loop.block), *inside]
    return [op.results[0] for op in every if op.name in _QUOTIENTS and not varies(op.results[0])]


def cut_in_two(loop: ir.Operation) -> dict[ir.Operation, ir.Operation]:
    """The maps of a loop that only cut a loaded tile of f32 into what rounding makes of it and the residual, with the loads."""
    found: dict[ir.Operation, ir.Operation] = {}
    for op in operations(body(loop)):
        results = list(op.results)
        if op.name != "tile.map" or len(results) != 2 or any(is_row(each.type) or element_of(each) != "bf16" for each in results):
            continue
        reads, (whole, left) = own_reads(op), yielded(body(op))
        rounded = maker(whole, "arith.truncf")
        if len(reads) != 1 or rounded is None or rounded.operands[0] != reads[0].results[0] or residual_of(left) != reads[0].results[0]:
            continue
        tile = reads[0].operands[0]
        load = None if isinstance(tile.owner, ir.Block) else tile.owner.operation
        if load is not None and load.name == "tile.load" and len(list(tile.uses)) == 1 and load.block == op.block:
            found[op] = load
    return found


def residual_of(value: ir.Value) -> ir.Value | None:
    """x, where a value is its residual, x - wide(round(x)), rounded alike."""
    rounded = maker(value, "arith.truncf")
    difference = None if rounded is None else maker(rounded.operands[0], "arith.subf")
    wide = None if difference is None else maker(difference.operands[1], "arith.extf")
    narrow = None if wide is None else maker(wide.operands[0], "arith.truncf")
    if difference is None or narrow is None or narrow.operands[0] != difference.operands[0]:
        return None
    return narrow.operands[0] if narrow.results[0].type == value.type else None
