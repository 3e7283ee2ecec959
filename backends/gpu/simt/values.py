"""Values of one row and of its elements, printed on demand."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from attn_mlir.backends.gpu import origins
from attn_mlir.backends.gpu.arguments import Arguments
from attn_mlir.backends.gpu.scalar_ops import c_type
from attn_mlir.backends.gpu.scalars import Names, Scalars, dependence, float_literal, frontier
from attn_mlir.backends.gpu.simt.dialect import Dialect
from attn_mlir.diagnostics import source_line
from attn_mlir.dialects.regions import yielded
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import block_of, find_all
from attn_mlir.passes.tiling.scalars import identity

_TAKEN = (
    "block",
    "head",
    "batch",
    "lane",
    "i",
    "i0",
    "j",
    "c",
    "e",
    "Aligned",
    "Pack",
    "load_pack",
    "store_pack",
    "aligned",
    "threads",
    "attn",
    "blocks",
)


class RowPrinter:
    """Prints statements for row `i` of a block, which `lanes` threads share, each of them with `vector` columns at a time."""

    def __init__(self, kernel: ir.Operation, lanes: int, vector: int, dialect: Dialect) -> None:
        self.kernel, self.lanes, self.vector, self.dialect = kernel, lanes, vector, dialect
        self.arguments = Arguments(kernel)
        self.lines: list[str] = []
        self.names = Names([*_TAKEN, *self.arguments.names])
        self.indent = "  "
        self.scalars = Scalars(self.lines, self.names, self._load, self._extract, self.indent, other=self._other)
        self.packed: dict[ir.Value, int] = {}
        """Memory that is read or written in packs, and their bytes."""
        self._packs: dict[ir.Value, str] = {}
        self._reduced: dict[ir.Operation, list[str]] = {}
        self.serial = False
        """Whether one thread does everything, column by column."""
        for value in self.arguments.values:
            if not isinstance(value.type, ir.MemRefType):
                self.scalars.bind(value, self.arguments.scalar(value))
        for op in find_all(kernel, "tile.map", "tile.scatter_add"):
            for argument, name in zip(block_of(op).arguments, ("i", "j"), strict=False):
                self.scalars.bind(argument, name)

    def blocks(self) -> str:
        """How many blocks of rows there are."""
        return self.dialect.blocks or self.arguments.blocks()

    @contextmanager
    def turns(self, loop: ir.Operation | None, name: str) -> Iterator[None]:
        """What `loop` goes over, as a loop whose number is called `name`; nothing around it where there is no loop."""
        if loop is None:
            yield
            return
        begin, end, step = (self.scalars.emit(value) for value in list(loop.operands)[:3])
        with self.scope(f"for (int {name} = {begin}; {name} < {end}; {name} += {step})"):
            self.scalars.bind(next(iter(block_of(loop).arguments)), name)
            yield

    # ---- printing

    def line(self, text: str) -> None:
        """Prints a line."""
        self.lines.append(origins.marked(f"{self.indent}{text}"))

    @contextmanager
    def scope(self, head: str) -> Iterator[None]:
        """A C++ block; what is printed inside is forgotten at its end."""
        outer, packs, reduced = self.scalars, dict(self._packs), dict(self._reduced)
        self.line(f"{head} {{" if head else "{")
        self.indent += "  "
        self.scalars = outer.nested(self.lines, self.indent)
        yield
        self.scalars, self._packs, self._reduced, self.indent = outer, packs, reduced, self.indent[:-2]
        self.line("}")

    # ---- memory

    def _other(self, op: ir.Operation, args: list[str]) -> str:
        if op.name == "tile.program_id":
            return ("block", "head", "batch")[ir.IntegerAttr(op.attributes["axis"]).value]
        if op.name == "memref.dim":
            return self.arguments.size(op.operands[0], int(args[0]))
        raise UnsupportedError(f"simt: '{op.name}' cannot stand in scalar code ({source_line(op.location)})")

    def _load(self, op: ir.Operation, indices: list[str]) -> str:
        return self.arguments.element(op.operands[0], indices)

    def row_address(self, memory: ir.Value, place: Sequence[ir.Value], clamp: bool) -> str:
        """Prints the address of row i at (batch, head, first row, count); `clamp`: of the last one that exists, if i does not."""
        b, h, row, count = (self.scalars.emit(value) for value in place)
        i = f"min(i, {count} - 1)" if clamp else "i"
        offset = " + ".join(f"{index} * {self.arguments.stride(memory, dim)}" for dim, index in enumerate((b, h, f"({row} + {i})")))
        name = self.names.fresh(f"{self.arguments.pointer(memory)}_row")
        self.line(f"{c_type(ir.MemRefType(memory.type).element_type)} *{name} = {self.arguments.pointer(memory)} + {offset};")
        return name

    def pack_address(self, memory: ir.Value, place: Sequence[ir.Value]) -> tuple[str, str]:
        """The address of the thread's pack, and the stride of its elements."""
        stride = self.arguments.stride(memory, 3)
        return f"{self.row_address(memory, place, clamp=False)} + j0 * {stride}", stride

    def pack_type(self, memory: ir.Value) -> str:
        """The type of a pack of elements, which is read or written at once where all such memory is aligned to it."""
        element = ir.MemRefType(memory.type).element_type
        self.packed[memory] = min(16, self.vector * element.width // 8)
        return f"Pack<{c_type(element)}, {self.vector}>"

    def keep(self, tile: ir.Value, pack: str) -> None:
        """Makes a pack stand for a thread's elements of a tile."""
        self._packs[tile] = pack

    # ---- values

    def _extract(self, op: ir.Operation, indices: list[str]) -> str:
        return self.row_value(op.operands[0]) if len(indices) == 1 else self.element(op.operands[0])

    def row_value(self, tile: ir.Value) -> str:
        """Element i of a tile of one dimension."""
        op = tile.owner.operation
        if op.name == "tile.fill":
            return self.scalars.emit(op.operands[0])
        position = list(op.results).index(tile)
        if len(block_of(op).arguments) == 1:
            return self.scalars.emit(yielded(block_of(op))[position])
        if op not in self._reduced:
            self._reduced[op] = self._reduce(op)
        return self._reduced[op][position]

    def element(self, tile: ir.Value) -> str:
        """Element (i, j) of a tile, inside of `columns`."""
        if tile in self._packs:
            return self._packs[tile] if self.serial else f"{self._packs[tile]}.x[e]"
        op = tile.owner.operation
        return self.scalars.emit(op.operands[0] if op.name == "tile.fill" else yielded(block_of(op))[list(op.results).index(tile)])

    def columns(
        self,
        extent: ir.Value,
        wanted: Sequence[ir.Value],
        body: Callable[[], None],
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """A loop over the columns of row i: `body` for each of them, `before` and `after` for each pack. They use `wanted` values.

        What does not depend on the column is printed before it.
        """
        loads, maps, reads = _sources(wanted)
        rows = {load: self.row_address(load.owner.operation.operands[0], list(load.owner.operation.operands)[1:5], True) for load in loads}
        for op in maps:
            depends = dependence(block_of(op))
            for value in [*frontier(block_of(op), depends, frozenset()), *frontier(block_of(op), depends, frozenset({0}))]:
                self.scalars.emit(value)
        along = {} if self.serial or self.vector == 1 else {op: self._column_address(op) for op in reads if reads_along(op)}
        number = self.scalars.emit(extent)
        if self.serial:
            with self.scope(f"for (int j = 0; j < {number}; ++j)"):
                for load, row in rows.items():
                    memory = load.owner.operation.operands[0]
                    self._packs[load] = f"{row}[j * {self.arguments.stride(memory, 3)}]"
                body()
            return
        chunks = str(int(number) // self.vector) if number.isdigit() else number
        with self.scope(f"for (int c = {'lane' if self.lanes > 1 else '0'}; c < {chunks}; c += {self.lanes})"):
            for load, row in rows.items():
                memory = load.owner.operation.operands[0]
                pack = self._packs[load] = self.names.fresh(f"{self.arguments.pointer(memory)}_pack")
                stride = self.arguments.stride(memory, 3)
                self.line(f"{self.pack_type(memory)} {pack};")
                self.line(f"load_pack<Aligned>({pack}, {row} + c * {self.vector} * {stride}, {stride});")
            packs = {op: self._pack_at(op, row, f"c * {self.vector}") for op, row in along.items()}
            if before is not None:
                before()
            self.line("#pragma unroll")
            with self.scope(f"for (int e = 0; e < {self.vector}; ++e)"):
                self.line(f"const int j = c * {self.vector} + e;")
                for op, pack in packs.items():
                    self.scalars.bind(op.results[0], f"{pack}.x[e]")
                body()
            if after is not None:
                after()

    def _column_address(self, op: ir.Operation) -> str:
        """Prints where column 0 is of what a `memref.load` reads along the columns."""
        memory, *indices = op.operands
        places = [f"{self.scalars.emit(index)} * {self.arguments.stride(memory, dim)}" for dim, index in enumerate(indices[:-1])]
        name = self.names.fresh(f"{self.arguments.pointer(memory)}_row")
        element = c_type(ir.MemRefType(memory.type).element_type)
        self.line(f"const {element} *{name} = {self.arguments.pointer(memory)} + {' + '.join(places)};")
        return name

    def column_pack(self, op: ir.Operation, first: str) -> str:
        """Prints the read of the pack at column `first` of what a `memref.load` reads along the columns; its name."""
        return self._pack_at(op, self._column_address(op), first)

    def _pack_at(self, op: ir.Operation, row: str, first: str) -> str:
        """Prints the read of this thread's columns."""
        memory = op.operands[0]
        stride, name = self.arguments.stride(memory, 3), self.names.fresh(f"{self.arguments.pointer(memory)}_pack")
        self.line(f"{self.pack_type(memory)} {name};")
        self.line(f"load_pack<Aligned>({name}, {row} + {first} * {stride}, {stride});")
        return name

    def _reduce(self, map_: ir.Operation) -> list[str]:
        """Prints all reductions of a map along row i; names by position, "" for its tiles."""
        kinds = map_.opview.kinds()
        tiles = len(map_.results) - len(kinds)
        values = yielded(block_of(map_))[tiles:]
        names = [self.names.fresh({"sum": "total", "max": "most", "min": "least"}[kind]) for kind in kinds]
        for name, kind, value in zip(names, kinds, values, strict=True):
            self.line(f"{c_type(value.type)} {name} = {float_literal(identity(kind, value.type), str(value.type))};")

        def add() -> None:
            for name, kind, value in zip(names, kinds, values, strict=True):
                self.line(f"{name} = {self._combine(kind, name, self.scalars.emit(value))};")

        self.columns(map_.operands[1], values, add)
        self._over_lanes(names, kinds)
        return [*[""] * tiles, *names]

    def row_sum(self, extent: ir.Value, value: ir.Value) -> str:
        """Prints the sum of a value over the columns of row i; the name of it."""
        name = self.names.fresh("total")
        self.line(f"{c_type(value.type)} {name} = 0;")
        self.columns(extent, [value], lambda: self.line(f"{name} += {self.scalars.emit(value)};"))
        self._over_lanes([name], ["sum"])
        return name

    def _over_lanes(self, names: list[str], kinds: list[str]) -> None:
        """Combines what the lanes of a row have."""
        for name, kind in [] if self.serial or self.lanes == 1 else zip(names, kinds, strict=True):
            self.line("#pragma unroll")
            other = self.dialect.neighbour(name, "step")
            self.line(f"for (int step = {self.lanes // 2}; step > 0; step /= 2) {name} = {self._combine(kind, name, other)};")

    def _combine(self, kind: str, a: str, b: str) -> str:
        if kind == "sum":
            return f"{a} + {b}"
        return f"{self.scalars.helper(f'{kind}_nan')}({a}, {b})"


def reads_along(op: ir.Operation) -> bool:
    """Whether a `memref.load` in a region reads [B, H, S, D] at the region's column, in places that do not depend on it besides."""
    memory, *indices = op.operands
    type_, block = ir.MemRefType(memory.type), op.block
    if type_.rank != 4 or type_.shape[3] < 0 or not isinstance(memory.owner, ir.Block) or len(block.arguments) != 2:
        return False
    depends = dependence(block)
    return indices[3] == block.arguments[1] and not any(1 in depends.get(index, frozenset()) for index in indices[:3])


def _sources(values: Sequence[ir.Value]) -> tuple[list[ir.Value], list[ir.Operation], list[ir.Operation]]:
    """The loaded tiles that values of regions read at (i, j), through other maps, too, the maps and scatters with these regions, and the
    reads of memory in them.
    """
    reads: dict[ir.Operation, None] = {}
    loads: dict[ir.Value, None] = {}
    maps: dict[ir.Operation, None] = {}
    pending, seen = list(values), set[ir.Value]()
    while pending:
        value = pending.pop()
        if value in seen or isinstance(value.owner, ir.Block):
            continue
        seen.add(value)
        op = value.owner.operation
        if op.name == "tile.load":
            loads[value] = None
            continue
        if op.name == "tile.map":
            if len(block_of(op).arguments) == 2 and value.type.rank == 2:
                pending.append(yielded(block_of(op))[list(op.results).index(value)])
            continue
        if op.name == "memref.load":
            reads[op] = None
        parent = op.parent
        if parent is not None and parent.name in ("tile.map", "tile.scatter_add") and len(block_of(parent).arguments) == 2:
            maps[parent] = None
        pending += [v for v in op.operands if not isinstance(v.type, ir.RankedTensorType) or v.type.rank == 2]
    return list(loads), list(maps), list(reads)
