"""Rules of windows of captured tensors: TMA or lanes bring them, and maps read pairs of elements, or matrices, at a time."""

from typing import Any

from attn_mlir.backends.gpu.scalar_ops import c_type
from attn_mlir.backends.nvidia.warp import memory as memory_rules
from attn_mlir.backends.nvidia.warp.barriers import at, is_turn
from attn_mlir.backends.nvidia.warp.elements import element
from attn_mlir.backends.nvidia.warp.memory import columns_of, lane_here
from attn_mlir.backends.nvidia.warp.printer import Address, Rule, WarpPrinter, plain
from attn_mlir.backends.nvidia.warp.scalars import operand
from attn_mlir.diagnostics import source_line
from attn_mlir.dialects.warp.kinds import bytes_of, is_tile
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

HEADER = "attn_window_copies.cuh"
"""Helpers of copies of windows."""
_ROWS = 64
"""Of a warpgroup's accumulator: those of a window that a map reads."""
_HALF = 16
"""Bits of an element that matrices are read of."""


def _copy(printer: WarpPrinter, op: ir.Operation, source: ir.Value, *operands: Any) -> None:
    *places, tile, barrier, stage = operands
    target = list(op.operands)[-3]
    type_, rows, last, sizes = target.type, plain(op, "rows"), len(places) - 1, printer.arguments
    printer.headers[HEADER] = None
    width, height, full = columns_of(type_), type_.shape[0], at(barrier, stage)
    map_ = sizes.window(source, rows - last - 1, width, height)
    outer = [places[n] for n in range(last - 1, -1, -1) if n != rows]
    others = "".join(f", {place}" for place in [*outer, *["0"] * (2 - len(outer))])
    chosen = printer.names.fresh("copies")
    printer.line(f"const bool {chosen} = {is_turn(op, stage)};")
    with printer.writer.block(f"if ({chosen} && attn::is_described({map_}))"):
        with printer.writer.block("if (lane == 0)"):
            printer.line(f"attn::barrier_arrive_expect({full}, {bytes_of(type_)});")
            for n in range(-(-type_.shape[1] // width)):
                to, column = (
                    (f"{tile.address} + {n * tile.atom}", f"{operand(places[last])} + {n * width}") if n else (tile.address, places[last])
                )
                printer.line(f"attn::tma_load({to}, &{map_}, {full}, {column}, {places[rows]}{others});")
        printer.line(f"else attn::barrier_arrive({full});", "__syncwarp();")
    first = sizes.element(source, ["0" if n in (rows, last) else operand(place) for n, place in enumerate(places)])
    strides, counts = ([f"{told(source, n)}" for n in (rows, last)] for told in (sizes.stride, sizes.size))
    kind = f"{c_type(ir.MemRefType(source.type).element_type)}, {height}, {type_.shape[1]}"
    values = [f"&{first}", *strides, places[rows], places[last], *counts, tile.address, full, "lane"]
    printer.line(f"else if ({chosen}) attn::copy_window<{kind}>({', '.join(values)});")


def declare(printer: WarpPrinter, block: ir.Block) -> None:
    """Prints, before the loop over a map's elements, where this thread's elements are of the windows that it reads."""
    for op in (view.operation for view in block.operations):
        if op.name != "memref.load" or not is_tile(op.operands[0].type):
            continue
        type_, memory, turned = ir.MemRefType(op.operands[0].type), printer.printed[op.operands[0]], _is_turned(op)
        rows, columns = list(type_.shape)[:: -1 if turned else 1]
        if rows != _ROWS or columns % 16 or not isinstance(memory, Address):
            raise UnsupportedError(f"warp: maps read windows of {_ROWS} rows and a multiple of 16 columns ({source_line(op.location)})")
        start, name, lane = printer.names.fresh("window_at"), printer.names.fresh("of_window"), lane_here(printer)
        half = type_.element_type.width == _HALF
        # Of halves, lane l gives row l % 8 of matrix l / 8: rows above and below, of two chunks of 8 columns.
        place = {
            (False, False): f"(warp * 16 + {lane} / 4) * 128 + ({lane} % 4 * 8 ^ {lane} / 4 * 16)",
            (True, False): f"(warp * 16 + {lane} % 16) * 128 + ({lane} / 16 ^ {lane} % 8) * 16",
            (False, True): f"warp / 2 * {memory.atom} + {lane} % 4 * 256 + (warp % 2 * 64 + {lane} / 4 * 4 ^ {lane} % 4 * 32)",
            (True, True): f"({lane} / 16 * 8 + {lane} % 8) * 128 + (warp * 2 + {lane} / 8 % 2 ^ {lane} % 8) * 16",
        }[half, turned]
        if half or not turned:
            printer.line(f"uint32_t {name}[4];" if half else f"float2 {name};")
        printer.line(f"const uint32_t {start} = {memory.address} + {place};")
        printer.windows[op] = (start, name)


def _is_turned(op: ir.Operation) -> bool:
    """Whether a map reads the element of a window's transpose."""
    return op.operands[1] != op.block.arguments[0]


def _load(printer: WarpPrinter, op: ir.Operation, memory: Any, *places: str) -> None:
    """The element of a window in register r of a map."""
    if not is_tile(op.operands[0].type):
        memory_rules.RULES["memref.load"](printer, op, memory, *places)
        return
    (start, name), of, turned = printer.windows[op], element(op.results[0].type), _is_turned(op)
    if of.bits == _HALF:
        helper = "load_matrices_transposed" if turned else "load_matrices"
        at_column = f"{start} + r / 8 * 2048" if turned else f"({start} ^ r / 4 % 8 * 16) + r / 32 * {memory.atom}"
        printer.line(f"if (r % 8 == 0) attn::{helper}({at_column}, {name});")
        both = printer.names.fresh("pair")
        printer.line(f"const float2 {both} = {of.unpack}({name}[r / 4 % 2 * 2 + r / 2 % 2]);")
        text = f"r % 2 ? {both}.y : {both}.x"
    elif turned:
        text = f"attn::load_shared(({start} ^ r / 2 % 2 * 32 ^ r % 2 * 16) + r % 2 * 128 + r / 4 * 1024)"
    else:
        at_row = f"r / 16 * {memory.atom} + r / 2 % 2 * 1024"
        printer.line(f"if (r % 2 == 0) {name} = attn::load_shared2(({start} ^ r / 4 % 4 * 32) + {at_row});")
        text = f"r % 2 ? {name}.y : {name}.x"
    if of.packed == 1:
        printer.define(op.results[0], text, "of_window")
    elif all(use.owner.operation.name == "arith.extf" for use in op.results[0].uses):
        printer.printed[op.results[0]] = f"({text})"  # as it is, in f32
    else:
        printer.define(op.results[0], f"{of.narrow}({text})", "x")


RULES: dict[str, Rule] = {"memref.load": _load, "warp.copy_window_async": _copy}
