"""Kernels whose loop carries a tile, each element of which follows from itself: every thread keeps a pack of them.

What is stored is the tile, at any iteration or after the last one, or the last row of its sums down the columns, which threads add up in
shared memory.
"""

from collections.abc import Mapping

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields, grid_kind
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.scalar_ops import c_type
from attn_mlir.backends.gpu.scalars import dependence, frontier
from attn_mlir.backends.gpu.simt.dialect import MOST_THREADS, Dialect
from attn_mlir.backends.gpu.simt.source import source
from attn_mlir.backends.gpu.simt.values import RowPrinter, reads_along
from attn_mlir.backends.gpu.structure import body, constant, maker, operations, yielded
from attn_mlir.dialects.numbers import flag
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk

_KNOWN = ("arith.", "math.", "memref.load", "memref.dim", "tensor.extract", "tile.program_id", "tile.yield", "scf.", "func.",
          "tile.load", "tile.store", "tile.map", "tile.fill", "tile.cumsum")  # fmt: skip
_VECTOR_BITS = 128
_MOST_OF_ROWS = 256
"""Threads of a block whose rows have nothing to do with each other: several blocks wait for memory at the same time."""


def plan_scan(kernel: ir.Operation, choices: Mapping[str, int | str], wave: int) -> Fields | None:
    """`threads` of a block, `lanes` that share a row, `vector`, the elements of each, and `unroll`: how many iterations are printed
    after each other, so that what they load is on its way together. None for a kernel of another form.

    Threads of grid "rows" may have several rows, one after another.
    """
    tile = _carried(kernel)
    if tile is None:
        return None
    rows, columns = tile.shape
    by_row = grid_kind(kernel) == "rows" and not find_all(kernel, "tile.cumsum")
    vector = next(size for size in (_widest(kernel) if by_row else 4, 4, 2, 1) if columns % size == 0)
    lanes = columns // vector
    most = max(_MOST_OF_ROWS, -(-lanes // wave) * wave) if by_row else MOST_THREADS
    fields: Fields = {"threads": min(most, -(-rows * lanes // wave) * wave), "lanes": lanes, "vector": vector, "unroll": 4}
    fields |= {name: value for name, value in choices.items() if name == "unroll"}
    enough = int(fields["threads"]) >= (lanes if by_row else rows * lanes)
    return fields if enough and int(fields["threads"]) <= MOST_THREADS and int(fields["unroll"]) > 0 else None


def _widest(kernel: ir.Operation) -> int:
    """How many elements of what is loaded are 16 bytes."""
    widths = [ir.RankedTensorType(op.results[0].type).element_type.width for op in find_all(kernel, "tile.load")]
    return _VECTOR_BITS // max(widths, default=32)


def _carried(kernel: ir.Operation) -> ir.RankedTensorType | None:
    """The type of the tile that the kernel's only loop carries; None for a kernel of another form."""
    loops = find_all(kernel, "scf.for")
    if len(loops) != 1 or len(loops[0].results) != 1 or grid_kind(kernel) not in ("chunks", "rows"):
        return None
    if not all(op.name.startswith(_KNOWN) for op in walk(kernel)) or find_all(kernel, "scf.if"):
        return None
    tile = loops[0].results[0].type
    if not isinstance(tile, ir.RankedTensorType) or tile.rank != 2:
        return None
    tiles = [ir.RankedTensorType(op.results[0].type) for op in find_all(kernel, "tile.load", "tile.fill")]
    states = (body(loops[0]).arguments[1], loops[0].results[0])
    last = _last_row(kernel, loops[0])
    if last is None and find_all(kernel, "tile.cumsum"):
        return None
    maps = [op for op in find_all(kernel, "tile.map") if last is None or op != last]
    reads = [op for op in find_all(kernel, "tensor.extract") if last is None or op.parent != last]
    own = all(list(op.operands)[1:] == list(op.block.arguments)[: len(op.operands) - 1] for op in reads)
    whole = all(len(op.results) == 1 and not len(ir.ArrayAttr(op.attributes["reductions"])) for op in maps)
    stored = all(op.operands[0] in states for op in find_all(kernel, "tile.store")) or last is not None
    same = all(type_.shape == tile.shape for type_ in tiles)
    begun = maker(list(loops[0].operands)[3])
    same = same and (begun is None or begun.results[0].type == tile)
    single = grid_kind(kernel) == "chunks" or (len(find_all(kernel, "tile.store")) == 1 and not find_all(loops[0], "tile.store"))
    return tile if own and whole and stored and same and single else None


def _last_row(kernel: ir.Operation, loop: ir.Operation) -> ir.Operation | None:
    """The map that takes the last row of the sums down the columns of what a loop carries, where that is all that a kernel stores."""
    sums, stores = find_all(kernel, "tile.cumsum"), find_all(kernel, "tile.store")
    if len(sums) != 1 or len(stores) != 1 or sums[0].operands[0] != loop.results[0] or flag(sums[0], "reverse"):
        return None
    taken = maker(stores[0].operands[0])
    reads = [op for op in find_all(kernel, "tensor.extract") if op.operands[0] == sums[0].results[0]]
    if taken is None or taken.name != "tile.map" or len(reads) != 1 or len(find_all(taken, "tensor.extract")) != 1:
        return None
    rows = ir.RankedTensorType(sums[0].results[0].type).shape[0]
    _, row, column = reads[0].operands
    right = reads[0].parent == taken and constant(row) == rows - 1 and column == body(taken).arguments[1]
    return taken if right and constant(taken.operands[0]) == 1 and yielded(body(taken))[0] == reads[0].results[0] else None


def emit_scan(kernel: ir.Operation, dialect: Dialect) -> KernelCode:
    """The source of a scheduled kernel."""
    return _Scan(kernel, attributes.read(kernel, attributes.SCHEDULE), dialect).emit()


class _Scan:
    """One kernel: pack `j0 / vector` of row `i` is a thread's."""

    def __init__(self, kernel: ir.Operation, schedule: Fields, dialect: Dialect) -> None:
        self._kernel, self._threads, self._unroll = kernel, int(schedule["threads"]), int(schedule["unroll"])
        self._print = RowPrinter(kernel, int(schedule["lanes"]), int(schedule["vector"]), dialect)
        (self._loop,) = find_all(kernel, "scf.for")
        self._last = _last_row(kernel, self._loop)

    def emit(self) -> KernelCode:
        """The code of the kernel."""
        p, thread = self._print, f"(int){self._print.dialect.thread}"
        rows, _ = ir.RankedTensorType(self._loop.results[0].type).shape
        step = self._threads // p.lanes
        if step >= rows:
            p.line(f"const int i = {thread} / {p.lanes}, j0 = {thread} % {p.lanes} * {p.vector};")
            if self._last is None:
                p.line(f"if ({' || '.join(f'i >= {count}' for count in self._counts())}) return;")
            self._row()
        else:
            p.line(f"const int j0 = {thread} % {p.lanes} * {p.vector};")
            first, (count,) = f"{thread} / {p.lanes}", self._counts()
            of_row = f"{first} < {step} ? {first} : {rows}" if step * p.lanes < self._threads else first
            with p.scope(f"for (int i = {of_row}; i < {count}; i += {step})"):
                self._row()
        return source(self._kernel, p, self._threads, False)

    def _counts(self) -> list[str]:
        """How many rows stores write."""
        return sorted({self._print.scalars.emit(op.operands[5]) for op in find_all(self._kernel, "tile.store")})

    def _row(self) -> None:
        """What a thread does for its pack of row i."""
        p = self._print
        begin, end, step, initial = self._loop.operands
        number, carried = body(self._loop).arguments
        first, last, stride = (p.scalars.emit(value) for value in (begin, end, step))
        stores = [op for op in operations(body(self._kernel)) if op.name == "tile.store"]
        type_ = ir.RankedTensorType(carried.type)
        state, made = p.names.fresh("state"), maker(initial)
        p.line(f"Pack<{c_type(type_.element_type)}, {p.vector}> {state};")
        if made is not None and made.name == "tile.load":
            self._load(made, state)
        else:
            self._each(state, initial)
        for value in (carried, self._loop.results[0]):
            p.keep(value, state)
        turn = p.names.fresh("turn")
        p.line(f"#pragma unroll {self._unroll}")
        with p.scope(f"for (int {turn} = {first}; {turn} < {last}; {turn} += {stride})"):
            p.scalars.bind(number, turn)
            self._turn(state)
        if self._last is not None:
            self._sum_down(state)
        for op in stores:
            self._store(op, state)

    def _turn(self, state: str) -> None:
        """One iteration of the loop."""
        p, inner = self._print, operations(body(self._loop))
        for op in inner:
            if op.name == "tile.load":
                pack = p.names.fresh("pack")
                p.line(f"{p.pack_type(op.operands[0])} {pack};")
                self._load(op, pack)
                p.keep(op.results[0], pack)
        for op in inner:
            if op.name == "tile.store":
                self._store(op, state)
        made = maker(yielded(body(self._loop))[0])
        along = find_all(made, "memref.load") if made is not None and made.name == "tile.map" else []
        packs = {op: p.column_pack(op, "j0") for op in along if p.vector > 1 and reads_along(op)}
        self._each(state, yielded(body(self._loop))[0], packs)

    def _each(self, pack: str, tile: ir.Value, packs: Mapping[ir.Operation, str] | None = None) -> None:
        """Computes the elements of a pack; what is the same in all of them is printed before. `packs`: of what maps read in memory."""
        p, made = self._print, maker(tile)
        if made is not None and made.name == "tile.map":
            depends = dependence(body(made))
            for value in [*frontier(body(made), depends, frozenset()), *frontier(body(made), depends, frozenset({0}))]:
                p.scalars.emit(value)
        p.line("#pragma unroll")
        with p.scope(f"for (int e = 0; e < {p.vector}; ++e)"):
            p.line("const int j = j0 + e;")
            for op, loaded in (packs or {}).items():
                p.scalars.bind(op.results[0], f"{loaded}.x[e]")
            p.line(f"{pack}.x[e] = {p.element(tile)};")

    def _sum_down(self, state: str) -> None:
        """Adds up the packs of all rows, in their order, in the threads of the first one; the others are done."""
        p, dialect = self._print, self._print.dialect
        rows, columns = ir.RankedTensorType(self._loop.results[0].type).shape
        parts = p.names.fresh("parts")
        each = f"for (int e = 0; e < {p.vector}; ++e)"
        p.line(f"{dialect.shared} float {parts}[{rows}][{columns}];")
        p.line("#pragma unroll")
        p.line(f"{each} if (i < {rows}) {parts}[i][j0 + e] = {state}.x[e];")
        p.line(f"{dialect.barrier};")
        p.line("if (i > 0) return;")
        p.line("#pragma unroll")
        with p.scope(f"for (int row = 1; row < {rows}; ++row)"):
            p.line("#pragma unroll")
            p.line(f"{each} {state}.x[e] += {parts}[row][j0 + e];")

    def _load(self, op: ir.Operation, pack: str) -> None:
        address, stride = self._print.pack_address(op.operands[0], list(op.operands)[1:5])
        self._print.pack_type(op.operands[0])
        self._print.line(f"load_pack<Aligned>({pack}, {address}, {stride});")

    def _store(self, op: ir.Operation, pack: str) -> None:
        p, stored = self._print, ir.RankedTensorType(self._loop.results[0].type).element_type
        type_ = p.pack_type(op.operands[1])
        if ir.MemRefType(op.operands[1].type).element_type != stored:
            wide, pack = pack, p.names.fresh("rounded")
            p.line(f"{type_} {pack};")
            p.line("#pragma unroll")
            p.line(f"for (int e = 0; e < {p.vector}; ++e) {pack}.x[e] = {wide}.x[e];")
        address, stride = p.pack_address(op.operands[1], list(op.operands)[2:6])
        p.line(f"store_pack<Aligned>({address}, {pack}, {stride});")
