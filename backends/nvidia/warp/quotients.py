"""Quotients of a map that share a reciprocal: one for two or four elements of a row (`gpu-share-reciprocals`)."""

from collections.abc import Callable, Iterable, Sequence

from attn_mlir.backends.gpu.passes.share_reciprocals import SHARED, helper_of, unclamped
from attn_mlir.backends.nvidia.warp.printer import WarpPrinter
from attn_mlir.dialects.numbers import number
from attn_mlir.dialects.regions import maker
from attn_mlir.dialects.warp.layouts import Fragment
from attn_mlir.mlir import ir

_HELPERS = "quotients_2", "quotients_4", "quotients_4_wide"


def shared(map_: ir.Operation, tile: Fragment) -> ir.Operation | None:
    """The only division of a map over a tile whose elements may share reciprocals; none where it masks some, as NaN would reach others."""
    ops = [view.operation for view in map_.regions[0].blocks[0].operations]
    found = [op for op in ops if SHARED in op.attributes]
    fits = tile.form == "tile" and len(tile.layout.row_digits) == 1 and tile.elements % 8 == 0
    if not fits or len(found) != 1 or any(op.name == "arith.select" for op in ops) or helper_of(found[0]) not in _HELPERS:
        return None
    return found[0] if maker(found[0].operands[0], "arith.constant") is not None else None


def divide(
    printer: WarpPrinter,
    tile: Fragment,
    division: ir.Operation,
    block: ir.Block,
    each: Callable[[Sequence[ir.Operation]], None],
    finish: Callable[[], None],
) -> None:
    """Prints a map in groups of elements of a row: their divisors, their quotients, and what is made of these.

    `each` prints ops of the element in register r, `finish` what becomes of its results.
    """
    count, (divisor, least) = number(division, SHARED), unclamped(division)
    ops = [view.operation for view in list(block.operations)[:-1]]
    group, row, member, divisors, made = (printer.names.fresh(name) for name in ("group", "row", "member", "divisors", "quotients"))
    place = f"const int r = {group} + 2 * {row} + {member} / 2 * 4 + {member} % 2;"  # a thread's two rows, whose elements lie in pairs
    printer.line("#pragma unroll")
    with printer.writer.block(f"for (int {group} = 0; {group} < {tile.elements}; {group} += {2 * count})"), printer.writer.unrolled(row, 2):
        printer.line(f"float {divisors}[{count}], {made}[{count}];")
        with printer.writer.unrolled(member, count):
            printer.line(place)
            each(_made_by(ops, [divisor]))
            printer.line(f"{divisors}[{member}] = {printer.printed[divisor]};")
        printer.line(
            f"{printer.helper(helper_of(division))}({printer.printed[division.operands[0]]}, {printer.printed[least]}, {divisors}, {made});"
        )
        with printer.writer.unrolled(member, count):
            printer.line(place)
            printer.printed[division.results[0]] = f"{made}[{member}]"
            each(_made_by([op for op in ops if op != division], block.operations[-1].operation.operands))
            finish()


def _made_by(ops: list[ir.Operation], values: Iterable[ir.Value]) -> list[ir.Operation]:
    """Those of some ops that values depend on."""
    needed, found = set(values), []
    for op in reversed(ops):
        if any(result in needed for result in op.results):
            found.append(op)
            needed |= set(op.operands)
    return found[::-1]
