"""Rules of computation on fragments: loops over a thread's registers, whose rows and columns follow from the layout."""

import math
import struct
from collections.abc import Sequence

from attn_mlir.backends.gpu.structure import widened, yielded
from attn_mlir.backends.nvidia.warp import quotients, scalars, windows
from attn_mlir.backends.nvidia.warp.elements import element
from attn_mlir.backends.nvidia.warp.printer import Rule, WarpPrinter, count_of, plain
from attn_mlir.diagnostics import source_line
from attn_mlir.dialects.regions import maker
from attn_mlir.dialects.warp.kinds import is_tile
from attn_mlir.dialects.warp.layouts import Digit, Fragment, fragment
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_QUARTER = "{target}[r / 16 * 4 + r / 8 % 2 * 2 + r / 2 % 2] = {pack}({low}[r % 8 - 5], {low}[r % 8 - 4], {low}[r % 8 - 1], {low}[r % 8])"
"""The register that elements of 8 bits are in, see `layouts.column_at`, made when the last of four is there."""
MAXIMA = "attn_maxima.cuh"
"""Helpers of maps that only look for the largest elements."""
_SIGNS = {2: "<", 5: ">="}
"""Of predicates of `arith.cmpi`."""
_START = {"sum": "0.0f", "max": "-3.40282347e+38f", "min": "3.40282347e+38f"}


def along(index: str, digits: Sequence[Digit], axis: str) -> str:
    """How far an index of registers, lanes, warps moves along the "row" or "column"; "number": which of its thread's row values it has."""
    terms, stride, rows = [], 1, 1
    for digit in digits:
        step = (rows if digit.row else 0) if axis == "number" else getattr(digit, axis)
        if step:
            value = f"{index} / {stride}" if stride > 1 else index
            terms.append(f"{value} % {digit.size}" + (f" * {step}" if step > 1 else ""))
        stride, rows = stride * digit.size, rows * (digit.size if digit.row else 1)
    return " + ".join(terms) or "0"


def place(tile: Fragment, register: str, axis: str, lane: str = "lane") -> str:
    """The row or column of the element in a register of this thread."""
    digits = tile.layout.registers if tile.form == "tile" else tile.layout.row_digits
    parts = [along(register, digits, axis), along(lane, tile.layout.lanes, axis), along("warp", tile.layout.warps, axis)]
    return " + ".join(part for part in parts if part != "0") or "0"


def combined(printer: WarpPrinter, kind: str, a: str, b: str) -> str:
    """A reduction of two numbers; NaN stays NaN."""
    return f"{a} + {b}" if kind == "sum" else f"{printer.helper(f'{kind}_nan')}({a}, {b})"


