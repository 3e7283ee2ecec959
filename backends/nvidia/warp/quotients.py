"""Quotients of a map that share a reciprocal: one for two or four elements of a row (`gpu-share-reciprocals`)."""

from collections.abc import Callable, Iterable, Sequence

from attn_mlir.backends.gpu.passes.share_reciprocals import SHARED, unclamped
from attn_mlir.backends.nvidia.warp.printer import WarpPrinter
from attn_mlir.dialects.numbers import number
from attn_mlir.dialects.regions import maker
from attn_mlir.dialects.warp.layouts import Fragment
from attn_mlir.mlir import ir

_HELPERS = {2: "quotients_2", 4: "quotients_4"}


def shared(map_: ir.Operation, tile: Fragment) -> ir.Operation | None:
    """The only division of a map over a tile whose elements may share reciprocals; none where it masks some, as NaN would reach others."""
    ops = [view.operation for view in map_.regions[0].blocks[0].operations]
    found = [op for op in ops if SHARED in op.attributes]
    fits = tile.form == "tile" and len(tile.layout.row_digits) == 1 and tile.elements % 8 == 0
    if not fits or len(found) != 1 or any(op.name == "arith.select" for op in ops) or number(found[0], SHARED) not in _HELPERS:
        return None
    return found[0] if maker(found[0].operands[0], "arith.constant") is not None else None


def divide(
    printer: WarpPrinter, tile: Fragment, division: ir.Operation, block: ir.Block, each: Callable[[Sequence[ir.Operation]], None]
) -> list[ir.Operation]:
    """Prints the divisors of all elements, then their quotients; the ops of the map that are left. `each` prints ops of one element."""
    count, divisor = number(division, SHARED), unclamped(division.operands[1])
    array, ops = printer.names.fresh("quotients"), [view.operation for view in list(block.operations)[:-1]]
    printer.line(f"float {array}[{tile.elements}];", "#pragma unroll")
    with printer.writer.block(f"for (int r = 0; r < {tile.elements}; ++r)"):
        each(_made_by(ops, [divisor]))
        printer.line(f"{array}[r] = {printer.printed[divisor]};")
    printer.line("#pragma unroll")
    with printer.writer.block(f"for (int r = 0; r < {tile.elements}; r += {2 * count})"):
        for row in (0, 2):  # a thread's two rows, whose elements lie in pairs
            places = [f"{array}[r + {row + k // 2 * 4 + k % 2}]" for k in range(count)]
            together, apart = printer.names.fresh("divisors"), printer.names.fresh("shared")
            function, above = printer.helper(_HELPERS[count]), printer.printed[division.operands[0]]
            printer.line(f"const float {together}[{count}] = {{{', '.join(places)}}};", f"float {apart}[{count}];")
            printer.line(f"{function}({above}, {together}, {apart});")
            printer.line(*(f"{place} = {apart}[{k}];" for k, place in enumerate(places)))
    printer.printed[division.results[0]] = f"{array}[r]"
    return _made_by([op for op in ops if op != division], block.operations[-1].operation.operands)


def _made_by(ops: list[ir.Operation], values: Iterable[ir.Value]) -> list[ir.Operation]:
    """Those of some ops that values depend on."""
    needed, found = set(values), []
    for op in reversed(ops):
        if any(result in needed for result in op.results):
            found.append(op)
            needed |= set(op.operands)
    return found[::-1]
