"""Prints `tile.map`: over the rows of a chunk, over results of products, over pieces of loaded tiles."""

from dataclasses import replace

from attn_mlir.backends.amd.chunks.copies import ChunkCopies, lane_row, patch_row
from attn_mlir.backends.amd.chunks.core import ChunkCore, Place, layout_of
from attn_mlir.backends.amd.chunks.map_layouts import Reading, are_neighbours, groups_of
from attn_mlir.backends.amd.chunks.tiles import FLOATS, HALVES, THREADS, ChunkFragment, ChunkVector, Grid, Held, PartialSum, Uniform
from attn_mlir.backends.gpu.scalars import dependence, frontier
from attn_mlir.backends.gpu.structure import body, hint, is_row, widened, yielded
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_I, _J = frozenset({0}), frozenset({1})


class ChunkMaps:
    """Prints maps."""

    def __init__(self, core: ChunkCore, copies: ChunkCopies) -> None:
        self.core, self.copies = core, copies
        self.reading = Reading(core, copies)
        self.reserved: dict[ir.Operation, list[str]] = {}
        """The names of sums along rows that have room in shared memory."""

    def print(self, op: ir.Operation, names: dict[ir.Value, str] | None = None, slot: str = "") -> None:
        """Prints one map. `names`: registers that are declared already, by results; `slot`: where its sums go in what is reserved."""
        if len(list(op.operands)) == 1:
            self._rows(op, names or {})
        else:
            self._pairs(op, names or {}, slot)

    def target(self, op: ir.Operation, result: ir.Value, value: ir.Value) -> ChunkFragment | Held | ChunkVector:
        """The tile that a map makes, not declared yet."""
        core, type_ = self.core, ir.RankedTensorType(result.type)
        name = core.names.fresh(hint(widened(value), hint(result, "x")))
        if is_row(result.type):
            return ChunkVector(name, type_.shape[0], str(type_.element_type))
        element = str(type_.element_type)
        rows, columns = type_.shape
        if result in core.layout.fragments:
            return ChunkFragment(name, core.grid(result), element, rows, columns)
        return Held(name, rows, columns, element, self.reading.patches(op), core.padded(rows))

    def declare(self, tile: ChunkFragment | Held | ChunkVector) -> None:
        """Declares a tile's registers."""
        self.core.writer.line(f"{registers(tile)} {tile.name};")

    # ---- rows

    def _rows(self, op: ir.Operation, names: dict[ir.Value, str]) -> None:
        core, block = self.core, body(op)
        depends = dependence(block)
        self.reading.prepare(op, None)
        values = yielded(block)
        pairs = list(zip(values, op.results, strict=True))
        varying = [(value, result) for value, result in pairs if depends.get(value) or result in names]
        length = ir.RankedTensorType(op.results[0].type).shape[0]
        with core.scope(None):
            for value, result in pairs:
                if (value, result) not in varying:
                    core.tiles[result] = Uniform(core.value(value), length)
            if not varying:
                return
            tiles = []
            for value, result in varying:
                kind = str(ir.RankedTensorType(result.type).element_type)
                tile = ChunkVector(names[result], length, kind) if result in names else self.target(op, result, value)
                if result not in names:
                    self.declare(tile)
                core.tiles[result] = tile
                tiles.append(tile)
            with core.repeated("n", tiles[0].parts) as n:
                core.writer.line(f"const int i = {lane_row(n, length)};")
                core.scalars.bind(block.arguments[0], "i")
                core.place = Place(("i",), length, n)
                for (value, _), tile in zip(varying, tiles, strict=True):
                    core.writer.line(f"{tile.name}[{n}] = {core.value(value)};")
                core.place = None

    # ---- pairs

    def _pairs(self, op: ir.Operation, names: dict[ir.Value, str], slot: str = "") -> None:
        core, block = self.core, body(op)
        values, results = yielded(block), list(op.results)
        kinds = op.opview.kinds()
        if any(kind != "sum" for kind in kinds):
            raise UnsupportedError(f"amd: a chunk scan adds up rows, it does not take their {kinds[0]} ({op.location})")
        stored = len(results) - len(kinds)
        layout = self.reading.layout(op)
        tiles: list[ChunkFragment | Held] = []
        if not slot:
            self.reserve(op, 1)
        for value, result in zip(values[:stored], results[:stored], strict=True):
            tile = self.target(op, result, value)
            if result in names and isinstance(tile, Held):
                tile = replace(tile, name=names[result])
            elif not isinstance(tile, ChunkVector):
                self.declare(tile)
            if isinstance(tile, ChunkVector) or layout_of(tile) != layout:
                raise UnsupportedError(f"amd: a map mixes tiles that lie in registers in different ways ({op.location})")
            tiles.append(tile)
        sums = {name: core.names.fresh(name) for name in self.reserved[op]}
        with core.scope(None):
            for value in frontier(block, dependence(block), frozenset()):
                core.value(value)
            if isinstance(layout, Grid):
                self._fragments(op, layout, tiles, sums)
            else:
                self._held(op, layout, tiles, sums, slot or "0")
        core.tiles.update(zip(results[:stored], tiles, strict=True))
        for result, name in zip(results[stored:], sums, strict=True):
            core.tiles[result] = PartialSum(name, self.reading.extents(op)[0], groups_of(layout), slot or "0")

    def reserve(self, op: ir.Operation, slots: int) -> int:
        """Makes room for the parts of a map's sums along rows, in so many slots; returns the floats of one."""
        core, layout = self.core, self.reading.layout(op)
        names = [core.names.fresh("row_sum") for _ in ir.ArrayAttr(op.attributes["reductions"])]
        size = self.room(op)
        buffers = {name: core.memory.buffer(core.names.fresh(f"{name}_parts"), 4 * slots * size) for name in names}
        self.reading.prepare(op, layout)
        for name, buffer in buffers.items():
            core.copies[name, "parts"] = buffer
            core.memory.write(buffer)
        self.reserved[op] = names
        return size

    def room(self, op: ir.Operation) -> int:
        """Floats that the parts of a map's sum along rows take in shared memory."""
        return groups_of(self.reading.layout(op)) * self._stride(self.reading.extents(op)[0])

    def _fragments(self, op: ir.Operation, grid: Grid, tiles: list[ChunkFragment | Held], sums: dict[str, str]) -> None:
        core, block = self.core, body(op)
        depends = dependence(block)
        rows, columns = self.reading.extents(op)
        parts = {sums[name]: core.copies[name, "parts"].at for name in sums}
        inside = self._inside(rows, columns, grid.rows, grid.columns)
        with self.copies.blocks(grid) as (row, column, n):
            core.scalars.bind(block.arguments[0], "i")
            core.scalars.bind(block.arguments[1], "j")
            outer, at = ("j", column) if grid.by_columns else ("i", row)
            self._index(outer, at, columns if grid.by_columns else rows, grid.columns if grid.by_columns else grid.rows)
            for value in frontier(block, depends, _J if grid.by_columns else _I):
                core.value(value)
            core.writer.line(*(f"float {name} = 0.0f;" for name in parts))
            with core.unrolled("r", grid.length):
                inner, at = ("i", f"{row} + r") if grid.by_columns else ("j", f"{column} + r")
                self._index(inner, at, rows if grid.by_columns else columns, grid.rows if grid.by_columns else grid.columns)
                if inside:
                    at_row, at_column = (f"{row} + r", column) if grid.by_columns else (row, f"{column} + r")
                    core.writer.line(f"const bool inside = {inside.replace('ROW', at_row).replace('COLUMN', at_column)};")
                self._element(op, Place(("i", "j"), grid, f"[{n}][r]"), tiles, [*parts], bool(inside))
            if sums:
                if grid.by_columns:
                    raise UnsupportedError(f"amd: sums along rows of a tile whose lanes have columns ({op.location})")
                for name, part in parts.items():
                    for step in (32,) if grid.size == 32 else (16, 32):
                        core.writer.line(f"{name} += attn::from_lane({name}, lane ^ {step});")
                    group = f"{grid.wave_column()} / {grid.size}" if grid.across > 1 else "0"
                    group = f"({group} + {n} % {grid.wide})" if grid.wide > 1 else group
                    at = f"{group} * {self._stride(rows)} + {row}"
                    core.writer.line(f"if (lane < {grid.size}) ((float *)({part}))[{at}] = {name};")

    def _held(self, op: ir.Operation, layout: Held, tiles: list[ChunkFragment | Held], sums: dict[str, str], slot: str) -> None:
        core, block, writer = self.core, body(op), self.core.writer
        depends = dependence(block)
        parts = {sums[name]: core.copies[name, "parts"].at for name in sums}
        groups = layout.padded // layout.width
        inside = self._inside(layout.rows, layout.columns, layout.padded_rows, layout.padded)
        with core.repeated("t", layout.pieces_per_thread) as t:
            self.copies.piece(layout, guard=bool(sums))
            row, column = ("row + e", "column + c") if layout.patches else ("row", "column + c")
            with core.unrolled("e", 8) if layout.patches else core.scope(None):
                core.scalars.bind(block.arguments[0], "i")
                core.scalars.bind(block.arguments[1], "j")
                self._index("i", row, layout.rows, layout.padded_rows)
                for value in frontier(block, depends, _I):
                    core.value(value)
                writer.line(*(f"float {name} = 0.0f;" for name in parts))
                with core.unrolled("c", layout.width):
                    self._index("j", column, layout.columns, layout.padded)
                    if inside:
                        writer.line(f"const bool inside = {inside.replace('ROW', row).replace('COLUMN', column)};")
                    element = f"[{patch_row(t)}][c]" if layout.patches else f"[{t}][c]"
                    self._element(op, Place(("i", "j"), layout, element), tiles, [*parts], bool(inside))
                for name, part in parts.items():
                    exists = f"piece < {layout.pieces} && " if layout.pieces % THREADS else ""
                    group = f"column / {layout.width} * {self._stride(layout.rows)} + "
                    if are_neighbours(layout):
                        writer.line(f"{name} = attn::sum_of_neighbours<{groups}>({name});")
                        exists, group = f"{exists}column == 0 && ", ""
                    guard = f"if ({exists[:-4]}) " if exists else ""
                    writer.line(f"{guard}((float *)({part}))[{f'{slot} + ' if slot != '0' else ''}{group}{row}] = {name};")

    def _index(self, name: str, text: str, extent: int, padded: int) -> None:
        """Declares an index of the map, which stays inside of the tile."""
        self.core.writer.line(f"const int {name} = {text if extent == padded else f'min({text}, {extent - 1})'};")

    def _inside(self, rows: int, columns: int, padded_rows: int, padded_columns: int) -> str:
        """The condition that an element at ROW and COLUMN is in the tile; "" where all are."""
        tests = [f"ROW < {rows}"] * (rows < padded_rows) + [f"COLUMN < {columns}"] * (columns < padded_columns)
        return " && ".join(tests)

    def _element(self, op: ir.Operation, place: Place, tiles: list[ChunkFragment | Held], sums: list[str], inside: bool) -> None:
        core, values = self.core, yielded(body(op))
        core.place = place
        for value, tile, result in zip(values, tiles, op.results, strict=False):
            wide = widened(value)
            if result in core.residuals:
                text = f"attn::residual_f16({core.value(wide.owner.operation.operands[0])})"
            elif tile.element == "bf16" and str(wide.type) == "f32":
                text = f"attn::near_bf16({core.value(wide)})"
            elif tile.element in HALVES:
                text = f"attn::bits<unsigned short>({core.value(value)})"
            else:
                text = core.value(value)
            zero = "(unsigned short)0" if tile.element in HALVES else "0.0f"
            core.writer.line(f"{tile.name}{place.element} = {f'inside ? {text} : {zero}' if inside else text};")
        for value, name in zip(values[len(tiles) :], sums, strict=True):
            text = core.value(value)
            core.writer.line(f"{name} += {f'inside ? {text} : 0.0f' if inside else text};")
        core.place = None

    def _stride(self, rows: int) -> int:
        return max(self.core.padded(rows), 32)


def registers(tile: ChunkFragment | Held | ChunkVector) -> str:
    """The C++ type of a tile's registers."""
    if isinstance(tile, ChunkVector):
        return f"attn::Array<{FLOATS[tile.element]}, {tile.parts}>"
    if isinstance(tile, ChunkFragment):
        kind = "Floats" if tile.element == "f32" else "Halves"
        return f"attn::Array<attn::Block<{tile.grid.size}>::{kind}, {tile.grid.parts}>"
    kind = {"f32": "Float", "f64": "Double"}.get(tile.element, "Halves")
    return f"attn::Array<attn::{kind}{tile.width}, {tile.pieces_per_thread * (8 if tile.patches else 1)}>"
