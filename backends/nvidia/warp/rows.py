"""Rules of ordinary accesses to global memory, element by element."""

import math
from typing import Any

from attn_mlir.backends.nvidia.warp.elements import element
from attn_mlir.backends.nvidia.warp.fragments import along
from attn_mlir.backends.nvidia.warp.memory import HEADER, MMA, lane_here
from attn_mlir.backends.nvidia.warp.printer import Rule, WarpPrinter
from attn_mlir.backends.nvidia.warp.scalars import operand
from attn_mlir.diagnostics import source_line
from attn_mlir.dialects.warp.kinds import settled
from attn_mlir.dialects.warp.layouts import Digit, Fragment, fragment
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_PAIR = 2
"""Elements that a thread has side by side, of which addresses are multiples."""
_PAIRS = ("f16", "bf16", "f32")


def _fragment(type_: ir.Type) -> Fragment:
    found = fragment(type_)
    if found is None:
        raise UnsupportedError(f"warp: {type_} is no fragment")
    return found


def _place(printer: WarpPrinter, tile: Fragment, memory: ir.Value, head: list[str]) -> tuple[str, str]:
    """Prints where each of the thread's rows begins, and which exist; the element in register r, and whether its row exists.

    `head`: batch, head, row, and the column if there is one. Of memory in slots, it is in the first one.
    """
    layout, slots = tile.layout, ir.MemRefType(memory.type).rank == 5
    digits, of_tile = layout.row_digits, tile.form == "tile"

    def of_thread(axis: str, *before: str) -> str:
        parts = [*before, along("lane", layout.lanes, axis), along("warp", layout.warps, axis)]
        return " + ".join(part for part in parts if part != "0") or "0"

    rows, exist, row = (printer.names.fresh(name) for name in ("own", "exists", "own_row"))
    count = math.prod(digit.size for digit in digits)
    column = [f"({of_thread('column', *head[3:])})"] if of_tile else []
    first = printer.arguments.element(memory, [*["0"] * slots, f"({head[0]})", f"({head[1]})", row, *column])
    kind = printer.arguments.pointer(memory)
    printer.line(f"decltype(+{kind}) {rows}[{count}];", f"bool {exist}[{count}];")
    with printer.writer.unrolled("h", count):
        printer.line(
            f"const int {row} = {of_thread('row', head[2], along('h', digits, 'row'))};",
            f"{rows}[h] = &{first};",
            f"{exist}[h] = {row} >= 0 && {row} < {printer.arguments.size(memory, 2 + slots)};",
        )
    number = along("r", layout.registers, "number") if of_tile else "r"
    step = f"({along('r', layout.registers, 'column')}) * {printer.arguments.stride(memory, 3 + slots)}" if of_tile else "0"
    return f"{rows}[{number}][{step}]", f"{exist}[{number}]"


def _store(printer: WarpPrinter, op: ir.Operation, *operands: Any) -> None:
    name, target, batch, head, row, *more = operands
    column = more[0] if more else "0"
    tile = _fragment(op.operands[0].type)
    found, adds = element(tile.element), op.name == "warp.atomic_add"
    if adds and tile.element != "f32":
        raise UnsupportedError(f"warp: additions to global memory are in f32, got {tile.element} ({source_line(op.location)})")
    if tile.form == "tile" and tile.instruction in MMA and tile.element in _PAIRS:
        _pairs(printer, op, tile, *operands)
        return
    to, inside = _place(printer, tile, target, [batch, head, row, column])
    own = "" if tile.form == "tile" else f"lane % {tile.layout.parts} == 0 && "  # of the threads of a row one writes it
    if (tile.form, tile.element, adds) == ("tile", "f32", False) and tile.layout.registers[0] == Digit(2, 0, 1):
        stride = printer.arguments.stride(target, 3)
        printer.line("#pragma unroll")
        with printer.writer.block(f"for (int r = 0; r < {tile.elements}; r += 2)"):
            printer.line(f"if ({inside}) attn::store_pair(&{to}, {stride}, {name}[r], {name}[r + 1]);")
        return
    with printer.writer.unrolled("r", tile.elements):
        value = f"{name}[r]"
        if found.packed == 2:
            value = f"{found.narrow}(r % 2 ? {found.unpack}({name}[r / 2]).y : {found.unpack}({name}[r / 2]).x)"
        printer.line(f"if ({own}{inside}) {f'attn::add_global(&{to}, {value})' if adds else f'{to} = {value}'};")


def _pairs(printer: WarpPrinter, op: ir.Operation, *operands: Any) -> None:
    """Two columns of a thread at a time: of f32 one after the other where it adds."""
    tile, name, target, batch, head, row, *more = operands
    slot, rank = (["0"], 3) if ir.MemRefType(op.operands[1].type).rank == 5 else ([], 2)
    printer.headers[HEADER] = None
    place = printer.arguments.element(target, [*slot, f"({batch})", f"({head})", "0", f"({more[0] if more else 0})"], _PAIR)
    size, stride = printer.arguments.size(target, rank), printer.arguments.stride(target, rank)
    kind = f"{tile.shape[1]}, {tile.layout.rows_of_warp // 16}"
    function = "add_pairs" if op.name == "warp.atomic_add" else "store_pairs"
    printer.line(f"attn::{function}<{kind}>({name}, &{place}, {stride}, {row}, {size}, warp, {lane_here(printer)});")


def _load(printer: WarpPrinter, op: ir.Operation, source: ir.Value, batch: str, head: str, row: str, column: str = "0") -> None:
    """Loads to registers: what uses them first waits for them, in hardware, so that asynchronous ones are no others."""
    tile = _fragment(settled(op.results[0].type))
    found, name = element(tile.element), printer.declare(op.results[0], "loaded")
    printer.line(*([f"float {name}_low;"] if found.packed == 2 else []))
    text, inside = _place(printer, tile, source, [batch, head, row, column])
    with printer.writer.unrolled("r", tile.elements):
        value = f"{inside} ? {f'{found.widen}({text})' if found.widen else text} : 0"
        if found.packed == 1:
            printer.line(f"{name}[r] = {value};")
        else:
            printer.line(f"if (r % 2) {name}[r / 2] = {found.pack}({name}_low, {value});", f"else {name}_low = {value};")


def _load_wait(printer: WarpPrinter, op: ir.Operation, load: str) -> None:
    printer.printed[op.results[0]] = load


def _order_wait(printer: WarpPrinter, op: ir.Operation, counters: ir.Value, index: str, number: str) -> None:
    """One thread asks for all of its warp."""
    text = f"attn::semaphore_wait({printer.arguments.pointer(counters)} + {operand(index)}, {number});"
    printer.line(*([text] if printer.elected else [f"if (lane == 0) {text}", "__syncwarp();"]))


def _order_pass(printer: WarpPrinter, op: ir.Operation, counters: ir.Value, index: str, number: str) -> None:
    function = "attn::semaphore_pass"  # of what TMA has added
    if not printer.target.bulk_copies:
        function = "attn::semaphore_release"
        printer.headers[HEADER] = None
    printer.line(f"{function}({printer.arguments.pointer(counters)} + {operand(index)}, {number});")


RULES: dict[str, Rule] = {
    "warp.atomic_add": _store,
    "warp.load": _load,
    "warp.load_async": _load,
    "warp.load_wait": _load_wait,
    "warp.order_pass": _order_pass,
    "warp.order_wait": _order_wait,
    "warp.store": _store,
}
