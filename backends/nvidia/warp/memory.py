"""Rules of shared memory: buffers, tiles in their stages, numbers, and fragments that go there and come from there."""

from collections.abc import Iterable
from typing import Any

from attn_mlir.backends.nvidia.forming.facts import said
from attn_mlir.backends.nvidia.hopper.wgmma import COLUMNS, ROW_BYTES
from attn_mlir.backends.nvidia.warp import scalars
from attn_mlir.backends.nvidia.warp.elements import element
from attn_mlir.backends.nvidia.warp.printer import Address, HalfAtom, Rule, SideBySide, WarpPrinter, count_of, plain
from attn_mlir.diagnostics import source_line
from attn_mlir.dialects.regions import around
from attn_mlir.dialects.warp.kinds import bytes_of, swizzle_of
from attn_mlir.dialects.warp.layouts import Fragment, fragment
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

ALIGNMENT = 1024
"""Of a swizzled tile: the swizzle of 128 bytes permutes within 8 rows."""
SWIZZLES = (ROW_BYTES, ROW_BYTES // 2, ROW_BYTES // 4)
_NUMBERS = 16
HEADER = "attn_mma.cuh"
"""Helpers of what single warps multiply and copy."""
TILE_ROWS = "attn_tile_rows.cuh"
"""Helpers of tiles whose rows are not all there."""
MMA = ("mma16", "mma32")
"""Layouts of what they multiply."""


def _alloc(printer: WarpPrinter, op: ir.Operation) -> None:
    """A stage holds swizzle atoms whose rows have as many bytes as the swizzle, one after the other; numbers lie as they are."""
    type_ = op.results[0].type
    swizzle, size = swizzle_of(type_), bytes_of(type_)
    if swizzle not in (0, *SWIZZLES) or (type_.rank == 3 and not swizzle):
        raise UnsupportedError(
            f"warp: tiles for {printer.target.arch} are swizzled over {', '.join(map(str, SWIZZLES))} bytes, got {type_} "
            f"({source_line(op.location)})"
        )
    name = printer.name(op.results[0], "tiles" if swizzle else "numbers")
    if not swizzle and str(type_.element_type) == "f32":
        address = printer.names.fresh(f"{name}_address")
        printer.line(f"const uint32_t {address} = {printer.shared(size, _NUMBERS)};")
        printer.line(f"float *const {name} = reinterpret_cast<float *>(memory + ({address} - shared));")
        return
    printer.line(f"const uint32_t {name} = {printer.reserved.pop(op.results[0], '') or printer.shared(size, _NUMBERS)};")
    if swizzle:
        printer.printed[op.results[0]] = Address(name, type_.shape[1] * swizzle, swizzle)


def reserve(printer: WarpPrinter, ops: Iterable[ir.Operation]) -> None:
    """Gives swizzled tiles the begin of shared memory, where nothing is lost between them; barriers and numbers lie behind."""
    for op in ops:
        if op.name == "warp.alloc" and swizzle_of(op.results[0].type):
            printer.reserved[op.results[0]] = printer.shared(bytes_of(op.results[0].type), ALIGNMENT)


def _view(printer: WarpPrinter, op: ir.Operation, buffer: Any, stage: str, row: str, column: str) -> None:
    type_ = op.operands[0].type
    width = columns_of(type_)
    whole = _is_multiple(op.operands[3], width)
    if not isinstance(buffer, Address) or not (whole or _is_half(op, width)):
        raise UnsupportedError(
            f"warp: a tile begins at a multiple of {width} columns, or is half of as many and written ({source_line(op.location)})"
        )
    atoms = str(int(column) // width * buffer.atom) if column.isdigit() else f"{scalars.operand(column)} / {width} * {buffer.atom}"
    if not whole:
        atoms = f"{scalars.operand(column)} / {width} * {buffer.atom}"
    terms = [f"{stage} * {bytes_of(type_) // type_.shape[0]}", f"{row} * {buffer.row}", atoms]
    text = " + ".join([buffer.address, *(term for term in terms if not term.startswith("0 ") and term != "0")])
    if text != buffer.address:
        printer.line(f"const uint32_t {printer.name(op.results[0], 'tile')} = {text};")
        text = printer.printed[op.results[0]]
    half = "" if whole else f"{scalars.operand(column)} % {width} * {element(type_.element_type).bytes}"
    printer.printed[op.results[0]] = HalfAtom(text, buffer.atom, buffer.row, half) if half else Address(text, buffer.atom, buffer.row)


def _is_half(view: ir.Operation, width: int) -> bool:
    """Whether a tile is half of a swizzle atom of 128 bytes, from a multiple of as many columns on, and matrices are written to it."""
    columns, written = width // 2, {use.owner.operation.name for use in view.results[0].uses} == {"warp.write"}
    fits = swizzle_of(view.operands[0].type) == ROW_BYTES and view.results[0].type.shape[1] == columns
    return written and fits and _is_multiple(view.operands[3], columns)


def _rows_of_heads(printer: WarpPrinter, op: ir.Operation, source: ir.Value) -> None:
    """Nothing is printed: copies and stores of it name places of the tensor."""
    printer.arguments.pack(op.results[0], source, plain(op, "heads"))
    printer.printed[op.results[0]] = op.results[0]


def columns_of(type_: ir.Type) -> int:
    """Columns of a swizzle atom of a tile's elements."""
    return swizzle_of(type_) // element(type_.element_type).bytes


def _is_multiple(value: ir.Value, of: int) -> bool:
    """Whether a number is known to be a multiple of another one."""
    op = None if isinstance(value.owner, ir.Block) else value.owner.operation
    match op.name if op is not None else "":
        case "arith.constant":
            return ir.IntegerAttr(op.attributes["value"]).value % of == 0
        case "arith.muli":
            return any(_is_multiple(each, of) for each in op.operands)
        case "arith.addi" | "arith.subi":
            return all(_is_multiple(each, of) for each in op.operands)
    return False


def _number_at(op: ir.Operation, memory: str, places: tuple[str, ...], type_: ir.MemRefType) -> str:
    if str(type_.element_type) != "i32":
        raise UnsupportedError(f"warp: numbers in shared memory are i32, got {type_} ({source_line(op.location)})")
    strides = [4 * type_.shape[1], 4]
    return " + ".join([memory, *(f"{place} * {stride}" for place, stride in zip(places, strides, strict=True) if place != "0")])


def _load(printer: WarpPrinter, op: ir.Operation, memory: Any, *places: str) -> None:
    if not isinstance(memory, str):
        scalars.read_global(printer, op, memory, *places)
        return
    if str(op.results[0].type) == "f32":
        stage, place = places
        printer.define(op.results[0], f"{memory}[{stage} * {op.operands[0].type.shape[1]} + {scalars.operand(place)}]", "of_row")
        return
    printer.define(op.results[0], f"attn::load_shared_int({_number_at(op, memory, places, op.operands[0].type)})", "told")


def _store(printer: WarpPrinter, op: ir.Operation, value: str, memory: Any, *places: str) -> None:
    if not isinstance(memory, str):
        raise UnsupportedError(f"warp: '{op.name}' writes numbers in shared memory ({source_line(op.location)})")
    printer.line(f"attn::store_shared_int({_number_at(op, memory, places, op.operands[1].type)}, {value});")


def _concat(printer: WarpPrinter, op: ir.Operation, first: Any, second: Any) -> None:
    printer.printed[op.results[0]] = SideBySide(first, second, op.operands[0].type.shape[1])


def factor_of(memory: Address, tile: Fragment, transposed: bool = False, lane: str = "lane") -> str:
    """What each warp reads its rows of a factor from, in the layout of a fragment."""
    return f"attn::{'Transposed' if transposed else 'Shared'}Factor{{{memory.tile}, warp * {tile.layout.rows_of_warp}, {lane}}}"


def _matrices(op: ir.Operation, tile: ir.Type, memory: Address, lane: str) -> str:
    """The address that a lane gives for the 16 x 16 elements number c of its warp's rows."""
    if element(tile.element_type).bits != 16:
        raise UnsupportedError(f"warp: matrices move to and from shared memory in 16 bits, got {tile} ({source_line(op.location)})")
    atom = f" + c / 4 * {memory.atom}" if tile.shape[1] > COLUMNS else ""
    # Compilers do not find that the swizzle of all c needs one exclusive or of the lane, where the sum is swizzled.
    half = f" ^ {memory.within}" if isinstance(memory, HalfAtom) else ""
    return f"{memory.address}{atom} + (warp * 16 + {lane} % 16) * {ROW_BYTES} + (({lane} % 8 ^ {lane} / 16) * 16 ^ c % 4 * 32{half})"


def _write(printer: WarpPrinter, op: ir.Operation, tile: str, memory: Address) -> None:
    """stmatrix, four 8 x 8 matrices at a time; of f32, or where chips have none, two columns of a thread at a time."""
    found = fragment(op.operands[0].type)
    if found is not None and found.instruction in MMA and element(found.element).bits == 16:
        printer.headers[HEADER] = None
        kind = f"{found.shape[1]}, {found.layout.rows_of_warp // 16}"
        printer.line(f"attn::store_factor<{kind}>({tile}, {factor_of(memory, found, lane=lane_here(printer))});")
        return
    if not printer.target.bulk_copies:
        raise UnsupportedError(f"warp: {printer.target.arch} writes fragments of mma.sync in 16 bits ({source_line(op.location)})")
    if element(op.operands[0].type.element_type).bits == 32:
        _write_pairs(printer, op, tile, memory)
        return
    at = _matrices(op, op.operands[0].type, memory, lane_here(printer))
    with printer.writer.unrolled("c", count_of(op.operands[0].type) // 4):
        printer.line(f"attn::store_matrices({at}, {', '.join(f'{tile}[4 * c + {n}]' for n in range(4))});")


def lane_here(printer: WarpPrinter) -> str:
    """The lane, as compilers see it only here: addresses made of it alone are the same in every iteration of a loop, and would be kept.

    They do not see either that it is no less than 0: where `unsigned_lanes` in the schedule is 1, quotients take fewer instructions.
    """
    name = printer.names.fresh("lane_here")
    # Helpers of mma.sync take lanes in braces, which let no number lose its sign.
    unsigned = printer.target.bulk_copies and said(printer.kernel, "unsigned_lanes", "0") == "1"
    kind = "unsigned" if unsigned else "int"
    printer.line(f"const {kind} {name} = attn::opaque(lane);")
    return name


def _write_pairs(printer: WarpPrinter, op: ir.Operation, tile: str, memory: Address) -> None:
    """Odd rows write two groups of columns the other way round, so that the rows of a quarter warp meet different banks."""
    groups = op.operands[0].type.shape[1] // 8
    lane, row, to = lane_here(printer), printer.names.fresh("own_row"), printer.names.fresh("own_chunk")
    printer.line(f"const int {row} = warp * 16 + {lane} / 4;")
    printer.line(f"const uint32_t {to} = ({lane} % 4 / 2 ^ ({row} & 1) * 4 ^ {lane} / 4) * 16;")  # swizzled
    with printer.writer.unrolled("c", groups // 2), printer.writer.unrolled("h", 2):
        group = "c / 2 * 4 + c % 2"
        for second in ("0", "2"):
            at = f"{memory.address} + c / 2 * {memory.atom} + ({row} + 8 * h) * {ROW_BYTES} + {lane} % 2 * 8 + "
            at += f"({to} ^ c % 2 * 32 ^ {int(second) * 32})"
            values = [f"{row} & 1 ? {tile}[4 * ({group} + {2 - int(second)}) + 2 * h{e}] : {tile}[4 * ({group} + {second}) + 2 * h{e}]"
                      for e in ("", " + 1")]  # fmt: skip
            printer.line(f"attn::store_shared2({at}, {', '.join(values)});")


def _read(printer: WarpPrinter, op: ir.Operation, memory: Address) -> None:
    """ldmatrix, four 8 x 8 matrices at a time."""
    found = fragment(op.results[0].type)
    if found is not None and found.instruction in MMA and element(found.element).bits == 16:
        printer.headers[HEADER] = None
        kind = f"{found.shape[1]}, {found.layout.rows_of_warp // 16}"
        printer.line(f"attn::load_factor<{kind}>({printer.declare(op.results[0], 'tile')}, {factor_of(memory, found)});")
        return
    at, name = _matrices(op, op.results[0].type, memory, "lane"), printer.declare(op.results[0], "tile")
    with printer.writer.unrolled("c", count_of(op.results[0].type) // 4):
        quad = printer.names.fresh("matrices")
        printer.line(f"uint32_t {quad}[4];", f"attn::load_matrices({at}, {quad});")
        printer.line(f"for (int r = 0; r < 4; ++r) {name}[4 * c + r] = {quad}[r];")


def _read_transposed(printer: WarpPrinter, op: ir.Operation, memory: Address) -> None:
    """ldmatrix that transposes: sixteen columns of the fragment, which are rows in memory, at a time."""
    if swizzle_of(op.operands[0].type) != ROW_BYTES:
        raise UnsupportedError(
            f"warp: tiles in rows of {ROW_BYTES} bytes are transposed, got {op.operands[0].type} ({source_line(op.location)})"
        )
    name, lane = printer.declare(op.results[0], "turned"), lane_here(printer)
    at = _turned_matrices(memory, lane)
    with printer.writer.unrolled("c", count_of(op.results[0].type) // 4):
        quad = printer.names.fresh("matrices")
        printer.line(f"uint32_t {quad}[4];", f"attn::load_matrices_transposed({at}, {quad});")
        printer.line(f"for (int r = 0; r < 4; ++r) {name}[4 * c + r] = {quad}[r];")


def _write_transposed(printer: WarpPrinter, op: ir.Operation, tile: str, memory: Address) -> None:
    """stmatrix that transposes: sixteen columns of the fragment, which are rows in memory, at a time."""
    if swizzle_of(op.operands[1].type) != ROW_BYTES:
        raise UnsupportedError(
            f"warp: tiles in rows of {ROW_BYTES} bytes are transposed, got {op.operands[1].type} ({source_line(op.location)})"
        )
    at = _turned_matrices(memory, lane_here(printer))
    with printer.writer.unrolled("c", count_of(op.operands[0].type) // 4):
        printer.line(f"attn::store_matrices_transposed({at}, {', '.join(f'{tile}[4 * c + {n}]' for n in range(4))});")


def _clear_rows(printer: WarpPrinter, op: ir.Operation, memory: Address, first: str) -> None:
    type_ = op.operands[0].type
    printer.headers[TILE_ROWS] = None
    kind = f"{type_.shape[0]}, {bytes_of(type_) // type_.shape[0] // ROW_BYTES}, {memory.atom}"
    printer.line(f"attn::clear_rows<{kind}>({memory.address}, {first}, warp, {lane_here(printer)});")


def _turned_matrices(memory: Address, lane: str) -> str:
    """The address that a lane gives for the transposes of the 16 x 16 elements number c of its warp's rows."""
    row, column = f"c * 16 + {lane} / 16 * 8 + {lane} % 8", f"(warp * 16 + {lane} / 8 % 2 * 8) * 2"
    return f"{memory.address} + attn::swizzle_128(({row}) * {ROW_BYTES} + {column})"


def _transpose(printer: WarpPrinter, op: ir.Operation, source: Address, target: Address) -> None:
    """Four 8 x 8 matrices of pairs of bytes at a time: ldmatrix turns the pairs, `prmt` parts them, stmatrix writes rows of the transpose.

    They are of 32 rows and 16 columns. A lane then has places 4 t to 4 t + 3 of sixteen for two columns: rows 2 t, 2 t + 1, and both + 8.
    A matrix has even columns of the first half of the lanes and odd ones of the other, so that its rows lie in different banks.
    """
    rows, columns = op.operands[0].type.shape
    warps = plain(next(above for above in around(op) if above.name == "warp.role"), "warps")
    lane = lane_here(printer)
    even, odd, taken, given = (printer.names.fresh(name) for name in ("even", "odd", "taken", "given"))
    printer.line(f"const unsigned {even} = {lane} < 16 ? 0x6420 : 0x7531, {odd} = {even} ^ 0x1111;")
    printer.line("#pragma unroll 1")
    with printer.writer.block(f"for (int c = warp; c < {columns // 16}; c += {warps})"):
        # Of a lane's addresses only constants change from one step to the next: bits that the swizzle does not move, and swizzle atoms.
        column = f"c * 16 / {source.row} * {source.atom} + attn::swizzle<{source.row}>({lane} * {source.row} + c * 16 % {source.row})"
        row = f"(c * 16 + {lane} % 8 * 2 + ({lane} / 8 + {lane} / 4) % 2)"
        printer.line(f"const uint32_t {taken} = {source.address} + {column};")
        printer.line(f"const uint32_t {given} = {target.address} + attn::swizzle<{target.row}>({row} * {target.row} + {lane} / 16 * 16);")
        with printer.writer.unrolled("r", rows // 32):
            quad, turned = printer.names.fresh("pairs"), printer.names.fresh("turned")
            printer.line(f"uint32_t {quad}[4], {turned}[4];")
            printer.line(f"attn::load_matrices_transposed({taken} + r * {32 * source.row}, {quad});")
            with printer.writer.unrolled("h", 4):
                printer.line(f"{turned}[h] = __byte_perm({quad}[h / 2 * 2], {quad}[h / 2 * 2 + 1], h % 2 ? {odd} : {even});")
            at = f"({given} ^ r * 32 % {target.row}) + r * 32 / {target.row} * {target.atom}"
            printer.line(f"attn::store_matrices({at}, {', '.join(f'{turned}[{n}]' for n in range(4))});")


RULES: dict[str, Rule] = {
    "memref.load": _load,
    "memref.store": _store,
    "warp.alloc": _alloc,
    "warp.clear_rows": _clear_rows,
    "warp.concat": _concat,
    "warp.read": _read,
    "warp.read_transposed": _read_transposed,
    "warp.transpose": _transpose,
    "warp.rows_of_heads": _rows_of_heads,
    "warp.view": _view,
    "warp.write": _write,
    "warp.write_transposed": _write_transposed,
}