def _map(printer: WarpPrinter, op: ir.Operation) -> None:
    kinds, block = plain(op, "reductions"), op.regions[0].blocks[0]
    made = [fragment(result.type) for result in op.results]
    tile = _shape(op, made)
    targets = [printer.declare(r, f.form if f is not None else "tile") for r, f in zip(op.results, made, strict=True)]
    read = _largest_of(op, kinds)
    if read is not None:
        printer.headers[MAXIMA] = None
        printer.line(f"attn::largest_of_thread({printer.printed[read]}, {targets[0]});")
        return
    largest = _largest_made(op, kinds)
    for n, (target, kind, found) in enumerate(zip(targets, kinds, made, strict=True)):
        if kind and found is not None and n not in largest:
            printer.line(f"for (int h = 0; h < {found.elements}; ++h) {target}[h] = {_START[kind]};")
    digits = tile.layout.registers if tile.form == "tile" else tile.layout.row_digits
    printer.row_index = along("r", digits, "number")
    kept = _kept_rows(op, made)
    packed = [(name, f) for name, f in zip(targets, made, strict=True) if f is not None and element(f.element).packed > 1]
    printer.line(*(f"float {name}_low{'[8]' * (element(f.element).packed == 4)};" for name, f in packed if kept is None))
    compared = _compared(printer, block)
    windows.declare(printer, block)
    places = [a for a in block.arguments if any(_needs(use.owner.operation, compared) for use in a.uses)]
    floats = {op.results[0]: axis for op in (v.operation for v in block.operations) if (axis := _float_of_place(op, block)) is not None}
    lane = "lane"
    if "column" in floats.values():
        # Numbers made of columns alone are the same in every iteration of a loop: compilers would keep them in registers, one a column.
        lane = printer.names.fresh("lane_here")
        printer.line(f"const int {lane} = attn::opaque(lane);")
    bases = {axis: _base(printer, tile, axis, lane) for axis in dict.fromkeys(floats.values())}
    lines = {op: _line(printer, op, floats, bases) for op in (v.operation for v in block.operations) if _is_line(op, floats)}

    def each(ops: Sequence[ir.Operation]) -> None:
        """Prints ops of the map for the element in register r."""
        for argument, axis in zip(block.arguments, ("row", "column"), strict=False):
            printer.printed[argument] = ""
            if argument in places:
                text = place(tile, "r", axis, lane)
                printer.line(f"const int {printer.name(argument, axis)} = {text};")
        for inner in ops:
            axis = floats.get(inner.results[0])
            if inner in lines:
                slope, start, along_ = lines[inner]
                printer.define(inner.results[0], f"fmaf({slope}, (float)({along('r', digits, along_)}), {start})", "x")
            elif inner in compared:
                of_lane, bound = along("lane", tile.layout.lanes, "column"), printer.printed[inner.operands[1]]
                sign = _SIGNS[ir.IntegerAttr(inner.attributes["predicate"]).value]
                printer.define(inner.results[0], f"{along('r', digits, 'column')} {sign} {bound} - ({of_lane})", "is")
            elif axis is None and (inner.name != "arith.index_cast" or _needs(inner, compared)):
                printer.op(inner)
            elif axis is not None and any(use.owner.operation not in lines for use in inner.results[0].uses):
                printer.define(inner.results[0], f"{bases[axis]} + (float)({along('r', digits, axis)})", "x")

    def finish() -> None:
        """Puts the element's numbers into the results."""
        for n, (value, target, kind, result) in enumerate(zip(yielded(block), targets, kinds, op.results, strict=True)):
            if n not in largest:
                _element(printer, value, target, kind, result)

    shared = quotients.shared(op, tile)
    if kept is not None:
        condition, read = kept
        printer.line("#pragma unroll")
        with printer.writer.block(f"for (int r = 0; r < {tile.elements}; r += 2)"):
            each([view.operation for view in list(block.operations)[:-1] if view.operation.name not in ("tensor.extract", "arith.select")])
            printer.line(f"{targets[0]}[r / 2] = {printer.printed[condition]} ? {printer.printed[read]}[r / 2] : 0u;")
    elif shared is not None:
        quotients.divide(printer, tile, shared, block, each, finish)
    else:
        printer.line("#pragma unroll")
        with printer.writer.block(f"for (int r = 0; r < {tile.elements}; ++r)"):
            each([view.operation for view in list(block.operations)[:-1]])
            finish()
    for n, of in largest.items():
        printer.headers[MAXIMA] = None
        printer.line(f"attn::largest_of_thread({targets[of]}, {targets[n]});")


def _kept_rows(op: ir.Operation, made: Sequence[Fragment | None]) -> tuple[ir.Value, ir.Value] | None:
    """Of a map that keeps some rows of a packed tile and makes zeros of the others: the condition and the tile.

    Registers of two elements, which lie in one row, are moved whole.
    """
    block, tile = op.regions[0].blocks[0], made[0]
    select = maker(yielded(block)[0], "arith.select")
    if len(made) != 1 or tile is None or tile.form != "tile" or element(tile.element).packed != 2 or select is None:
        return None
    condition, kept, zero = select.operands
    read, nothing = maker(kept, "tensor.extract"), maker(zero, "arith.constant")
    if read is None or nothing is None or read.operands[0].type != op.results[0].type or tile.layout.registers[0] != Digit(2, 0, 1):
        return None
    number = nothing.attributes["value"].value
    column = block.arguments[1]
    others = [view.operation for view in block.operations if view.operation not in (read, select)]
    plain_zero = number == 0 and math.copysign(1, number) > 0
    by_row = not any(column in list(other.operands) or other.name == "tensor.extract" for other in others)
    own = list(read.operands)[1:] == list(block.arguments)
    return (condition, read.operands[0]) if plain_zero and by_row and own else None


def _largest_of(op: ir.Operation, kinds: Sequence[str]) -> ir.Value | None:
    """The tile of f32 of which a map takes nothing but the largest element of each row, two rows a thread."""
    value = yielded(op.regions[0].blocks[0])[0]
    read = None if isinstance(value.owner, ir.Block) else value.owner.operation
    if list(kinds) != ["max"] or read is None or read.name != "tensor.extract":
        return None
    found = fragment(read.operands[0].type)
    plain_ = found is not None and found.form == "tile" and found.element == "f32" and len(found.layout.row_digits) == 1
    return read.operands[0] if plain_ and found is not None and found.elements % 4 == 0 else None


def _largest_made(op: ir.Operation, kinds: Sequence[str]) -> dict[int, int]:
    """Which of a map's results are the largest elements of which tile of f32 that it makes, two rows a thread."""
    values, found = yielded(op.regions[0].blocks[0]), {}
    for n, kind in enumerate(kinds):
        of = next((m for m, other in enumerate(kinds) if kind == "max" and not other and values[m] == values[n]), None)
        tile = fragment(op.results[of].type) if of is not None else None
        if tile is not None and tile.element == "f32" and len(tile.layout.row_digits) == 1 and tile.elements % 4 == 0:
            found[n] = of
    return found


