"""The rule of bits of dropout that the lanes of a warp share: see `attn_dropout.cuh`."""

from collections.abc import Sequence

from attn_mlir.backends.nvidia.warp.printer import Rule, WarpPrinter, plain
from attn_mlir.dialects.regions import around
from attn_mlir.dialects.warp.structure import shares
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import makers_in

HEADER = "../hopper/attn_dropout.cuh"
"""Kernels over pairs of the Hopper emitter have it, too."""
_ROW_BYTES = 16
"""Of the bits of a row and 64 keys."""


def _drop(printer: WarpPrinter, op: ir.Operation, tile: str, bits: str) -> None:
    """Bits first: the registers of the scores are free by then."""
    printer.headers[HEADER] = None
    block, (rows, columns) = op.regions[0].blocks[0], op.results[0].type.shape
    kept = block.operations[-1].operation.operands[0].owner.operation
    groups, before = _warpgroups(op)
    # The helpers count rows from the first warp of the thread block on.
    to = f"{bits} - {before * rows * _ROW_BYTES}" if before else bits
    with printer.writer.block():
        row, column = block.arguments
        seed, offset, drop, heads, b, h, query, key = kept.operands
        printer.printed[row] = printer.printed[column] = "0"
        _print(printer, block, (key, *list(kept.operands)[:6]))
        first = printer.printed[key]
        seeds = f"(unsigned)({printer.printed[seed]}), (unsigned)((unsigned long long)({printer.printed[seed]}) >> 32)"
        others = ", ".join(f"(unsigned)({printer.printed[value]})" for value in (offset, drop))
        head = f"(unsigned)((long long){printer.printed[b]} * {printer.printed[heads]} + {printer.printed[h]})"
        of = printer.names.fresh("of_head")
        printer.line(f"const attn::Dropout {of} = {{{seeds}, {others}, {head}}};")
        query_of = printer.names.fresh("query_of")
        with printer.writer.block(f"const auto {query_of} = [&](int row_of_lane)"):
            printer.printed[row] = f"(row_of_lane % {rows})"
            _print(printer, block, (query,))
            printer.line(f"return (unsigned)({printer.printed[query]});")
        printer.writer.lines[-1] += ";"
        kind = f"{groups * rows}, {columns}, {plain(op, 'unroll')}"
        printer.line(f"attn::dropout_of_warp<{kind}>({of}, (unsigned)({first}), {to}, {query_of});")
    target = printer.declare(op.results[0], "dropped")
    printer.assign(target, op.operands[0])
    printer.line(f"attn::drop_own<{groups * rows}>({target}, {to});")


def _print(printer: WarpPrinter, block: ir.Block, values: Sequence[ir.Value]) -> None:
    """Prints what values are made of in a region."""
    for op in makers_in(block, values):
        printer.op(op)


def _warpgroups(op: ir.Operation) -> tuple[int, int]:
    """Those of the role, and of the roles before it."""
    role = next(above for above in around(op) if above.name == "warp.role")
    kernel = next(above for above in around(op) if above.name == "warp.kernel")
    roles = [view.operation for view in kernel.regions[0].blocks[0].operations if view.operation.name == "warp.role"]
    before = [each for each in roles[: roles.index(role)] if not shares(each)]
    return plain(role, "warpgroups"), sum(plain(each, "warpgroups") for each in before)


RULES: dict[str, Rule] = {"warp.drop": _drop}
