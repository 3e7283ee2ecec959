"""Rules of the frame: roles, loops, conditions, who does something, and how tiles are handed out."""

from attn_mlir.backends.nvidia.warp.printer import Address, Rule, WarpPrinter, plain
from attn_mlir.backends.nvidia.warp.scalars import operand
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


def role(printer: WarpPrinter, op: ir.Operation, sharing: list[ir.Operation], place: tuple[int, int]) -> None:
    """A role and those that share its warpgroup. `place`: the first one of its warpgroups, and the registers of a thread at first."""
    first, launch = place
    groups, warps, registers = (plain(op, name) for name in ("warpgroups", "warps", "registers"))
    of_role = f"group == {first}" if groups == 1 else f"group >= {first} && group < {first + groups}"
    with printer.writer.block(f"if ({of_role})"):
        printer.line(f"// role {plain(op, 'sym_name')}")
        if registers != launch:
            printer.line(f"attn::{'fewer' if registers < launch else 'more'}_registers<{registers}>();")
        index = op.regions[0].blocks[0].arguments[0]
        printer.line(f"const int {printer.name(index, 'warpgroup_of_role')} = group{f' - {first}' if first else ''};")
        if warps == 4:
            printer.block(op.regions[0].blocks[0])
            return
        with printer.writer.block(f"if (warp < {warps})"):
            printer.block(op.regions[0].blocks[0])
        for other in sharing:  # inside: `setmaxnreg` is for all warps of a warpgroup, and compilers read it before what has its registers
            _share(printer, other)


def _share(printer: WarpPrinter, op: ir.Operation) -> None:
    """A role of some warps of a warpgroup, which count from 0 in it."""
    first, units, warps = (plain(op, name) for name in ("first_warp", "warpgroups", "warps"))
    with printer.writer.block(f"if (warp >= {first} && warp < {first + units * warps})"):
        printer.line(f"// role {plain(op, 'sym_name')}")
        name = printer.name(op.regions[0].blocks[0].arguments[0], "unit_of_role")
        printer.line(f"const int {name} = (warp - {first}) / {warps}, {name}_warp = (warp - {first}) % {warps};")
        with printer.writer.block():
            printer.line(f"const int warp = {name}_warp;")
            printer.rolled = True  # a producer has few registers
            printer.block(op.regions[0].blocks[0])
            printer.rolled = False


def _elect(printer: WarpPrinter, op: ir.Operation) -> None:
    chosen = "attn::elect_one()" if printer.target.bulk_copies else "lane == 0"
    with printer.writer.block(f"if (warp == 0 && {chosen})"):
        printer.elected = True
        printer.block(op.regions[0].blocks[0])
        printer.elected = False
    printer.line("__syncwarp();")


def _each_warp(printer: WarpPrinter, op: ir.Operation) -> None:
    """A warp's rows are in the same registers: nothing moves."""
    targets = [printer.declare(result, "of_warp") for result in op.results]
    with printer.writer.block():
        printer.block(op.regions[0].blocks[0], targets)


def _for(printer: WarpPrinter, op: ir.Operation, begin: str, end: str, step: str, *starts: str) -> None:
    block = op.regions[0].blocks[0]
    index, *arguments = block.arguments
    carried = [printer.declare(argument, "carried") for argument in arguments]
    for target, value in zip(carried, list(op.operands)[3:], strict=True):
        printer.assign(target, value)
    n = printer.name(index, "n")
    printer.line(*(["#pragma unroll 1"] if printer.rolled else []))
    with printer.writer.block(f"for ({printer.context.type_of(index)} {n} = {begin}; {n} < {end}; {n} += {step})"):
        printer.block(block, carried)
    printer.printed.update(zip(op.results, carried, strict=True))


def _if(printer: WarpPrinter, op: ir.Operation, condition: str) -> None:
    tiles = {n: result for n, result in enumerate(op.results) if isinstance(result.type, ir.MemRefType)}
    targets = [_address(printer, result) if n in tiles else printer.declare(result, "chosen") for n, result in enumerate(op.results)]
    for head, region in zip((f"if ({condition})", "else"), op.regions, strict=True):
        if len(region.blocks) and (targets or len(list(region.blocks[0].operations)) > 1):
            with printer.writer.block(head):
                printer.block(region.blocks[0], targets)
    for n, result in tiles.items():
        chosen = [printer.printed[list(region.blocks[0].operations[-1].operation.operands)[n]] for region in op.regions]
        if any((each.atom, each.row) != (chosen[0].atom, chosen[0].row) for each in chosen):
            raise UnsupportedError(f"warp: tiles that a condition chooses between lie alike in shared memory ({source_line(op.location)})")
        printer.printed[result] = Address(targets[n], chosen[0].atom, chosen[0].row)


def _address(printer: WarpPrinter, tile: ir.Value) -> str:
    """A variable for where a tile lies."""
    name = printer.name(tile, "tile")
    printer.line(f"uint32_t {name};")
    return name


def _block_id(printer: WarpPrinter, op: ir.Operation) -> None:
    """Where a kernel is no persistent one, its grid has a thread block for each tile, along three axes."""
    text = "blockIdx.x" if printer.target.bulk_copies else "blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)"
    printer.define(op.results[0], text, "block")


def _block_count(printer: WarpPrinter, op: ir.Operation) -> None:
    text = "gridDim.x" if printer.target.bulk_copies else "gridDim.x * gridDim.y * gridDim.z"
    printer.define(op.results[0], text, "blocks")


def _next_tile(printer: WarpPrinter, op: ir.Operation, counter: ir.Value, last: str) -> None:
    """The driver lends a counter, and the kernel leaves it zero: atomicInc wraps."""
    counter_ = f"reinterpret_cast<unsigned *>({printer.arguments.counter()})"
    printer.define(op.results[0], f"(int)atomicInc({counter_}, (unsigned){operand(last)})", "drawn")


def _while(printer: WarpPrinter, op: ir.Operation, *starts: str) -> None:
    before, after = (region.blocks[0] for region in op.regions)
    carried = [printer.declare(argument, "carried") for argument in before.arguments]
    for target, value in zip(carried, op.operands, strict=True):
        printer.assign(target, value)
    handed = [printer.declare(argument, "handed") for argument in after.arguments]
    with printer.writer.block("while (true)"):
        *ops, last = [view.operation for view in before.operations]
        for inner in ops:
            printer.op(inner)
        goes_on, *values = last.operands
        for target, value in zip(handed, values, strict=True):
            printer.assign(target, value)
        printer.line(f"if (!({printer.printed[goes_on]})) break;")
        printer.block(after, carried)
    printer.printed.update(zip(op.results, handed, strict=True))


RULES: dict[str, Rule] = {
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
    "warp.block_count": _block_count,
    "warp.block_id": _block_id,
    "warp.each_warp": _each_warp,
    "warp.elect": _elect,
    "warp.next_tile": _next_tile,
}
