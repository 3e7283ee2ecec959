"""Prints what goes between global memory and tiles, early where a loop can load the tiles of its next iteration."""

from attn_mlir.backends.gpu.structure import body, is_row, operations
from attn_mlir.backends.nvidia.scans.core import ROW, ScanCore
from attn_mlir.backends.nvidia.scans.layout import HALVES, ScanGrid, WarpScanLayout
from attn_mlir.backends.nvidia.scans.loops import element_of, extents, follows_rows, shape_of
from attn_mlir.backends.nvidia.scans.maps import ScanMaps, owner_of, rows_of
from attn_mlir.mlir import ir


class ScanTraffic:
    """Prints loads and stores. `copies`: what copies rows to a tile; `arrived`: what waits for copies of tiles, in C++."""

    copies = "copy_rows"
    arrived = "attn::wait_copies();"

    def __init__(self, core: ScanCore, maps: ScanMaps) -> None:
        self.core, self.maps = core, maps

    @property
    def layout(self) -> WarpScanLayout:
        """Where tiles are."""
        return self.core.layout

    def load(self, op: ir.Operation) -> None:
        """`tile.load`."""
        core, source, result = self.core, op.operands[0], op.results[0]
        rows, columns = shape_of(result)
        if self.layout.is_early(op):
            self._take(result)
            return
        place = [core.value(value) for value in list(op.operands)[1:4]]
        count = core.value(op.operands[4])
        base = core.address(source, place, core.aligned(source))
        stride = core.arguments.stride(core.view(source).argument, 2)
        if not self.layout.in_registers(result):
            if element_of(result) not in HALVES:
                self._load_floats(op, base, stride, count)
                return
            home = self.layout.places[result]
            core.touch([(home, True, "")])
            core.writer.line(f"attn::copy_rows<{rows}, {columns}>({core.at(home)}, {base}, {stride}, {count});", "attn::wait_copies();")
            return
        name = self.maps.declare(result, "loaded")
        grid = self.layout.grid((rows, columns))
        with core.scope(""):
            core.writer.line(f"const float *from = {base};")
            with rows_of(core, grid), core.unrolled("n", grid.wide):
                core.writer.line(
                    f"const float2 both = *(const float2 *)(from + min(i, (int){count} - 1) * {stride} + column + 8 * n);",
                    f"{name}[(m * {grid.wide} + n) * 4 + 2 * r] = both.x;",
                    f"{name}[(m * {grid.wide} + n) * 4 + 2 * r + 1] = both.y;",
                )
        self.maps.scatter(result)

    def _take(self, result: ir.Value) -> None:
        """What was loaded early comes to registers where it has to."""
        core = self.core
        if self.layout.in_registers(result):
            home, grid = self.layout.places[result], self.layout.grid(shape_of(result))
            name = self.maps.declare(result, "loaded")
            with rows_of(core, grid), core.unrolled("n", grid.wide), core.unrolled("c", 2):
                core.writer.line(f"{name}[(m * {grid.wide} + n) * 4 + 2 * r + c] = {core.item_of(home, 'i', 'column + 8 * n + c')};")

    def fetch(self, loop: ir.Operation) -> None:
        """A function that starts to load the tiles of a chunk, and brings near what maps read of it."""
        core = self.core
        core.writer.line("const auto fetch = [&](int next, int stage) {")
        core.writer.indent += "  "
        with core.scope(None):
            core.scalars.indent = core.writer.indent
            core.scalars.bind(body(loop).arguments[0], "next")
            self.copy([group[0] for group in self.layout.ahead[loop]])
            self._bring_near(loop)
        core.writer.indent = core.writer.indent[:-2]
        core.writer.line("};")

    def copy(self, loads: list[ir.Operation]) -> None:
        """Starts to copy tiles to shared memory."""
        core = self.core
        for load in loads:
            rows, columns = shape_of(load.results[0])
            place = [core.value(value) for value in list(load.operands)[1:4]]
            count, source = core.value(load.operands[4]), load.operands[0]
            base, stride = core.address(source, place, core.aligned(source)), core.arguments.stride(core.view(source).argument, 2)
            home = core.at(self.layout.places[load.results[0]])
            core.writer.line(f"attn::{self.copies}<{rows}, {columns}>({home}, {base}, {stride}, {count});")

    def _bring_near(self, loop: ir.Operation) -> None:
        """Loads the numbers that maps of the next chunk read of each row, or asks for them: their first reader would wait for memory."""
        core, lines = self.core, dict[str, None]()
        for op in operations(body(loop)):
            if op.name != "tile.map" or op in self.layout.brought:
                continue
            block, rows = body(op), extents(op)[0]
            for read in operations(block):
                if read.name != "memref.load" or not follows_rows(list(read.operands)[1:], op, loop):
                    continue
                with core.scope(None):
                    core.scalars.bind(block.arguments[0], f"(int)(threadIdx.x % {rows})")
                    address = core.address(read.operands[0], [core.value(index) for index in list(read.operands)[1:]])
                    line = f"attn::bring_near({address});"
                    if read in self.layout.rows:
                        home = core.at(self.layout.places[read])
                        line = f"if (threadIdx.x < {rows}) attn::copy_4({home} + 4 * threadIdx.x, {address});"
                    lines[line] = None
        core.writer.line(*lines)

    def _load_floats(self, op: ir.Operation, base: str, stride: str, count: str) -> None:
        """Numbers that others read go to shared memory."""
        core, result = self.core, op.results[0]
        home, grid = self.layout.places[result], self.layout.grid(shape_of(result))
        core.touch([(home, True, owner_of(grid.rows, grid.columns))])
        with core.scope(""):
            core.writer.line(f"const auto *from = {base};")
            with rows_of(core, grid), core.unrolled("n", grid.wide), core.unrolled("c", 2):
                at = f"min(i, (int){count} - 1) * {stride} + column + 8 * n + c"
                core.writer.line(f"{core.item_of(home, 'i', 'column + 8 * n + c')} = from[{at}];")

    def store(self, op: ir.Operation) -> None:
        """`tile.store` of the rows that exist."""
        core, value, target = self.core, op.operands[0], op.operands[1]
        place = [core.value(operand) for operand in list(op.operands)[2:5]]
        count = core.value(op.operands[5])
        if is_row(value.type):
            (length,) = shape_of(value)
            home = core.sums[value][0] if value in core.sums else self.layout.places[value]
            core.touch([(home, False, "" if value in core.sums else ROW)])
            item = core.address(target, [*place[:2], f"{place[2]} + i"])
            with core.each_row(length, "" if count == str(length) else f"(int){count}"):
                core.writer.line(f"*({item}) = {core.row_item(value, 'i')};")
            return
        grid = self.layout.grid(shape_of(value))
        kind = str(ir.MemRefType(target.type).element_type)
        base = core.address(target, place, core.aligned(target))
        stride = core.arguments.stride(core.view(target).argument, 2)
        registers = self.layout.in_registers(value)
        if kind in HALVES and element_of(value) == kind:
            home = self.layout.places[value]
            core.touch([(home, False, "")])
            core.writer.line(f"attn::store_rows<{grid.rows}, {grid.columns}>({core.at(home)}, {base}, {stride}, {count});")
            return
        if not registers:
            core.touch([(self.layout.places[value], False, owner_of(grid.rows, grid.columns))])
        with core.scope(""):
            core.writer.line(f"auto *to = {base};")
            with rows_of(core, grid), core.scope(f"if (i < {count})"), core.unrolled("n", grid.wide):
                texts = [self._stored(value, grid, c) for c in ("0", "1")]
                if kind in HALVES:
                    text = (
                        f"*(uint32_t *)(to + i * {stride} + column + 8 * n) = attn::pack(attn::{kind.upper()}{{}}, {texts[0]}, {texts[1]});"
                    )
                else:
                    text = f"*(float2 *)(to + i * {stride} + column + 8 * n) = make_float2({texts[0]}, {texts[1]});"
                core.writer.line(text)

    def _stored(self, value: ir.Value, grid: ScanGrid, which: str) -> str:
        if self.layout.in_registers(value):
            return f"{self.core.tiles[value]}[(m * {grid.wide} + n) * 4 + 2 * r + {which}]"
        return f"attn::as_float({self.core.read_item(self.layout.places[value], 'i', f'column + 8 * n + {which}')})"