def _compared(printer: WarpPrinter, block: ir.Block) -> set[ir.Operation]:
    """Comparisons of a tile's column with a number below which it must be, or not be.

    The thread's part of the column is taken from that number, once a row, so that elements compare it with constants.
    """
    if len(block.arguments) != 2:
        return set()
    found = set()
    for op in (view.operation for view in block.operations):
        if op.name == "arith.cmpi" and ir.IntegerAttr(op.attributes["predicate"]).value in _SIGNS and _is_column(op.operands[0], block):
            bound = op.operands[1]
            fixed = isinstance(bound.owner, ir.Block) or bound.owner.operation.block != block or bound.owner.name == "tensor.extract"
            if fixed and bound != block.arguments[1] and printer.type_of(bound) == "int":
                found.add(op)
    return found


def _is_column(value: ir.Value, block: ir.Block) -> bool:
    """Whether a number is the column of an element, of one type of integers or another."""
    if value == block.arguments[1]:
        return True
    cast = maker(value, "arith.index_cast")
    return cast is not None and cast.operands[0] == block.arguments[1]


def _needs(op: ir.Operation, compared: set[ir.Operation]) -> bool:
    """Whether an op is printed that uses an element's place: not what reads fragments and tiles, or compares columns and nothing else."""
    if op.name == "arith.index_cast":
        return any(_needs(use.owner.operation, compared) for use in op.results[0].uses)
    return op.name != "tensor.extract" and op not in compared and not (op.name == "memref.load" and is_tile(op.operands[0].type))


def _float_of_place(op: ir.Operation, block: ir.Block) -> str | None:
    """ "row" or "column" where an op makes a float of an element's own place in a tile."""
    if op.name != "arith.sitofp" or len(block.arguments) != 2 or str(op.results[0].type) != "f32":
        return None
    source = op.operands[0]
    if not isinstance(source.owner, ir.Block) and source.owner.name == "arith.index_cast":
        source = source.owner.operation.operands[0]
    return next((axis for argument, axis in zip(block.arguments, ("row", "column"), strict=True) if source == argument), None)


def _base(printer: WarpPrinter, tile: Fragment, axis: str, lane: str) -> str:
    """A float of the thread's part of a place; small integers are exact, so that a register's part can be added to it.

    A conversion for each register would cost more, and compilers would make all of them early, in registers of their own.
    """
    name = printer.names.fresh(f"{axis}_float")
    printer.line(f"const float {name} = (float)({along(lane, tile.layout.lanes, axis)} + {along('warp', tile.layout.warps, axis)});")
    return name


def _is_line(op: ir.Operation, floats: dict[ir.Value, str]) -> bool:
    """Whether an element's own place is multiplied by a number that is the same for all of a map."""
    if op.name != "arith.mulf":
        return False
    slopes = [value for value in op.operands if value not in floats]
    return len(slopes) == 1 and (isinstance(slopes[0].owner, ir.Block) or slopes[0].owner.operation.block != op.block)


def _line(printer: WarpPrinter, op: ir.Operation, floats: dict[ir.Value, str], bases: dict[str, str]) -> tuple[str, str, str]:
    """The slope, its product with the thread's part of a place, and along what: a register's part takes one multiply-add with a literal."""
    a, b = op.operands
    slope, axis = (printer.printed[b], floats[a]) if a in floats else (printer.printed[a], floats[b])
    name = printer.names.fresh(f"of_{axis}")
    printer.line(f"const float {name} = {slope} * {bases[axis]};")
    return slope, name, axis


def _element(printer: WarpPrinter, value: ir.Value, target: str, kind: str, result: ir.Value) -> None:
    found = element(result.type.element_type)
    if kind:
        at = f"{target}[{printer.row_index}]"
        printer.line(f"{at} = {combined(printer, kind, at, printer.printed[value])};")
    elif found.packed == 1:
        printer.line(f"{target}[r] = {printer.printed[value]};")
    else:
        wide = widened(value)
        text = printer.printed[wide]
        text = f"{found.widen}({text})" if wide.type == result.type.element_type else text
        low = f"{target}_low"
        if found.packed == 2:
            printer.line(f"if (r % 2) {target}[r / 2] = {found.pack}({low}, {text});", f"else {low} = {text};")
            return
        four = _QUARTER.format(target=target, pack=found.pack, low=low)
        printer.line(f"{low}[r % 8] = {text};", f"if (r % 2 && r / 4 % 2) {four};")


