"""Prints `tile.map`: over the rows of a chunk, or over the elements that threads have of a tile."""

from collections.abc import Iterator
from contextlib import contextmanager

from attn_mlir.backends.gpu.residuals import RESIDUAL_SCALE
from attn_mlir.backends.gpu.scalars import dependence, frontier
from attn_mlir.backends.gpu.structure import body, hint, is_row, widened, yielded
from attn_mlir.backends.nvidia.scans.core import ROW, ScanCore
from attn_mlir.backends.nvidia.scans.layout import HALVES, ScanGrid, SharedPlace
from attn_mlir.backends.nvidia.scans.loops import element_of, extents, own_reads, shape_of, sums_memory, sums_of
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import walk

_I = frozenset({0})
_READS = ("tensor.extract", "memref.load")
_ROWS_AHEAD = 4
"""Rows whose numbers a warp asks for before it adds up."""


def owner_of(rows: int, columns: int) -> str:
    """How threads share the elements of a tile of this shape."""
    return f"{rows}x{columns}"


@contextmanager
def rows_of(core: ScanCore, grid: ScanGrid) -> Iterator[None]:
    """A scope for each row `i` of a tile that a thread has elements of; `column` is the first one of its warp's parts."""
    across = grid.across
    first = f"warp / {across} * {16 * grid.high} + " if grid.down > 1 else ""
    core.writer.line("#pragma unroll")
    with core.scope(f"for (int m = 0; m < {grid.high}; ++m)"), core.unrolled("r", 2):
        core.writer.line(f"const int i = {first}lane / 4 + 16 * m + 8 * r, column = warp % {across} * {8 * grid.wide} + lane % 4 * 2;")
        yield


def _is_own(read: ir.Operation, block: ir.Block) -> bool:
    """Whether a map of one dimension reads a tile of one at its own place."""
    return is_row(read.operands[0].type) and list(read.operands)[1:] == list(block.arguments)


