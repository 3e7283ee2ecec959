"""Chunk scans (grid "chunks"): the loop that carries a state, tiles of the next chunk loaded while this one is computed.

All rows of a tile exist in memory but in the last chunk of a sequence: whole tiles are copied by `cp.async`, rows past the end repeat the
last one.
"""

from collections.abc import Sequence

from attn_mlir.backends.nvidia.tilelang.context import INDENT, Context, constant
from attn_mlir.backends.nvidia.tilelang.expressions import strip
from attn_mlir.backends.nvidia.tilelang.memory import memory_type
from attn_mlir.backends.nvidia.tilelang.products import can_be_async, load_size, new_tile
from attn_mlir.backends.nvidia.tilelang.structure import PrintBlock, carried, print_into
from attn_mlir.backends.nvidia.tilelang.tiles import TileBuffer
from attn_mlir.mlir import ir


def print_scan(context: Context, op: ir.Operation, print_block: PrintBlock) -> None:
    """`scf.for` over chunks."""
    begin, end, step, *_ = op.operands
    body = op.regions[0].blocks[0]
    tiles = carried(context, op)
    name, size = context.names.new("chunk"), constant(step) or 1
    first, last = (context.text(v) if constant(v) is not None else context.scalars.name(v) for v in (begin, end))
    loads, stages = loads_ahead(context, op), context.stages
    context.tiles.enter()
    copies = [new_tile(context, load, stages) for load in loads]
    if loads and stages > 1:
        context.line(f"if {first} < {last}:")
        _copy(context, op, loads, copies, (first, "0"), 1)
    steps = "" if size == 1 else f", {size}"
    context.line(f"for {name} in T.serial({first}, {last}{steps}):")
    with context.block():
        context.scalars.bind(body.arguments[0], name)
        if loads:
            _rotate(context, op, loads, copies, (name, first, last, size))
        print_into(context, body, tiles, print_block)
    context.tiles.leave()


def loads_ahead(context: Context, op: ir.Operation) -> list[ir.Operation]:
    """The tiles that a loop loads at places which follow from its position alone, each once."""
    found: list[ir.Operation] = []
    for view in op.regions[0].blocks[0].operations:
        load = view.operation
        if load.name != "tile.load" or not can_be_async(load) or not load.operands[0].type.element_type.width == 16:
            continue
        if context.shape(load_size(load)) != load_size(load) or not all(_follows(operand, op) for operand in list(load.operands)[1:]):
            continue
        if all([*other.operands] != [*load.operands] for other in found):
            found.append(load)
    return found


def _follows(value: ir.Value, loop: ir.Operation) -> bool:
    """Whether an index is arithmetic on the loop's position and on what is known before it."""
    body = loop.regions[0].blocks[0]
    if isinstance(value.owner, ir.Block):
        return value.owner != body or value == body.arguments[0]
    op = value.owner.operation
    if op.block != body:
        return True
    return op.name.startswith("arith.") and all(_follows(operand, loop) for operand in op.operands)


def _copy(
    context: Context, loop: ir.Operation, loads: Sequence[ir.Operation], copies: Sequence[TileBuffer], at: tuple[str, str], deeper: int
) -> None:
    """Starts to load the tiles of the chunk at a position into a stage."""
    position, stage = at
    depth = context.depth + deeper
    scalars = context.scalars.inside(context.read, context.lines, INDENT * depth, variables=True)
    scalars.bind(loop.regions[0].blocks[0].arguments[0], position)
    for rows in _same_rows(loads):
        _, _, _, row, count = loads[rows[0]].operands
        whole = ir.RankedTensorType(loads[rows[0]].results[0].type).shape[0]
        first, present = scalars.name(row), strip(scalars.emit(count))
        places = [[scalars.emit(operand) for operand in list(loads[n].operands)[1:3]] for n in rows]
        guarded = present != str(whole)
        if guarded:
            context.line(f"if {present} == {whole}:", deeper)
        for n, place in zip(rows, places, strict=True):
            region = context.memory.element(loads[n].operands[0], [*place, f"{first} : {first} + {whole}", f"0:{copies[n].shape[-1]}"])
            context.line(f"T.async_copy({region}, {_stage(copies[n], stage).whole()})", deeper + guarded)
        if guarded:
            context.line("else:", deeper)
            for n, place in zip(rows, places, strict=True):
                _copy_rows(context, loads[n], _stage(copies[n], stage), (*place, first, present), deeper + 1)


