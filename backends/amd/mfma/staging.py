"""Tiles on their way from global to shared memory: registers of each thread hold the next block while the current one is multiplied."""

from dataclasses import dataclass, field

from attn_mlir.backends.amd.mfma.core import ALL_ROWS, PACKS, TYPES, MfmaCore, check_element
from attn_mlir.backends.amd.mfma.tiles import MATRIX, STEP, WAVES, LdsTile, MatrixElement, PackedTile, round_up
from attn_mlir.backends.gpu.input_limits import PAGE_ROWS
from attn_mlir.backends.gpu.structure import body, operations, yielded
from attn_mlir.diagnostics import source_line
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

THREADS = 64 * WAVES
_WORDS = {4: "unsigned", 8: "attn::Bits2", 16: "attn::Bits4"}
"""Registers of so many bytes."""


@dataclass
class Stream:
    """A tensor whose blocks of rows go through shared memory.

    `rows_used`: products read its rows (one chunk of 8 columns at a time); `columns_used`: they read its columns, so that it is transposed
    on the way. `change`: a map that is applied on the way.
    """

    source: ir.Value
    batch: ir.Value
    head: ir.Value
    rows: int
    columns: int
    element: str
    name: str
    widening: str = ""
    """What makes other elements of 8-bit ones, which are loaded as they are, on their way to shared memory."""
    bytes_loaded: int = 2
    """Of an element in global memory."""
    rows_used: bool = False
    columns_used: bool = False
    tile: LdsTile | None = None
    loads: list[ir.Operation] = field(default_factory=list)

    @property
    def how(self) -> MatrixElement:
        """How products take its elements."""
        return MATRIX[self.element]

    @property
    def widened(self) -> bool:
        """Whether elements become larger on the way."""
        return self.bytes_loaded < self.how.bytes

    @property
    def words(self) -> str:
        """The registers whose elements are as products take them."""
        return f"{self.name}_wide" if self.widened else self.name

    @property
    def shared(self) -> LdsTile:
        """Where it is in shared memory, once that is known."""
        if self.tile is None:
            raise RuntimeError(f"{self.name} has no place in shared memory yet")
        return self.tile

    @property
    def padded(self) -> int:
        """Columns in shared memory."""
        return round_up(self.columns, STEP)

    @property
    def patches(self) -> bool:
        """Whether a thread carries patches of 8 rows and 4 columns, which it can transpose, and not rows of 8 columns."""
        return self.columns_used

    @property
    def pieces(self) -> int:
        """Of a block, all threads together."""
        return self.rows * self.padded // (32 if self.patches else 8)

    @property
    def pieces_per_thread(self) -> int:
        """Pieces of one thread."""
        return -(-self.pieces // THREADS)

    def bytes(self) -> int:
        """In shared memory."""
        return self.rows * self.padded * self.how.bytes * (int(self.rows_used) + int(self.columns_used))


class Staging:
    """Prints how the streams of one kernel are loaded and kept."""

    def __init__(self, core: MfmaCore, in_turn: int) -> None:
        """`in_turn`: see `place`."""
        self.core = core
        self.in_turn = in_turn
        self.bytes = 0
        """Shared memory that is used at most."""

    # ---- what there is

    def stream(self, load: ir.Operation, known: list[Stream]) -> Stream:
        """The stream of a `tile.load`, one of `known` or a new one, which is added there."""
        core, source = self.core, load.operands[0]
        uses = _uses(load.results[0])
        change = changing(load)
        for stream in known:
            fits = (stream.source, stream.batch, stream.head, stream.rows) == (*list(load.operands)[:3], core.rows(load.results[0].type))
            if fits and all(load.block != other.block for other in stream.loads):
                found = stream
                break
        else:
            found = Stream(
                source, load.operands[1], load.operands[2], core.rows(load.results[0].type), core.columns(load.results[0].type),
                check_element(load), core.names.fresh(f"{core.arguments.names[core.arguments.number(source)]}_next"), core.widening(load),
                ir.MemRefType(source.type).element_type.width // 8,
            )  # fmt: skip
            known.append(found)
        if change is not None and _uses_other_than(load.results[0], change):
            raise UnsupportedError(f"amd: a tile is read both changed and as it is ({source_line(load.location)})")
        found.rows_used |= uses[0]
        found.columns_used |= uses[1]
        found.loads.append(load)
        return found

    def place(self, streams: list[Stream], start: int = 0) -> int:
        """Gives each stream its shared memory from byte `start`; returns where it ends.

        With `in_turn` 1, rows and columns of a block take the same memory, one after the other; with 2, rows and columns of all blocks.
        """
        first = start
        for stream in streams:
            if stream.rows % STEP or stream.rows > 256:
                raise UnsupportedError(f"amd: blocks of keys have a multiple of {STEP} rows, not {stream.rows}: choose another block_kv")
            rows_at = columns_at = None
            size = stream.rows * stream.padded * stream.how.bytes
            if stream.rows_used:
                rows_at, start = start, start + size
            if stream.columns_used and self.in_turn == 2:
                columns_at, first = first, first + size
            elif stream.columns_used and rows_at is not None and self.in_turn:
                columns_at = rows_at
            elif stream.columns_used:
                columns_at, start = start, start + size
            stream.tile = LdsTile(stream.rows, stream.padded, stream.element, rows_at, columns_at)
        start = max(start, first)
        self.bytes = max(self.bytes, start)
        return start

    # ---- global memory to registers

    def declare(self, streams: list[Stream]) -> None:
        """The registers, and where this thread's pieces are in a block."""
        core, arguments = self.core, self.core.arguments
        for stream in streams:
            stride = arguments.stride(stream.source, 2)
            core.align(stream.source)
            count = (8 if stream.patches else 1) * stream.pieces_per_thread
            sizes = {stream.words: stream.how.bytes, stream.name: stream.bytes_loaded}
            for name, size in sizes.items():
                core.writer.line(f"{_WORDS[size * (4 if stream.patches else 8)]} {name}[{count}];")
            self._declare_piece(stream)
            core.writer.line(f"const int {stream.name}_stride = (int){stride};")

    def here(self, streams: list[Stream]) -> None:
        """Declares again where this thread's pieces are; see `Core.here`."""
        if self.core.recompute:
            for stream in streams:
                self._declare_piece(stream)

    def _declare_piece(self, stream: Stream) -> None:
        width = 4 if stream.patches else 8
        per_row = stream.padded // width
        first = f"attn::thread() / {per_row}" + (" * 8" if stream.patches else "")
        self.core.writer.line(
            f"const int {stream.name}_row = {first}, {stream.name}_column = attn::thread() % {per_row} * {width};"
            if THREADS % per_row == 0
            else f"const int {stream.name}_row = 0, {stream.name}_column = 0;"
        )

    def fetch(self, streams: list[Stream], row: str) -> None:
        """Starts to load the blocks that begin at `row` into registers. Rows that do not exist become zeros."""
        core, arguments = self.core, self.core.arguments
        for stream in streams:
            source = stream.source
            if core.table_of(source) is not None:
                self._fetch_pages(stream, row)
                continue
            batch, head = core.value(stream.batch), core.value(stream.head)
            offset = [(batch, 0), (head, 1), (row, 2)]
            address = " + ".join(f"{place} * {arguments.stride(source, dim)}" for place, dim in offset)
            rows = f"{stream.name}_rows"
            count = f"min({stream.rows}, {arguments.size(source, 2)} - {row})"
            base = arguments.pointer(source)
            with core.scope(""):
                core.writer.line(
                    f"const attn::Rows {rows} = attn::rows_of({base} + {address}, {count}, {stream.name}_stride, {stream.columns});"
                )
                self._pieces(stream, rows)

    def _fetch_pages(self, stream: Stream, row: str) -> None:
        """The same of a cache in pages. Blocks begin at multiples of PAGE_ROWS, as pages do: the rows of a piece are in one page."""
        core, writer, arguments, source = self.core, self.core.writer, self.core.arguments, stream.source
        table, keys = core.table_of(source), core.keys_of_sequences()
        if stream.rows % PAGE_ROWS or table is None or keys is None:
            raise UnsupportedError(f"amd: blocks of keys in pages are multiples of {PAGE_ROWS}, not {stream.rows}")
        batch, head, size = core.value(stream.batch), core.value(stream.head), arguments.size(source, 2)
        align, type_ = core.align(source), "unsigned char" if stream.bytes_loaded == 1 else "unsigned short"
        words = _WORDS[stream.bytes_loaded * (4 if stream.patches else 8)]
        with core.scope(""):
            writer.line(f"const int some = min({stream.rows}, {arguments.element(keys, [batch])} - {row});")
            with core.unrolled("i", stream.pieces_per_thread):
                piece, column = self._piece(stream)
                where = arguments.element(table, [batch, f"(({row} + {piece}) / {size})"])
                strides = [arguments.stride(source, dim) for dim in range(3)]
                rows = f"({row} + {piece}) % {size} * {strides[2]}"
                writer.line(
                    f"const int place = {piece} < some ? {where} : -1;",
                    f"const bool inside = place >= 0 && place < {arguments.size(source, 0)};",
                    f"const {type_} *from = (const {type_} *){arguments.pointer(source)} + (inside ? place : 0) * {strides[0]} "
                    f"+ {head} * {strides[1]} + {rows};",
                )
                load = f"attn::load_from<{words}, {align}, {stream.columns}>"
                if not stream.patches:
                    writer.line(f"{stream.name}[i] = {load}(from, {column}, inside);")
                    return
                with writer.unrolled("e", 8):
                    exists = f"inside && {piece} + e < some"
                    writer.line(f"{stream.name}[8 * i + e] = {load}(from + e * {strides[2]}, {column}, {exists});")

    def _pieces(self, stream: Stream, rows: str) -> None:
        core, writer = self.core, self.core.writer
        align = self.core.align(stream.source)
        bytes_ = "_bytes" if stream.bytes_loaded == 1 else ""
        with core.unrolled("i", stream.pieces_per_thread):
            row, column = self._piece(stream)
            template = f"<{align}, {stream.columns}, {stream.padded}>"
            if stream.patches:
                with writer.unrolled("e", 8):
                    writer.line(
                        f"{stream.name}[8 * i + e] = attn::load_four{bytes_}{template}"
                        f"({rows}, ({row} + e) * {stream.name}_stride, {column});"
                    )
            else:
                writer.line(f"{stream.name}[i] = attn::load_eight{bytes_}{template}({rows}, {row} * {stream.name}_stride, {column});")

    def _piece(self, stream: Stream) -> tuple[str, str]:
        """First row and column of piece `i` of this thread."""
        width, height = (4, 8) if stream.patches else (8, 1)
        per_row = stream.padded // width
        if THREADS % per_row == 0:
            step = THREADS // per_row * height
            return f"({stream.name}_row + {step} * i)" if stream.pieces_per_thread > 1 else f"{stream.name}_row", f"{stream.name}_column"
        self.core.writer.line(f"const int piece = attn::thread() + {THREADS} * i;")
        row = f"piece / {per_row}" + (f" * {height}" if height > 1 else "")
        return f"({row})", f"(piece % {per_row} * {width})"

    # ---- registers to shared memory

    def keep(self, streams: list[Stream], block: ir.Block) -> None:
        """Puts what was loaded into shared memory, changed where the load in this block is followed by a map."""
        for stream in streams:
            load = next(load for load in stream.loads if load.block == block)
            change = changing(load)
            self.core.tiles[load.results[0] if change is None else change.results[0]] = stream.shared
            with self.core.scope(""):
                if stream.widening:
                    count = stream.pieces_per_thread * (8 if stream.patches else 1)
                    with self.core.writer.unrolled("i", count):
                        self.core.writer.line(f"{stream.words}[i] = {stream.widening}({stream.name}[i]);")
                if change is not None:
                    self._change(stream, change)
                self._keep(stream, rows=True, columns=not self._later(stream))

    def _later(self, stream: Stream) -> bool:
        """Whether the columns of a block are kept when its rows are not needed any more."""
        return stream.columns_used and (self.in_turn == 2 or (self.in_turn == 1 and stream.rows_used))

    def keep_columns(self, streams: list[Stream]) -> None:
        """Puts the columns where the rows were."""
        for stream in streams:
            if self._later(stream):
                with self.core.scope(""):
                    self._keep(stream, rows=False, columns=True)

    def splits(self, streams: list[Stream]) -> bool:
        """Whether `keep_columns` has something to do."""
        return any(self._later(stream) for stream in streams)

    def _guard(self, stream: Stream) -> str:
        return f"if (attn::thread() + {THREADS} * i < {stream.pieces})" if stream.pieces % THREADS else ""

    def _keep(self, stream: Stream, rows: bool, columns: bool) -> None:
        core, writer, tile = self.core, self.core.writer, stream.shared
        chunks, transposed = stream.how.chunks(stream.padded), stream.how.chunks(stream.rows)
        with core.unrolled("i", stream.pieces_per_thread):
            row, column = self._piece(stream)
            with core.scope(self._guard(stream) or None):
                if not stream.patches:
                    writer.line(f"attn::keep_eight<{chunks}>(memory + {tile.rows_at}, {row}, {column}, {stream.words}[i]);")
                    return
                if tile.rows_at is not None and rows:
                    with writer.unrolled("e", 8):
                        at = f"memory + {tile.rows_at}, {row} + e, {column}"
                        writer.line(f"attn::keep_four<{chunks}>({at}, {stream.words}[8 * i + e]);")
                if columns:
                    writer.line(
                        f"attn::keep_transposed<{transposed}>(memory + {tile.columns_at}, {row}, {column}, {stream.words} + 8 * i);"
                    )

    def _change(self, stream: Stream, change: ir.Operation) -> None:
        """Applies a map to the elements in registers. Rows that do not exist stay zero: zero times infinity would be no number."""
        core, writer, block = self.core, self.core.writer, body(change)
        reads = [op for op in operations(block) if op.name == "tensor.extract"]
        if any(list(read.operands)[1:] != list(block.arguments) for read in reads):
            where = source_line(change.location)
            raise UnsupportedError(f"amd: a mod that reads other channels is applied before (attn-apply-mods), not on the way ({where})")
        if stream.element not in PACKS:
            raise UnsupportedError(f"amd: a mod changes elements of 8 bits ({source_line(change.location)}): pass them in 16 bits")
        type_ = TYPES[stream.element]
        exists = core.value(change.operands[0])
        writer.line("// Each thread changes its elements on the way.")
        size, words = (4, f"{stream.words}[8 * i + e]") if stream.patches else (8, f"{stream.words}[i]")
        with core.unrolled("i", stream.pieces_per_thread):
            row, column = self._piece(stream)
            with core.unrolled("e", 8) if stream.patches else core.scope(None):
                at = f"({row} + e)" if stream.patches else row
                with core.unrolled("c", size):
                    writer.line(f"const bool here = {at} < {exists} && {column} + c < {stream.columns};")
                    self._element(block, reads, f"min({at}, {exists} - 1)", f"min({column} + c, {stream.columns - 1})", words, type_)

    def _element(self, block: ir.Block, reads: list[ir.Operation], row: str, column: str, words: str, type_: str) -> None:
        core = self.core
        core.scalars.bind(block.arguments[0], row)
        core.scalars.bind(block.arguments[1], column)
        for read in reads:
            core.scalars.bind(read.results[0], f"attn::bits<{type_}>(attn::half_of({words}[c / 2], c % 2))")
        text = core.scalars.emit(yielded(block)[0])
        core.writer.line(f"attn::set_half({words}, c, here ? {text} : ({type_})0.0f);")


class HeldPrinter:
    """Prints tiles whose rows stay in registers as operand B: each lane loads its own row."""

    def __init__(self, core: MfmaCore) -> None:
        self.core = core

    def load(self, load: ir.Operation) -> PackedTile:
        """Loads row `row` of a tile."""
        core, writer, arguments = self.core, self.core.writer, self.core.arguments
        source, batch, head, first, count = list(load.operands)
        columns = core.columns(load.results[0].type)
        padded = round_up(columns, STEP)
        name = core.names.fresh(core.arguments.names[core.arguments.number(source)])
        place = [core.value(value) for value in (batch, head, first)]
        address = " + ".join(f"{at} * {arguments.stride(source, dim)}" for dim, at in enumerate(place))
        align, stride, widening = core.align(source), arguments.stride(source, 2), core.widening(load)
        element = check_element(load)
        writer.line(f"attn::{MATRIX[element].words} {name}[{padded // 16}];")
        rows, narrow = core.value(count), ir.MemRefType(source.type).element_type.width == 8
        if core.rows_exist == ALL_ROWS:  # the first one is that of the program's own rows
            core.rows_exist = f"row < {rows}"
        with core.scope(""):
            writer.line(f"const attn::Rows rows = attn::rows_of({arguments.pointer(source)} + {address}, {rows}, {stride}, {columns});")
            with writer.unrolled("n", padded // STEP), writer.unrolled("g", 2):
                at = f"rows, row * (int){stride}, column + 32 * n + 8 * g"
                loaded = f"attn::load_eight{'_bytes' if narrow else ''}<{align}, {columns}, {padded}>({at})"
                writer.line(f"{name}[2 * n + g] = {f'{widening}({loaded})' if widening else loaded};")
        return PackedTile(name, padded, element)


def changing(load: ir.Operation) -> ir.Operation | None:
    """The map that changes the elements of a loaded tile, if there is one: a mod of queries, keys or values."""
    for use in load.results[0].uses:
        outer = use.owner.operation.parent
        if use.owner.operation.name == "tensor.extract" and outer is not None and outer.name == "tile.map":
            return outer
    return None


def _uses_other_than(value: ir.Value, change: ir.Operation) -> bool:
    return any(use.owner.operation.parent != change for use in value.uses)


def _uses(value: ir.Value) -> tuple[bool, bool]:
    """Whether products read a tile's rows, and its columns, as their right operand."""
    rows = columns = False
    for use in value.uses:
        op, outer = use.owner.operation, use.owner.operation.parent
        if op.name in DOTS:
            transposed = ir.BoolAttr(op.attributes["transpose_b"]).value
            if use.operand_number == len(list(op.operands)) - 1:
                rows, columns = rows or transposed, columns or not transposed
        elif op.name == "tensor.extract" and outer is not None and outer.name == "tile.map":
            more = _uses(outer.results[0])
            rows, columns = rows or more[0], columns or more[1]
    return rows, columns