def _shape(op: ir.Operation, made: Sequence[Fragment | None]) -> Fragment:
    """A fragment that the map goes over: one that it makes, or, where it only reduces, a tile of its shape."""
    shape, first = tuple(op.attributes["shape"]), next(f for f in made if f is not None)
    own = next((f for f, kind in zip(made, plain(op, "reductions"), strict=True) if f is not None and not kind), None)
    return own if own is not None else Fragment(first.instruction, "tile", shape, "f32")


def _extract(printer: WarpPrinter, op: ir.Operation, tile: str, *places: str) -> None:
    """The element of a tile in register r; of row values and parts, the one of its row."""
    found = fragment(op.operands[0].type)
    if found is None:
        raise UnsupportedError("warp: 'tensor.extract' reads fragments; captured tensors are memrefs")
    of = element(found.element)
    if of.packed > 2:
        raise UnsupportedError(f"warp: no elements of {of.name} are read from fragments ({source_line(op.location)})")
    index = "r" if found.form == "tile" else printer.row_index
    if of.packed == 1:
        printer.printed[op.results[0]] = f"{tile}[{index}]"
        return
    both, result = printer.names.fresh("pair"), op.results[0]
    printer.line(f"const float2 {both} = {of.unpack}({tile}[({index}) / 2]);")
    text = f"({index}) % 2 ? {both}.y : {both}.x"
    if all(use.owner.operation.name == "arith.extf" for use in result.uses):
        printer.printed[result] = f"({text})"  # as it is: to round it again takes as long as all else that a map does with it
    else:
        printer.define(result, f"{of.narrow}({text})", "x")


def _extend(printer: WarpPrinter, op: ir.Operation, a: str) -> None:
    """An element of a fragment is unpacked already where nothing else asks for it."""
    source = op.operands[0]
    read = maker(source, "tensor.extract") or maker(source, "memref.load")
    unpacked = read is not None and (read.name == "tensor.extract" or is_tile(read.operands[0].type))
    if not unpacked or str(op.results[0].type) != "f32" or any(use.owner.operation.name != "arith.extf" for use in source.uses):
        scalars.RULES["arith.*"](printer, op, a)
    else:
        printer.define(op.results[0], a[1:-1], "x")


def _reduce(printer: WarpPrinter, op: ir.Operation, parts: str) -> None:
    """Exchanges between the lanes of a row."""
    name, found, kind = printer.declare(op.results[0], "rows"), fragment(op.operands[0].type), plain(op, "kind")
    if found is None:
        raise UnsupportedError(f"warp: no parts of rows in {op.operands[0].type}")
    with printer.writer.unrolled("h", found.elements):
        printer.line(f"{name}[h] = {parts}[h];")
        for distance in found.layout.exchanges():
            other = f"__shfl_xor_sync(0xffffffffu, {name}[h], {distance})"
            printer.line(f"{name}[h] = {combined(printer, kind, f'{name}[h]', other)};")


def _vote(printer: WarpPrinter, op: ir.Operation, flags: str) -> None:
    found = fragment(op.operands[0].type)
    some = " | ".join(f"{flags}[{n}]" for n in range(found.elements if found is not None else 0))
    printer.line(f"const bool {printer.name(op.results[0], 'some')} = __any_sync(0xffffffffu, {some});")


def _reaches(printer: WarpPrinter, op: ir.Operation, tile: str) -> None:
    """Compares the elements of two registers at a time with a limit by their bits."""
    limit = op.attributes["limit"]
    bits = struct.unpack("<H", struct.pack("<e", limit.value))[0] if str(limit.type) == "f16" else _bf16(limit.value)
    printer.line(f"const bool {printer.name(op.results[0], 'some')} = attn::any_reaches<{bits:#x}>({tile});")


def _bf16(value: float) -> int:
    """The bits of a number."""
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def _kept(printer: WarpPrinter, op: ir.Operation, *operands: str) -> None:
    """Dropout's bit of one element; its Philox words are made again for each."""
    printer.define(op.results[0], f"{printer.helper('philox_kept')}({', '.join(operands)})", "kept")


def _columns(printer: WarpPrinter, op: ir.Operation, tile: str) -> None:
    """Copies of registers, which compilers leave out."""
    whole, count = op.operands[0].type, count_of(op.results[0].type)
    name, first = printer.declare(op.results[0], "columns"), plain(op, "first") * count_of(whole) // whole.shape[1]
    with printer.writer.unrolled("r", count):
        printer.line(f"{name}[r] = {tile}[{first} + r];")


RULES: dict[str, Rule] = {
    "arith.extf": _extend,
    "attn.kept": _kept,
    "tensor.extract": _extract,
    "warp.columns": _columns,
    "warp.map": _map,
    "warp.reaches": _reaches,
    "warp.reduce": _reduce,
    "warp.vote": _vote,
}