def _copy_rows(context: Context, load: ir.Operation, tile: TileBuffer, place: tuple[str, ...], deeper: int) -> None:
    """Rows of the last chunk."""
    *heads, first, count = place
    rows, columns = tile.shape
    element = context.memory.element(load.operands[0], [*heads, f"{first} + T.min(i, {count} - 1)", "j"])
    context.line(f"for i, j in T.Parallel({rows}, {columns}):", deeper)
    context.line(f"{tile.at('i', 'j')} = {element}", deeper + 1)


def _same_rows(loads: Sequence[ir.Operation]) -> list[list[int]]:
    """The numbers of loads, together where they load the same rows."""
    groups: list[list[int]] = []
    for number, load in enumerate(loads):
        for group in groups:
            if list(loads[group[0]].operands)[3:] == list(load.operands)[3:] and loads[group[0]].results[0].type == load.results[0].type:
                group.append(number)
                break
        else:
            groups.append([number])
    return groups


def _rotate(
    context: Context, op: ir.Operation, loads: Sequence[ir.Operation], copies: Sequence[TileBuffer], loop: tuple[str, str, str, int]
) -> None:
    """Waits for the tiles of this chunk, and starts to load those of the next one."""
    name, begin, end, size = loop
    if context.stages > 1:
        stage = context.names.new("stage")
        passed = name if begin == "0" else f"({name} - {begin})"
        context.line(f'{stage} = T.alloc_var("int32", init={passed} // {size} % {context.stages})')
    else:
        stage = ""
        context.line("T.sync_threads()")
        _copy(context, op, loads, copies, (name, ""), 0)
    context.line("T.ptx_wait_group(0)")
    context.line("T.sync_threads()")
    if context.stages > 1:
        context.line(f"if {name} + {size} < {end}:")
        _copy(context, op, loads, copies, (f"({name} + {size})", f"1 - {stage}"), 1)
    for load, tile in zip(loads, copies, strict=True):
        context.where[load.results[0]] = _stage(tile, stage)
        context.loaded().append(load)


def _stage(tile: TileBuffer, stage: str) -> TileBuffer:
    """One of the copies of a tile."""
    return TileBuffer(tile.name, tile.scope, tile.shape[1:], tile.dtype, stage) if len(tile.shape) == 3 else tile


def print_state(context: Context, op: ir.Operation) -> None:
    """`tile.load` of f32: a state goes to registers at once."""
    source, b, h, row, count = op.operands
    type_ = ir.RankedTensorType(op.results[0].type)
    tile = context.tiles.new("state", "fragment", context.shape(type_.shape), memory_type(type_.element_type))
    context.where[op.results[0]] = tile
    rows, columns = tile.shape
    first, last = context.text(row), context.text(count)
    place = "i" if last == str(rows) else f"T.min(i, {strip(last)} - 1)"
    place = place if first == "0" else f"{first} + {place}"
    column = "j" if type_.shape[1] == columns else f"T.min(j, {type_.shape[1] - 1})"
    context.line(f"for i, j in T.Parallel({rows}, {columns}):")
    context.line(f"{tile.at('i', 'j')} = {context.memory.element(source, [context.text(b), context.text(h), place, column])}", 1)
    context.scatter(op.results[0])


def print_cumsum(context: Context, op: ir.Operation) -> None:
    """`tile.cumsum` in shared memory."""
    source = context.shared(op.operands[0])
    tile = context.tiles.new("prefix", "shared", source.shape, source.dtype)
    context.where[op.results[0]] = tile
    reverse = ", reverse=True" if ir.BoolAttr(op.attributes["reverse"]).value else ""
    context.line(f"T.cumsum(src={source.name}, dst={tile.name}, dim=0{reverse})")


def print_uniform(context: Context, op: ir.Operation) -> bool:
    """A `tile.map` of one index whose elements are all the same: numbers instead of tiles. False for other maps."""
    block = op.regions[0].blocks[0]
    operations = [view.operation for view in block.operations]
    if len(block.arguments) != 1 or any(True for _ in block.arguments[0].uses):
        return False
    body = context.scalars.inside(context.read, context.lines, INDENT * context.depth, variables=True)
    for result, value in zip(op.results, operations[-1].operands, strict=True):
        type_ = ir.RankedTensorType(result.type)
        context.where[result] = TileBuffer(body.name(value), "number", tuple(type_.shape), memory_type(type_.element_type))
    return True
