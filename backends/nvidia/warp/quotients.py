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
    """The only division of a map over a tile whose elements may share reciprocals; none where it chooses more than 0 for what is masked."""
    ops = [view.operation for view in map_.regions[0].blocks[0].operations]
    found = [op for op in ops if SHARED in op.attributes]
    fits = tile.form == "tile" and len(tile.layout.row_digits) == 1 and tile.elements % 8 == 0
    if not fits or len(found) != 1 or helper_of(found[0]) not in _HELPERS:
        return None
    if any(op.name == "arith.select" for op in ops) and _masks(map_.regions[0].blocks[0], found[0]) is None:
        return None
    return found[0] if maker(found[0].operands[0], "arith.constant") is not None else None


def _masks(block: ir.Block, division: ir.Operation) -> list[ir.Value] | None:
    """The conditions, of columns and bounds of rows, of a map whose only selects make 0 of all that it makes of a division, one in another;
    None for other maps."""
    made = list(block.operations[-1].operation.operands)
    if len(made) != 1:
        return None
    value, found = made[0], list[ir.Value]()
    while (select := maker(value, "arith.select")) is not None and _is_zero(select.operands[2]):
        found.append(select.operands[0])
        value = select.operands[1]
    ops = [view.operation for view in block.operations]
    after = _made_by(ops, [value])
    conditions = _made_by(ops, found)
    selects = [op for op in ops if op.name == "arith.select"]
    if len(selects) != len(found) or division not in after or division in conditions:
        return None
    row = block.arguments[0]  # conditions are computed twice: what reads more than a bound of the row would be read twice
    cheap = all(op.name != "memref.load" and (op.name != "tensor.extract" or list(op.operands)[1:] == [row]) for op in conditions)
    return found if cheap else None


def _is_zero(value: ir.Value) -> bool:
    made = maker(value, "arith.constant")
    return made is not None and ir.FloatAttr(made.attributes["value"]).value == 0.0


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
    ops, masks = [view.operation for view in list(block.operations)[:-1]], _masks(block, division) or []
    group, row, member, divisors, made = (printer.names.fresh(name) for name in ("group", "row", "member", "divisors", "quotients"))
    place = f"const int r = {group} + 2 * {row} + {member} / 2 * 4 + {member} % 2;"  # a thread's two rows, whose elements lie in pairs
    printer.line("#pragma unroll")
    with printer.writer.block(f"for (int {group} = 0; {group} < {tile.elements}; {group} += {2 * count})"), printer.writer.unrolled(row, 2):
        printer.line(f"float {divisors}[{count}], {made}[{count}];")
        with printer.writer.unrolled(member, count):
            printer.line(place)
            each(_made_by(ops, [divisor, *masks]))
            seen = " && ".join(printer.printed[mask] for mask in masks)
            # A NaN where pairs are masked would reach the others.
            printer.line(f"{divisors}[{member}] = {f'{seen} ? ' if masks else ''}{printer.printed[divisor]}{' : 0.0f' if masks else ''};")
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