class ScanMaps:
    """Prints maps."""

    def __init__(self, core: ScanCore) -> None:
        self.core = core

    def print(self, op: ir.Operation) -> None:
        """Prints one map."""
        if len(list(op.operands)) == 1:
            self._row(op)
        elif sums_memory(op):
            self._sum(op)
        elif self.core.layout.is_shared(extents(op)):
            self._pairs(op)
        else:
            self._few(op)

    def declare(self, value: ir.Value, name: str = "x") -> str:
        """Declares the registers of a tile."""
        core = self.core
        core.tiles[value] = core.names.fresh(hint(value, name))
        core.writer.line(f"float {core.tiles[value]}[{self.core.layout.grid(shape_of(value)).registers}];")
        return core.tiles[value]

    def scatter(self, value: ir.Value) -> None:
        """Copies a tile from registers to where others read it."""
        core = self.core
        if not (core.layout.in_registers(value) and core.layout.read_across(value)):
            return
        place, (rows, columns) = core.layout.places[value], shape_of(value)
        core.touch([(place, True, owner_of(rows, columns))])
        self.keep(core.tiles[value], place)

    def keep(self, name: str, place: SharedPlace) -> None:
        """Writes registers to a tile of f32."""
        grid = self.core.layout.grid(place.shape)
        with rows_of(self.core, grid), self.core.unrolled("n", grid.wide), self.core.unrolled("c", 2):
            self.core.writer.line(f"{self.core.item_of(place, 'i', 'column + 8 * n + c')} = {name}[(m * {grid.wide} + n) * 4 + 2 * r + c];")

    # ---- rows

    def _row(self, op: ir.Operation) -> None:
        core, block = self.core, body(op)
        (length,) = extents(op)
        reads = [read for read in walk(op) if read.name in _READS]
        own = [read for read in reads if read in core.layout.rows or _is_own(read, block)]
        places = [core.layout.places[result] for result in op.results]
        core.touch([*core.reads(reads, ROW, own), *((place, True, ROW) for place in places)])
        with core.each_row(length):
            self._store(op, "i")

    def _few(self, op: ir.Operation) -> None:
        """Elements that warps cannot share as they share a product's: neighbouring threads have neighbouring columns."""
        core = self.core
        rows, columns = extents(op)
        if sums_of(op):
            self._sum(op)
            return
        places = [core.layout.places[result] for result in op.results]
        core.touch([*core.reads(read for read in walk(op) if read.name in _READS), *((place, True, "") for place in places)])
        with core.scope(f"for (int item = threadIdx.x; item < {rows * columns}; item += {core.layout.threads})"):
            core.writer.line(f"const int i = item / {columns}, j = item % {columns};")
            self._store(op, "i", "j")

    def _store(self, op: ir.Operation, *indices: str) -> None:
        """The elements of a map at these indices go to their places."""
        core, block = self.core, body(op)
        for argument, index in zip(block.arguments, indices, strict=True):
            core.scalars.bind(argument, index)
        texts = [core.value(value) for value in yielded(block)]
        for text, result in zip(texts, op.results, strict=True):
            core.writer.line(f"{core.item_of(core.layout.places[result], *indices)} = {text};")

    def _sum(self, op: ir.Operation) -> None:
        """Sums along rows, each by a warp, whose lanes read neighbouring numbers; along few, or where numbers lie in memory."""
        core, block = self.core, body(op)
        rows, columns = extents(op)
        sums, values = sums_of(op), yielded(block)
        if len(sums) < len(values) or any(kind != "sum" for kind in op.opview.kinds()):
            raise UnsupportedError(f"scans: a map of {rows} rows of {columns} columns that does more than add them up ({op.location})")
        places = [core.layout.places[op, number] for number in range(len(sums))]
        core.touch([*core.reads(read for read in walk(op) if read.name in _READS), *((place, True, "") for place in places)])
        core.writer.line(f"#pragma unroll {_ROWS_AHEAD}")
        with core.scope(f"for (int i = warp; i < {rows}; i += {core.layout.warps})"):
            totals = [core.names.fresh("total") for _ in sums]
            core.writer.line(*(f"float {total} = 0.0f;" for total in totals))
            core.writer.line("#pragma unroll")
            with core.scope(f"for (int j = lane; j < {columns}; j += 32)"):
                core.scalars.bind(block.arguments[0], "i")
                core.scalars.bind(block.arguments[1], "j")
                for value, total in zip(values, totals, strict=True):
                    core.writer.line(f"{total} += {core.value(value)};")
            for total, place in zip(totals, places, strict=True):
                core.writer.line(f"{total} = attn::sum_of_warp({total});", f"if (lane == 0) ((float *){core.at(place)})[i] = {total};")
        for result, place in zip(sums, places, strict=True):
            core.sums[result] = (place, 1)

    # ---- pairs

    def _pairs(self, op: ir.Operation) -> None:
        core, block = self.core, body(op)
        rows, columns = extents(op)
        grid, owner = core.layout.grid((rows, columns)), owner_of(rows, columns)
        sums = sums_of(op)
        values, results = yielded(block), list(op.results)[: len(list(op.results)) - len(sums)]
        if any(kind != "sum" for kind in op.opview.kinds()):
            raise UnsupportedError(f"scans: rows are added up, nothing else ({op.location})")
        reads = [read for read in walk(op) if read.name in _READS]
        own = [read for read in own_reads(op) if shape_of(read.operands[0]) == (rows, columns)]
        shared = [result for result in results if not core.layout.in_registers(result)]
        parts = [core.layout.places[op, number] for number in range(len(sums))]
        core.touch(
            [
                *core.reads(reads, owner, own),
                *((core.layout.places[result], True, owner) for result in shared),
                *((place, True, "") for place in parts),
            ]
        )
        for result in results:
            if result not in shared:
                self.declare(result)
        for value in dict.fromkeys(read.operands[0] for read in own):
            if value in core.layout.held and value not in core.held:
                self._hold(value, grid)
        with core.scope(None):
            for value in frontier(block, dependence(block), frozenset()):
                core.value(value)
            halves = {result: core.names.fresh("packed") for result in results if element_of(result) in HALVES}
            core.writer.line(*(f"uint32_t {name}[{grid.registers // 2}];" for name in halves.values()))
            with rows_of(core, grid):
                self._elements(op, grid, own, list(zip(values, results, strict=False)), values[len(results) :], parts, halves)
            for result, name in halves.items():
                place = core.at(core.layout.places[result])
                core.writer.line(f"attn::keep_packed<{rows}, {columns}, {grid.down}>({place}, {name});")
        for result in results:
            self.scatter(result)
        for result, place in zip(sums, parts, strict=True):
            core.sums[result] = (place, grid.across)

    def _elements(
        self,
        op: ir.Operation,
        grid: ScanGrid,
        own: list[ir.Operation],
        made: list[tuple[ir.Value, ir.Value]],
        terms: list[ir.Value],
        parts: list[SharedPlace],
        packed: dict[ir.Value, str],
    ) -> None:
        """Those of one row."""
        core, block = self.core, body(op)
        self._begin(op, grid)
        for value in frontier(block, dependence(block), _I):
            core.value(value)
        totals = [core.names.fresh("total") for _ in terms]
        core.writer.line(*(f"float {total} = 0.0f;" for total in totals))
        with core.unrolled("n", grid.wide):
            self._near(own, grid)
            self._twos(op)
            halves = {result: core.names.fresh("made") for _, result in made if element_of(result) in HALVES}
            core.writer.line(*(f"float {name}[2];" for name in halves.values()))
            with self._column(grid):
                for value, result in made:
                    self._assign(value, result, halves)
                for value, total in zip(terms, totals, strict=True):
                    core.writer.line(f"{total} += {core.value(value)};")
                core.element = None
            for result, name in halves.items():
                kind, target = element_of(result).upper(), f"{packed[result]}[(m * {grid.wide} + n) * 2 + r]"
                core.writer.line(f"{target} = attn::pack(attn::{kind}{{}}, {name}[0], {name}[1]);")
        core.pairs, core.twos = {}, {}
        for total, place in zip(totals, parts, strict=True):
            core.writer.line(f"{total} = attn::sum_of_row({total});")
            index = f"warp % {grid.across} * {grid.rows} + i"
            core.writer.line(f"if (lane % 4 == 0) ((float *){core.at(place)})[{index}] = {total};")
        core.grid = None

    def _begin(self, op: ir.Operation, grid: ScanGrid) -> None:
        for argument, name in zip(body(op).arguments, ("i", "j"), strict=True):
            self.core.scalars.bind(argument, name)
        self.core.grid = grid

    def _near(self, own: list[ir.Operation], grid: ScanGrid) -> None:
        """Reads two neighbouring elements of tiles of 16 bits at once."""
        core = self.core
        for value in dict.fromkeys(read.operands[0] for read in own if element_of(read.operands[0]) in HALVES):
            if value in core.held:
                core.pairs[value] = f"{core.held[value]}[(m * {grid.wide} + n) * 2 + r]"
                continue
            core.pairs[value] = core.names.fresh("pair")
            place = core.at(core.layout.places[value])
            core.writer.line(f"const uint32_t {core.pairs[value]} = attn::two<{grid.columns}>({place}, i, column + 8 * n);")

    def _twos(self, op: ir.Operation) -> None:
        """Reads two neighbouring elements of tiles of f32 at once, whose bytes a warp would pass twice over, one by one."""
        core, block = self.core, body(op)
        for read in walk(op):
            if read.name != "tensor.extract" or is_row(read.operands[0].type) or read.operands[2] != block.arguments[1]:
                continue
            value, row = read.operands[0], read.operands[1]
            own = row == block.arguments[0] and shape_of(value) == extents(op)
            if element_of(value) != "f32" or (own and (value in core.held or core.layout.in_registers(value))):
                continue
            if value in core.layout.places and dependence(block).get(row, _I) <= _I:
                text, place = core.value(row), core.layout.places[value]
                if (value, text) not in core.twos:
                    name = core.twos[value, text] = core.names.fresh("two")
                    at = f"((const float *){core.at(place)})[({text}) * {place.stride} + column + 8 * n]"
                    core.writer.line(f"const float2 {name} = *(const float2 *)&{at};")

    def _hold(self, value: ir.Value, grid: ScanGrid) -> None:
        """Brings a thread's elements of a tile to registers, for this map and those after it."""
        core, place = self.core, self.core.layout.places[value]
        name, half = core.names.fresh("held"), element_of(value) in HALVES
        core.writer.line(f"{'uint32_t' if half else 'float'} {name}[{grid.registers // 2 if half else grid.registers}];")
        with rows_of(core, grid), core.unrolled("n", grid.wide):
            if half:
                text = f"attn::two<{grid.columns}>({core.at(place)}, i, column + 8 * n)"
                core.writer.line(f"{name}[(m * {grid.wide} + n) * 2 + r] = {text};")
            else:
                text = f"*(const float2 *)&((const float *){core.at(place)})[i * {place.stride} + column + 8 * n]"
                core.writer.line(f"const float2 two = {text};")
                core.writer.line(*(f"{name}[(m * {grid.wide} + n) * 4 + 2 * r + {c}] = two.{'xy'[c]};" for c in (0, 1)))
        core.held[value] = name

    @contextmanager
    def _column(self, grid: ScanGrid) -> Iterator[None]:
        """A scope for each of two neighbouring elements."""
        with self.core.unrolled("c", 2):
            self.core.writer.line("const int j = column + 8 * n + c;")
            self.core.element = ("i", "j", f"(m * {grid.wide} + n) * 4 + 2 * r + c")
            yield

    def _assign(self, value: ir.Value, result: ir.Value, halves: dict[ir.Value, str]) -> None:
        core = self.core
        if result in halves:
            wide = widened(value)
            text = core.value(wide)
            if str(wide.type) in HALVES:
                text = f"attn::as_float({text})"
            core.writer.line(f"{halves[result]}[c] = {f'{RESIDUAL_SCALE}f * {text}' if result in core.residuals else text};")
        elif core.layout.in_registers(result):
            core.writer.line(f"{core.tiles[result]}[{core.element[2] if core.element else ''}] = {core.value(value)};")
        else:
            core.writer.line(f"{core.item_of(core.layout.places[result], 'i', 'j')} = {core.value(value)};")
