"""Prints `tile.load` and `tile.store`."""

from attn_mlir.backends.amd.chunks.copies import ChunkCopies, patch_row
from attn_mlir.backends.amd.chunks.core import ChunkCore
from attn_mlir.backends.amd.chunks.layout import held_wants
from attn_mlir.backends.amd.chunks.maps import registers
from attn_mlir.backends.amd.chunks.tiles import HALVES, SIZES, ChunkFragment, Held, Uniform
from attn_mlir.backends.gpu.structure import is_row
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


class Traffic:
    """Prints what goes from global memory to registers, and back."""

    def __init__(self, core: ChunkCore, copies: ChunkCopies) -> None:
        self.core, self.copies = core, copies

    def target(self, op: ir.Operation) -> ChunkFragment | Held:
        """The tile that a load makes, not declared yet."""
        core, result = self.core, op.results[0]
        type_ = ir.RankedTensorType(result.type)
        if type_.shape[0] < 0:
            raise UnsupportedError(f"amd: tiles of a chunk scan have a static number of rows ({op.location})")
        name = core.names.fresh(core.arguments.names[core.arguments.number(core.view(op.operands[0]).argument)] + "_tile")
        element = str(type_.element_type)
        rows, columns = type_.shape
        if result in core.layout.fragments:
            return ChunkFragment(name, core.grid(result), element, rows, columns)
        return Held(name, rows, columns, element, "columns" in held_wants(result), core.padded(rows))

    def load(self, op: ir.Operation, tile: ChunkFragment | Held) -> None:
        """Loads a tile into registers that are declared. Rows behind the last one repeat it, padding is zero."""
        core, source = self.core, op.operands[0]
        places = [core.value(value) for value in list(op.operands)[1:3]]
        first, count = (core.value(value) for value in list(op.operands)[3:])
        if isinstance(tile, Held):
            self._pieces(source, [*places, first], count, tile)
            return
        core.align(source)
        with self.copies.elements(tile, guard=False) as (row, column, element):
            width = tile.grid.columns
            last = str(int(count) - 1) if count.isdigit() else f"(int){count} - 1"
            at = self.row(first, row if last == str(tile.rows - 1) else f"min({row}, {last})")
            text = core.item(source, [*places, at, column if width == tile.columns else f"min({column}, {tile.columns - 1})"])
            if tile.element in HALVES:
                text = f"attn::bits<unsigned short>({text})"
            tests = [f"{row} < {tile.rows}"] * (tile.grid.rows > tile.rows) + [f"{column} < {tile.columns}"] * (width > tile.columns)
            zero = "0.0f" if tile.element == "f32" else "(unsigned short)0"
            condition = " && ".join(tests)
            core.writer.line(f"{tile.name}{element} = {f'{condition} ? {text} : {zero}' if tests else text};")

    def row(self, first: str, row: str) -> str:
        """C++: a row of a tensor, counted from the first one of a tile."""
        return f"({first} + {row})" if first != "0" else row if " " not in row or row.endswith(")") else f"({row})"

    def _pieces(self, source: ir.Value, place: list[str], count: str, tile: Held) -> None:
        core, writer = self.core, self.core.writer
        align = core.align(source)
        stride = core.arguments.stride(core.view(source).argument, 2)
        template = f"<{align}, {tile.columns}, {tile.padded}>"
        with core.scope(""):
            base = core.address(source, place)
            writer.line(f"const int rows = {count}, stride = (int){stride};")
            writer.line(f"const attn::Rows from = attn::rows_of({base}, rows, stride, {tile.columns});")
            with core.repeated("t", tile.pieces_per_thread) as t:
                self.copies.piece(tile)
                row = "row + e" if tile.patches else "row"
                at = f"min({row}, rows - 1) * stride"
                if tile.padded_rows > tile.rows:
                    at = f"{row} < {tile.rows} ? {at} : attn::kOutside / {2 * SIZES[tile.element]}"
                if tile.element in HALVES:
                    name = "four" if tile.patches else "eight"
                    load = f"attn::bits<attn::Halves{tile.width}>(attn::load_{name}{template}(from, {at}, column))"
                else:
                    load = f"attn::load_floats_{tile.width}{template}(from, {at}, column)"
                with core.unrolled("e", 8) if tile.patches else core.scope(None):
                    writer.line(f"{tile.name}[{patch_row(t) if tile.patches else t}] = {load};")

    def declare(self, tile: ChunkFragment | Held) -> None:
        """Declares a tile's registers."""
        self.core.writer.line(f"{registers(tile)} {tile.name};")

    # ---- stores

    def store(self, op: ir.Operation) -> None:
        """Writes the rows of a tile that exist."""
        core, value, target = self.core, op.operands[0], op.operands[1]
        batch, head, begin, count = (core.value(v) for v in list(op.operands)[2:])
        if is_row(value.type):
            self._vector(value, target, [batch, head], begin, count)
            return
        tile, memory = core.tiles[value], ir.MemRefType(target.type)
        element = str(memory.element_type)
        if not isinstance(tile, (ChunkFragment, Held)):
            raise UnsupportedError(f"amd: {value} is stored, but is in no registers ({op.location})")
        core.align(target)
        if isinstance(tile, ChunkFragment) and not tile.grid.by_columns:
            self._rows(tile, target, [batch, head], begin, count, element)
            return
        with self.copies.elements(tile, guard=True) as (row, column, subscript):
            at = self.row(begin, row)
            text = core.narrowed(f"{tile.name}{subscript}", tile.element)
            text = core.narrow(text, element) if element in HALVES and tile.element == "f32" else text
            width = tile.padded if isinstance(tile, Held) else tile.grid.columns
            tests = f"{row} < {count}" + (f" && {column} < {tile.columns}" if width > tile.columns else "")
            core.writer.line(f"if ({tests}) {core.item(target, [batch, head, at, f'({column})'])} = {text};")

    def _vector(self, value: ir.Value, target: ir.Value, place: list[str], begin: str, count: str) -> None:
        core, tile = self.core, self.copies.vector(value)
        parts = 1 if isinstance(tile, Uniform) else tile.parts
        with core.scope("if (wave == 0)"), core.repeated("n", parts) as n:
            row = "lane" if n == "0" else "lane + 64 * n"
            text = tile.name if isinstance(tile, Uniform) else f"{tile.name}[{n}]"
            core.writer.line(f"if ({row} < {count}) {core.item(target, [*place, self.row(begin, row)])} = {text};")

    def _rows(self, tile: ChunkFragment, target: ir.Value, place: list[str], begin: str, count: str, element: str) -> None:
        """Each lane writes neighbouring columns of its rows."""
        core, writer, grid = self.core, self.core.writer, tile.grid
        align = core.align(target)
        with self.copies.blocks(grid) as (row, column, n), core.scope(f"if ({row} < {count})"):
            source = f"{tile.name}[{n}]"
            if element in HALVES and tile.element == "f32":
                writer.line(f"attn::Block<{grid.size}>::Halves rounded;")
                with core.unrolled("r", grid.length):
                    writer.line(f"rounded[r] = attn::bits<unsigned short>({core.narrow(f'{source}[r]', element)});")
                source = "rounded"
            kind, store = ("unsigned short", "halves") if element in HALVES else ("float", "floats")
            address = core.address(target, [*place, self.row(begin, row)])
            writer.line(f"attn::store_{store}<{align}, {tile.columns}>(({kind} *)({address}), {column}, {source});")
