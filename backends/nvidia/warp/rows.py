"""Rules of ordinary accesses to global memory, element by element."""

from typing import Any

from attn_mlir.backends.nvidia.warp.elements import element
from attn_mlir.backends.nvidia.warp.fragments import place
from attn_mlir.backends.nvidia.warp.memory import HEADER, MMA, TILE_ROWS, lane_here
from attn_mlir.backends.nvidia.warp.printer import Rule, WarpPrinter
from attn_mlir.backends.nvidia.warp.scalars import operand
from attn_mlir.diagnostics import source_line
from attn_mlir.dialects.warp.kinds import settled
from attn_mlir.dialects.warp.layouts import Fragment, fragment
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


def _at(printer: WarpPrinter, tile: Fragment, memory: ir.Value, head: list[str]) -> str:
    """Prints which row the element in register r is at; the element in memory. `head`: batch, head, row, and the column if there is one.

    Of memory in slots, it is in the first one.
    """
    printer.line(f"const int at = {head[2]} + {place(tile, 'r', 'row')};")
    column = [" + ".join([*(text for text in head[3:] if text != "0"), place(tile, "r", "column")])] if tile.form == "tile" else []
    slot = ["0"] if ir.MemRefType(memory.type).rank == 5 else []
    return printer.arguments.element(memory, [*slot, f"({head[0]})", f"({head[1]})", "at", *(f"({text})" for text in column)])


def _inside(printer: WarpPrinter, tile: Fragment, memory: ir.Value) -> str:
    """Whether an element exists, and this thread is the one that writes it."""
    own = "" if tile.form == "tile" else f"lane % {tile.layout.parts} == 0 && "
    type_ = ir.MemRefType(memory.type)
    if tile.form == "tile" and type_.shape[-1] < tile.shape[1]:
        own = f"{place(tile, 'r', 'column')} < {type_.shape[-1]} && "
    return f"{own}at >= 0 && at < {printer.arguments.size(memory, 3 if type_.rank == 5 else 2)}"


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
    if (tile.form, tile.instruction, tile.element, adds) == ("tile", "wgmma", "f32", False):
        printer.headers[TILE_ROWS] = None
        place = f"&{printer.arguments.element(target, [f'({batch})', f'({head})', '0', '0'])}"
        where = f"{printer.arguments.stride(target, 2)}, {printer.arguments.stride(target, 3)}, {row}, {printer.arguments.size(target, 2)}"
        printer.line(f"attn::store_tile<{tile.shape[1]}>({name}, {place}, {where}, warp, lane);")
        return
    with printer.writer.unrolled("r", tile.elements):
        to = _at(printer, tile, target, [batch, head, row, column])
        value = f"{name}[r]"
        if found.packed == 2:
            value = f"{found.narrow}(r % 2 ? {found.unpack}({name}[r / 2]).y : {found.unpack}({name}[r / 2]).x)"
        text = f"attn::add_global(&{to}, {value});" if adds else f"{to} = {value};"
        printer.line(f"if ({_inside(printer, tile, target)}) {text}")


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
    with printer.writer.unrolled("r", tile.elements):
        text = _at(printer, tile, source, [batch, head, row, column])
        value = f"at >= 0 && at < {printer.arguments.size(source, 2)} ? {f'{found.widen}({text})' if found.widen else text} : 0"
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


def _order_now(printer: WarpPrinter, op: ir.Operation, counters: ir.Value, index: str) -> None:
    """All threads of the first warp ask; of these one claims. No fence is needed: what follows are additions in the L2 cache.

    They begin when the number is there, and the store was in that cache before; a fence in every iteration takes 10 % of a pass.
    """
    text = f"warp == 0 ? attn::semaphore_now({printer.arguments.pointer(counters)} + {operand(index)}) : 0"
    printer.define(op.results[0], text, "now")


def _claim(printer: WarpPrinter, op: ir.Operation, counters: ir.Value, index: str, now: str) -> None:
    text = f"attn::claim_first({printer.arguments.pointer(counters)} + {operand(index)}, {now})"
    printer.define(op.results[0], text, "first")


def _order_pass(printer: WarpPrinter, op: ir.Operation, counters: ir.Value, index: str, number: str) -> None:
    function = "attn::semaphore_pass"  # of what TMA has added
    if not printer.target.bulk_copies:
        function = "attn::semaphore_release"
        printer.headers[HEADER] = None
    printer.line(f"{function}({printer.arguments.pointer(counters)} + {operand(index)}, {number});")


RULES: dict[str, Rule] = {
    "warp.atomic_add": _store,
    "warp.claim": _claim,
    "warp.load": _load,
    "warp.load_async": _load,
    "warp.load_wait": _load_wait,
    "warp.order_now": _order_now,
    "warp.order_pass": _order_pass,
    "warp.order_wait": _order_wait,
    "warp.store": _store,
}
