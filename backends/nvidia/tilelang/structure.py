"""Loops and branches: tiles are values in the IR, and buffers that change in a TileLang program."""

from collections.abc import Callable, Sequence

from attn_mlir.backends.gpu.attributes import grid_kind
from attn_mlir.backends.nvidia.tilelang.context import Context, constant
from attn_mlir.backends.nvidia.tilelang.expressions import strip
from attn_mlir.backends.nvidia.tilelang.memory import memory_type
from attn_mlir.backends.nvidia.tilelang.products import can_be_async, loads_whole, new_tile, source_region
from attn_mlir.backends.nvidia.tilelang.tiles import TileBuffer
from attn_mlir.mlir import ir

PrintBlock = Callable[[ir.Block], None]


def print_for(context: Context, op: ir.Operation, print_block: PrintBlock) -> None:
    """`scf.for`: what it carries stays in the same tiles throughout."""
    begin, end, step, *_ = op.operands
    body = op.regions[0].blocks[0]
    tiles = carried(context, op)
    name = context.names.new(loop_name(op))
    ahead = loads_ahead(context, op)
    if ahead:
        begin_text, end_text = (context.text(v) if constant(v) is not None else context.scalars.name(v) for v in (begin, end))
    else:
        begin_text, end_text = (strip(context.text(v)) for v in (begin, end))
    size = constant(step)
    bounds = [*([] if size == 1 and begin_text == "0" else [begin_text]), end_text, *([] if size == 1 else [str(size)])]
    context.tiles.enter()
    copies = [new_tile(context, load, 2) for load in ahead]
    if ahead:
        context.line(f"if {begin_text} < {end_text}:")
        _copy_ahead(context, ahead, copies, begin_text, "0")
    context.line(f"for {name} in T.serial({', '.join(bounds)}):")
    with context.block():
        context.scalars.bind(body.arguments[0], name)
        if ahead:
            _rotate(context, ahead, copies, (name, begin_text, end_text), int(size or 1))
        print_into(context, body, tiles, print_block)
    context.tiles.leave()


def carried(context: Context, op: ir.Operation) -> list[TileBuffer]:
    """The tiles of what an `scf.for` carries: the same throughout, also for its results."""
    tiles = [own(context, value, op) for value in list(op.operands)[3:]]
    for argument, result, tile in zip(list(op.regions[0].blocks[0].arguments)[1:], op.results, tiles, strict=True):
        context.where[argument] = context.where[result] = tile
    return tiles


def loads_ahead(context: Context, op: ir.Operation) -> list[ir.Operation]:
    """The whole tiles that a loop loads at its own position, each once: those that can be loaded one block ahead."""
    if context.stages < 2:
        return []
    body = op.regions[0].blocks[0]
    found: list[ir.Operation] = []
    for view in body.operations:
        load = view.operation
        if load.name != "tile.load" or load.operands[3] != body.arguments[0] or not loads_whole(load) or not can_be_async(load):
            continue
        before = [load.operands[n] for n in range(3)]
        if any(not isinstance(v.owner, ir.Block) and v.owner.operation.block == body for v in before):
            continue
        if all([*other.operands] != [*load.operands] for other in found):
            found.append(load)
    return found


def _copy_ahead(context: Context, loads: Sequence[ir.Operation], copies: Sequence[TileBuffer], row: str, stage: str) -> None:
    for load, tile in zip(loads, copies, strict=True):
        context.line(f"T.async_copy({source_region(context, load, row)}, {tile.name}[{stage}, :, :])", 1)


def _rotate(context: Context, loads: Sequence[ir.Operation], copies: Sequence[TileBuffer], loop: tuple[str, str, str], size: int) -> None:
    """Waits for the tiles of this block, and starts to load those of the next one."""
    name, begin, end = loop
    stage = context.names.new("stage")
    passed = name if begin == "0" else f"({name} - {begin})"
    context.line(f'{stage} = T.alloc_var("int32", init={passed} // {size} % 2)')
    context.line("T.ptx_wait_group(0)")
    context.line("T.sync_threads()")
    context.line(f"if {name} + {size} < {end}:")
    _copy_ahead(context, loads, copies, f"{name} + {size}", f"1 - {stage}")
    for load, tile in zip(loads, copies, strict=True):
        context.where[load.results[0]] = TileBuffer(tile.name, tile.scope, tile.shape[1:], tile.dtype, stage)
        context.loaded().append(load)


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


def print_into(context: Context, block: ir.Block, tiles: Sequence[TileBuffer], print_block: PrintBlock) -> None:
    """Prints a block so that what it yields ends in the given tiles."""
    yielded = list(block.operations[-1].operation.operands)
    for number, (value, tile) in enumerate(zip(yielded, tiles, strict=True)):
        if value not in yielded[:number] and _may_overwrite(context, block, value, tile):
            for part in _parts_of(value):
                if not _may_overwrite(context, block, part, tile):
                    break
                context.homes[part] = tile
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


def _parts_of(value: ir.Value) -> list[ir.Value]:
    """A value, and the sums of products that it is a sum of and that nothing else needs, the last one first."""
    parts = [value]
    while True:
        owner = parts[-1].owner
        if isinstance(owner, ir.Block) or owner.operation.name not in ("tile.dot_add", "tile.dot_rescale"):
            return parts
        before = owner.operation.operands[0]
        if len(list(before.uses)) != 1 or isinstance(before.owner, ir.Block) or not before.owner.operation.name.startswith("tile.dot_"):
            return parts
        parts.append(before)


def own(context: Context, value: ir.Value, op: ir.Operation) -> TileBuffer:
    """The tile of an initial value if only this loop needs it, else a copy."""
    tile = context.tile(value)
    block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
    if len(list(value.uses)) == 1 and block == op.block and tile.scope == "fragment":
        return tile
    copy = context.tiles.new(tile.name, "fragment", tile.shape, tile.dtype)
    context.line(f"T.copy({tile.name}, {copy.name})")
    return copy


def _new(context: Context, value: ir.Value) -> TileBuffer:
    type_ = ir.RankedTensorType(value.type)
    return context.tiles.new("chosen", "fragment", context.shape(type_.shape), memory_type(type_.element_type))


def _may_overwrite(context: Context, block: ir.Block, value: ir.Value, tile: TileBuffer) -> bool:
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
    by_keys = kernel is not None and grid_kind(kernel) == "pairs"
    return ("kv", "member", "row")[min(depth, 2)] if by_keys else "kv"
