"""Loops and branches: tiles are values in the IR, and buffers that change in a TileLang program."""

from collections.abc import Callable, Sequence

from attn_mlir.backends.nvidia.tilelang.context import Context, constant
from attn_mlir.backends.nvidia.tilelang.expressions import strip
from attn_mlir.backends.nvidia.tilelang.tiles import Tile, padded
from attn_mlir.backends.nvidia.tilelang.memory import memory_type
from attn_mlir.mlir import ir

PrintBlock = Callable[[ir.Block], None]


def print_for(context: Context, op: ir.Operation, print_block: PrintBlock) -> None:
    """`scf.for`: what it carries stays in the same tiles throughout."""
    begin, end, step, *initial = op.operands
    body = op.regions[0].blocks[0]
    variable, *arguments = body.arguments
    tiles = [_own(context, value, op) for value in initial]
    for argument, result, tile in zip(arguments, op.results, tiles, strict=True):
        context.where[argument] = context.where[result] = tile
    name = context.names.new(loop_name(op))
    bounds = [strip(context.text(begin)), strip(context.text(end))]
    size = constant(step)
    if size != 1:
        bounds.append(str(size))
    elif bounds[0] == "0":
        bounds = bounds[1:]
    context.line(f"for {name} in T.serial({', '.join(bounds)}):")
    with context.block():
        context.scalars.bind(variable, name)
        print_into(context, body, tiles, print_block)


def print_if(context: Context, op: ir.Operation, print_block: PrintBlock) -> None:
    """`scf.if`: both branches leave their results in the same tiles."""
    tiles = [context.homes.get(result) or _new(context, result) for result in op.results]
    context.where.update(zip(op.results, tiles, strict=True))
    condition = strip(context.text(op.operands[0]))
    for keyword, region in zip((f"if {condition}:", "else:"), op.regions, strict=True):
        if not len(region.blocks):
            continue
        mark = len(context.lines)
        context.line(keyword)
        with context.block():
            print_into(context, region.blocks[0], tiles, print_block)
        if len(context.lines) == mark + 1:
            context.lines.pop()
            if keyword != "else:":
                context.line(f"if {condition}:")
                context.line("pass", 1)


def print_into(context: Context, block: ir.Block, tiles: Sequence[Tile], print_block: PrintBlock) -> None:
    """Prints a block so that what it yields ends in the given tiles."""
    yielded = list(list(block.operations)[-1].operation.operands)
    for number, (value, tile) in enumerate(zip(yielded, tiles, strict=True)):
        if value not in yielded[:number] and _may_overwrite(context, block, value, tile):
            context.homes[value] = tile
    print_block(block)
    moves = [(context.tile(value), tile) for value, tile in zip(yielded, tiles, strict=True)]
    moves = [(source, target) for source, target in moves if source != target]
    overwritten = [target for _, target in moves]
    safe = []
    for source, target in moves:
        if source in overwritten:
            copy = context.tiles.new(f"old_{source.name}", source.scope, source.shape, source.dtype)
            context.line(f"T.copy({source.name}, {copy.name})")
            source = copy
        safe.append((source, target))
    for source, target in safe:
        context.line(f"T.copy({source.name}, {target.name})")


def _own(context: Context, value: ir.Value, op: ir.Operation) -> Tile:
    """The tile of an initial value if only this loop needs it, else a copy."""
    tile = context.tile(value)
    block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
    if len(list(value.uses)) == 1 and block == op.block and tile.scope == "fragment":
        return tile
    copy = context.tiles.new(tile.name, "fragment", tile.shape, tile.dtype)
    context.line(f"T.copy({tile.name}, {copy.name})")
    return copy


def _new(context: Context, value: ir.Value) -> Tile:
    type_ = ir.RankedTensorType(value.type)
    return context.tiles.new("chosen", "fragment", [padded(size) for size in type_.shape], memory_type(type_.element_type))


def _may_overwrite(context: Context, block: ir.Block, value: ir.Value, tile: Tile) -> bool:
    """Whether a value may be made in a tile while values of the block's surroundings are in it: nothing reads those later."""
    if isinstance(value.owner, ir.Block) or value.owner.operation.block != block:
        return False
    order = [view.operation for view in block.operations]
    made = order.index(value.owner.operation)
    for old, place in list(context.where.items()):
        if place != tile:
            continue
        for use in old.uses:
            within = _ancestor(use.owner.operation, block)
            if within is not None and order.index(within) > made:
                return False
    return True


def _ancestor(op: ir.Operation, block: ir.Block) -> ir.Operation | None:
    """The op of the block that is, or holds, `op`."""
    current: ir.Operation | None = op
    while current is not None and current.block != block:
        current = current.parent
        if current is None or current.name == "func.func":
            return None
    return current


def loop_name(op: ir.Operation) -> str:
    """What a loop runs over: keys of rows, or keys, heads and queries of pairs."""
    depth, kernel = 0, op.parent
    while kernel is not None and kernel.name != "func.func":
        depth += kernel.name == "scf.for"
        kernel = kernel.parent
    attributes = ir.DictAttr(kernel.attributes["tile.kernel"]) if kernel is not None else {}
    by_keys = "grid" in attributes and ir.StringAttr(attributes["grid"]).value == "pairs"
    return ("kv", "member", "row")[min(depth, 2)] if by_keys else "kv"
