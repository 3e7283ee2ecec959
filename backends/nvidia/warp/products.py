"""Rules of matrix products: wgmma, whose accumulator stays in its registers, and mma.sync of each warp."""

from dataclasses import dataclass
from typing import Any

from attn_mlir.backends.nvidia.forming.facts import wanted
from attn_mlir.backends.nvidia.hopper.wgmma import SharedOperand, product, wgmma, wgmma_name
from attn_mlir.backends.nvidia.warp.elements import ELEMENTS, element
from attn_mlir.backends.nvidia.warp.memory import HEADER, factor_of, lane_here
from attn_mlir.backends.nvidia.warp.printer import Address, Rule, SideBySide, WarpPrinter, plain
from attn_mlir.diagnostics import source_line
from attn_mlir.dialects.regions import maker
from attn_mlir.dialects.warp.kinds import STEP, settled
from attn_mlir.dialects.warp.layouts import fragment
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_ROWS, _DEPTH = 16, 16
"""Of one mma.sync."""
_HELD = {1: "held_1", 2: "held_2"}
"""What makes a factor of registers, by how many blocks of 16 rows a warp has."""


def _registers(printer: WarpPrinter, op: ir.Operation) -> None:
    printer.declare(op.results[0], "product")


def _mma_async(printer: WarpPrinter, op: ir.Operation, start: str, a: str | Address, b: Address, keep: str) -> None:
    """The result is in the accumulator's registers; in a copy of them where something else, or a loop around, uses that again."""
    tile, right = settled(op.results[0].type), op.operands[2].type
    transposed = [plain(op, name) for name in ("transpose_a", "transpose_b")]
    name = element(right.element_type).multiplied
    if not name or str(tile.element_type) != "f32":
        what = ", ".join(each.name for each in ELEMENTS.values() if each.multiplied)
        raise UnsupportedError(f"warp: wgmma multiplies {what} into f32, not {right.element_type} ({source_line(op.location)})")
    to = start
    if not _only_use(op):
        to = printer.declare(op.results[0], "product")
        printer.assign(to, op.operands[0])
    printer.printed[op.results[0]] = to
    form = "shared" if isinstance(a, Address) else "registers"
    columns, depth = tile.shape[1], right.shape[1] if transposed[1] else right.shape[0]
    instruction = (columns, form, name, transposed[0], not transposed[1])
    left = SharedOperand(_told(printer, a), a.atom, transposed[0], row_bytes=a.row) if isinstance(a, Address) else a
    factor = SharedOperand(_told(printer, b), b.atom, not transposed[1], row_bytes=b.row)
    held = (a.registers, a.steps) if isinstance(a, PartlyHeld) else ("", 0)
    clear = {"true": False, "false": True}.get(keep, f"!{keep}")
    try:
        for each in (instruction, *([(columns, "registers", name, False, not transposed[1])] * (held[1] > 0))):
            printer.instructions.setdefault(wgmma_name(*each), wgmma(*each))
        printer.line(*product(to, columns, depth, left, factor, name, clear=clear, held=held))
    except ValueError as error:
        raise UnsupportedError(f"warp: {error} ({source_line(op.location)})") from None


@dataclass(frozen=True)
class PartlyHeld(Address):
    """A tile in shared memory whose first columns are in an array of registers, too: what so many instructions take."""

    registers: str
    steps: int


def _hold(printer: WarpPrinter, op: ir.Operation, tile: Address, held: str) -> None:
    steps = ir.RankedTensorType(op.operands[1].type).shape[1] // STEP
    printer.printed[op.results[0]] = PartlyHeld(tile.address, tile.atom, tile.row, held, steps)


def _told(printer: WarpPrinter, memory: Address) -> str:
    """The address of a factor, of which compilers are told that all lanes have the same, unless the schedule says `uniform` = 0."""
    return f"attn::uniform({memory.address})" if wanted(printer.kernel, "uniform") else memory.address


def _only_use(op: ir.Operation) -> bool:
    """Whether nothing else sees the accumulator: it has one use, in the block where it is made, or no particular value."""
    start = op.operands[0]
    if len(list(start.uses)) > 1:
        return False
    made_in = start.owner if isinstance(start.owner, ir.Block) else start.owner.operation.block
    return made_in == op.block or maker(start, "warp.registers") is not None


def _mma_wait(printer: WarpPrinter, op: ir.Operation, product_: str) -> None:
    """No use of the registers may move before the wait: `hold`.

    Nor may others come into those of a, which the product reads until then: compilers believe that it has read them when it is issued.
    """
    started, read = maker(op.operands[0], "warp.mma_async"), list[str]()
    while started is not None:  # products that add to the same registers one after the other
        a = printer.printed[started.operands[1]]
        registers = a.registers if isinstance(a, PartlyHeld) else a
        read += [f"attn::hold({registers});"] if isinstance(registers, str) else []
        started = maker(started.operands[0], "warp.mma_async")
    printer.line(f"attn::wgmma_wait<{plain(op, 'pending')}>();", f"attn::hold({product_});", *read)
    printer.printed[op.results[0]] = product_


def _mma(printer: WarpPrinter, op: ir.Operation, start: str, a: str | Address, b: Address | SideBySide) -> None:
    """Each warp multiplies its rows of a; compilers see the registers that it changes, and copy those that something else needs."""
    found, right = fragment(op.results[0].type), op.operands[2].type
    transposed_a, rows = (plain(op, name) for name in ("transpose_a", "transpose_b"))
    of = element(right.element_type)
    if found is None or found.element != "f32" or not of.multiplied:
        raise UnsupportedError(f"warp: mma.sync multiplies 8 or 16 bits into f32, not {right.element_type} ({source_line(op.location)})")
    depth = right.shape[1 if rows else 0] * of.bits // 16  # two elements of 8 bits are a column of matrices
    if depth % _DEPTH or (isinstance(b, SideBySide) and b.columns % _DEPTH):
        raise UnsupportedError(f"warp: mma.sync multiplies {_DEPTH} at a time, got {right} ({source_line(op.location)})")
    printer.headers[HEADER] = None
    blocks = found.layout.rows_of_warp // _ROWS
    to = printer.declare(op.results[0], "product")
    printer.assign(to, op.operands[0])
    lane = lane_here(printer) if of.bits == 8 else "lane"  # beside blocks of 192 keys, addresses made before the loop spill
    left = factor_of(a, found, transposed_a, lane) if isinstance(a, Address) else f"attn::{_HELD[blocks]}({a})"
    kind = f"attn::{of.name.upper()}, {found.shape[1]}, {depth}, {blocks}, {'true' if rows else 'false'}"
    printer.line(f"attn::multiply<{kind}>({to}, {left}, {b.tile}, {lane});")


def _statement(text: str) -> Rule:
    def rule(printer: WarpPrinter, op: ir.Operation, *operands: Any) -> None:
        printer.line(text)

    return rule


RULES: dict[str, Rule] = {
    "warp.hold": _hold,
    "warp.mma": _mma,
    "warp.mma_async": _mma_async,
    "warp.mma_begin": _statement("attn::wgmma_begin();"),
    "warp.mma_commit": _statement("attn::wgmma_commit();"),
    "warp.mma_wait": _mma_wait,
    "warp.registers": _registers,
}
