"""Prints copies of tiles into shared memory, when something first needs one."""

from attn_mlir.backends.amd.chunks.core import ChunkCore
from attn_mlir.backends.amd.chunks.memory import LdsBuffer
from attn_mlir.backends.amd.chunks.tiles import (
    FACTORS,
    FLOATS,
    SIZES,
    THREADS,
    WAVES,
    ChunkFragment,
    ChunkVector,
    Grid,
    Held,
    PartialSum,
    Terms,
    Uniform,
    Wide,
    chunks_of,
)
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


class ChunkCopies:
    """Makes forms of tiles in shared memory, each once."""

    def __init__(self, core: ChunkCore) -> None:
        self.core = core

    def vector(self, value: ir.Value) -> ChunkVector | Uniform:
        """A tile of one value a row in registers; adds up the parts of a sum."""
        core, tile = self.core, self.core.tiles[value]
        if isinstance(tile, PartialSum):
            buffer = core.copies[tile.name, "parts"]
            core.memory.read(buffer)
            made = ChunkVector(core.names.fresh(tile.name), tile.length)
            core.writer.line(f"attn::Array<float, {made.parts}> {made.name};")
            with core.repeated("n", made.parts) as n:
                core.writer.line(f"{made.name}[{n}] = 0.0f;")
                with core.unrolled("e", tile.groups):
                    at = f"{tile.slot} + e * {core.vector_stride(tile)} + {lane_row(n, tile.length)}"
                    core.writer.line(f"{made.name}[{n}] += ((const float *)({buffer.at}))[{at}];")
            core.tiles[value] = tile = made
        if not isinstance(tile, (ChunkVector, Uniform)):
            raise UnsupportedError(f"amd: {value} is no tile of one value a row")
        return tile

    def vector_copy(self, value: ir.Value) -> None:
        """Makes a vector's elements readable at any row, in every wave."""
        core, tile = self.core, self.vector(value)
        if isinstance(tile, Uniform):
            return
        if (tile.name, "vector") not in core.copies:
            stride, kind = core.vector_stride(tile), FLOATS[tile.element]
            buffer = core.memory.buffer(core.names.fresh(f"{tile.name}_at"), SIZES[tile.element] * stride * WAVES, own=True)
            core.copies[tile.name, "vector"] = buffer
            core.memory.write(buffer)
            with core.repeated("n", -(-stride // 64)) as n:
                row = "lane" if n == "0" else "lane + 64 * n"
                guard = f"if ({row} < {stride}) " if stride % 64 else ""
                core.writer.line(f"{guard}(({kind} *)({buffer.at}))[wave * {stride} + {row}] = {tile.name}[{n if tile.parts > 1 else 0}];")
        core.memory.read(core.copies[tile.name, "vector"])

    def readable(self, value: ir.Value) -> LdsBuffer:
        """Makes all elements of a tile readable."""
        form = self.core.readable_form(value)
        return self.floats(value) if form == "floats" else self.factor(value, form)

    def floats(self, value: ir.Value) -> LdsBuffer:
        """Makes all elements of a tile of f32 or f64 readable, row after row."""
        core, tile = self.core, self.core.tiles[value]
        if not isinstance(tile, (ChunkFragment, Held, Wide)):
            raise UnsupportedError(f"amd: {value} is no tile of two dimensions")
        if (tile.name, "floats") not in core.copies:
            stride = core.float_stride(tile)
            kind, size = FLOATS[tile.element], SIZES[tile.element] * stride * core.padded(tile.rows)
            buffer = core.memory.buffer(core.names.fresh(f"{tile.name}_at"), size)
            core.copies[tile.name, "floats"] = buffer
            core.memory.write(buffer)
            with self.elements(tile, guard=True) as (row, column, element):
                core.writer.line(f"(({kind} *)({buffer.at}))[({row}) * {stride} + {column}] = {tile.name}{element};")
        core.memory.read(core.copies[tile.name, "floats"])
        return core.copies[tile.name, "floats"]

    def factor(self, value: ir.Value, form: str, terms: Terms | None = None) -> LdsBuffer:
        """Makes the rows or the columns of a tile that products multiply readable in chunks; `terms`: only a part of each."""
        buffer = self.written(value, form, terms)
        self.core.memory.read(buffer)
        return buffer

    def written(self, value: ir.Value, form: str, terms: Terms | None = None) -> LdsBuffer:
        """Writes the rows or the columns of a tile that products multiply, or a part of each, if they are not there yet."""
        core, tile = self.core, self.core.tiles[value]
        if not isinstance(tile, (ChunkFragment, Held)) or tile.element not in FACTORS:
            raise UnsupportedError(f"amd: products take tiles of {', '.join(FACTORS)}, not {value}")
        rows, columns = core.padded(tile.rows), core.padded(tile.columns)
        rows, columns = (rows, columns) if form == "rows" else (columns, rows)
        terms = terms or Terms(0, columns)
        key = tile.name, form if terms.count == columns else f"{form} from {terms.begin}"
        if key in core.copies:
            return core.copies[key]
        buffer = core.memory.buffer(core.names.fresh(f"{tile.name}_{form}"), SIZES[tile.element] * rows * terms.count)
        core.copies[key] = buffer
        core.memory.write(buffer)
        part = Terms(terms.begin, terms.count, terms.count < columns)
        if isinstance(tile, Held):
            self._held(tile, form, buffer, part)
        else:
            self._fragment(tile, form, buffer, part)
        return buffer

    def _held(self, tile: Held, form: str, buffer: LdsBuffer, terms: Terms) -> None:
        core, writer, keep = self.core, self.core.writer, _keeper(tile)
        chunks = chunks_of(terms.count, tile.element)
        row, column = ("row", terms.of("column")) if form == "rows" else (terms.of("row"), "column")
        if form == "columns" and not tile.patches:
            raise UnsupportedError(f"amd: {tile.name} is not in patches, but its columns are needed; this is a bug of the code generator")
        with core.repeated("t", tile.pieces_per_thread) as t:
            self.piece(tile, guard=True)
            # Registers may have more columns than the copy: theirs are zeros that would lie in the next rows.
            inside = f"if (column < {core.padded(tile.columns)})" if tile.padded > core.padded(tile.columns) else None
            own = terms.condition("column" if form == "rows" else "row")
            with core.scope(self._exists(tile) or None), core.scope(inside), core.scope(own):
                if not tile.patches:
                    writer.line(f"{keep}<{chunks}>({buffer.at}, {row}, {column}, {tile.name}[{t}]);")
                elif form == "rows":
                    with core.unrolled("e", 8):
                        writer.line(f"{keep}<{chunks}>({buffer.at}, {row} + e, {column}, {tile.name}[{patch_row(t)}]);")
                else:
                    at = "0" if t == "0" else f"8 * {t}"
                    writer.line(f"attn::keep_patch<{chunks}>({buffer.at}, {row}, {column}, &{tile.name}[{at}]);")

    def _fragment(self, tile: ChunkFragment, form: str, buffer: LdsBuffer, terms: Terms) -> None:
        core, writer, grid = self.core, self.core.writer, tile.grid
        along, chunks = (form == "columns") == grid.by_columns, chunks_of(terms.count, tile.element)
        with self.blocks(grid) as (row, column, n), core.scope(terms.condition(column if form == "rows" else row)):
            row, column = (row, terms.of(column)) if form == "rows" else (terms.of(row), column)
            if along:
                place = (column, row) if grid.by_columns else (row, column)
                writer.line(f"{_keeper(tile)}<{chunks}>({buffer.at}, {place[0]}, {place[1]}, {tile.name}[{n}]);")
            else:
                with core.unrolled("r", grid.length):
                    place = (f"{row} + r", column) if grid.by_columns else (row, f"{column} + r")
                    place = place if form == "rows" else place[::-1]
                    writer.line(f"attn::keep_single<{chunks}>({buffer.at}, {place[0]}, {place[1]}, {tile.name}[{n}][r]);")

    # ---- loops over registers

    def piece(self, tile: Held, guard: bool = False) -> None:
        """Prints the constants `row` and `column` of piece `t` of this thread, and `piece` where only some threads shall go on."""
        per_row = tile.padded // tile.width
        number, count = "attn::thread()" + (f" + {THREADS} * t" if tile.pieces_per_thread > 1 else ""), tile.pieces % THREADS
        if count and guard:
            self.core.writer.line(f"const int piece = {number};")
            number = "piece"
        number = f"({number})" if " " in number else number
        number = f"({number} % {tile.pieces})" if count else number
        height = f" * {tile.height}" if tile.height > 1 else ""
        self.core.writer.line(f"const int row = {number} / {per_row}{height}, column = {number} % {per_row} * {tile.width};")

    def _exists(self, tile: Held) -> str:
        return f"if (piece < {tile.pieces})" if tile.pieces % THREADS else ""

    def blocks(self, grid: Grid) -> "_Blocks":
        """A scope that loops over the blocks `n` of this wave; gives the lane's row and column (of its first element) in the tile."""
        return _Blocks(self.core, grid)

    def elements(self, tile: ChunkFragment | Held | Wide, guard: bool) -> "_Elements":
        """A scope that loops over all elements; gives row, column, and the subscripts of the element in registers."""
        return _Elements(self, tile, guard)


class _Blocks:
    def __init__(self, core: ChunkCore, grid: Grid) -> None:
        self.core, self.grid = core, grid

    def __enter__(self) -> tuple[str, str, str]:
        core, grid = self.core, self.grid
        self.guard = core.scope(None if grid.all_waves else f"if (wave < {grid.down * grid.across})")
        self.guard.__enter__()
        self.loop = core.repeated("n", grid.parts)
        n = self.loop.__enter__()
        down = "n" if grid.wide == 1 else "0" if grid.high == 1 else f"n / {grid.wide}"
        across = "n" if grid.high == 1 else "0" if grid.wide == 1 else f"n % {grid.wide}"
        lane = ("first", "own") if grid.by_columns else ("own", "first")
        terms = ((grid.wave_row(), down, lane[0], grid.high), (grid.wave_column(), across, lane[1], grid.wide))
        row, column = (_sum(start, f"{grid.size} * {_wrapped(n)}" if count > 1 else "0", own) for start, n, own, count in terms)
        core.writer.line(f"const int at_row = {row}, at_column = {column};")
        return "at_row", "at_column", n

    def __exit__(self, *_: object) -> None:
        self.loop.__exit__(None, None, None)
        self.guard.__exit__(None, None, None)


class _Elements:
    def __init__(self, copies: ChunkCopies, tile: ChunkFragment | Held | Wide, guard: bool) -> None:
        self.copies, self.tile, self.guard = copies, tile, guard
        self.scopes: list[object] = []

    def _open(self, scope: object) -> object:
        self.scopes.append(scope)
        return scope.__enter__()  # type: ignore[attr-defined]

    def __enter__(self) -> tuple[str, str, str]:
        copies, core, tile = self.copies, self.copies.core, self.tile
        if isinstance(tile, ChunkFragment):
            row, column, n = self._open(copies.blocks(tile.grid))  # type: ignore[misc]
            self._open(core.unrolled("r", tile.grid.length))
            return (f"{row} + r", column, f"[{n}][r]") if tile.grid.by_columns else (row, f"{column} + r", f"[{n}][r]")
        if isinstance(tile, Wide):
            raise UnsupportedError(f"amd: {tile.name} is in no registers; this is a bug of the code generator")
        t = self._open(core.repeated("t", tile.pieces_per_thread))
        copies.piece(tile, self.guard)
        exists = copies._exists(tile) if self.guard else ""  # pyright: ignore[reportPrivateUsage]
        self._open(core.scope(exists or None))
        if tile.patches:
            self._open(core.unrolled("e", 8))
        self._open(core.unrolled("c", tile.width))
        return ("row + e", "column + c", f"[{patch_row(str(t))}][c]") if tile.patches else ("row", "column + c", f"[{t}][c]")

    def __exit__(self, *_: object) -> None:
        for scope in reversed(self.scopes):
            scope.__exit__(None, None, None)  # type: ignore[attr-defined]


def _keeper(tile: ChunkFragment | Held) -> str:
    """C++: what writes neighbouring elements of a row."""
    return "attn::keep_floats" if tile.element == "f32" else "attn::keep_halves"


def patch_row(piece: str) -> str:
    """C++: the subscript of row `e` of a patch."""
    return "e" if piece == "0" else f"8 * {piece} + e"


def lane_row(part: str, length: int) -> str:
    """C++: the row of this lane in a part of a vector; lanes behind the last row have its value."""
    row = "lane" if part == "0" else f"lane + 64 * {part}"
    return row if length % 64 == 0 else f"min({row}, {length - 1})"


def _wrapped(text: str) -> str:
    return f"({text})" if " " in text else text


def _sum(*terms: str) -> str:
    return " + ".join(term for term in terms if term != "0") or "0"
