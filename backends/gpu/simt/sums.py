"""Kernels that sum a tile up along its rows (`tile.cumsum`): gradients of the log decays of channels.

The rows of a tile go in turns of `_TALL` for each of `_GROUPS` groups of threads, which have a pack of columns each: a thread sums up its
own rows, groups exchange their sums, and what came in turns before is added. Sums of rows of memory, one for each column of the tile, come
first: a wave adds up a row.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields, grid_kind
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.simt.dialect import MOST_THREADS, Dialect
from attn_mlir.backends.gpu.simt.source import source
from attn_mlir.backends.gpu.simt.values import RowPrinter
from attn_mlir.backends.gpu.structure import body, operations, yielded
from attn_mlir.dialects.numbers import flag
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk

_KNOWN = ("arith.", "math.", "memref.load", "memref.dim", "tensor.extract", "tile.program_id", "tile.yield", "scf.for", "scf.yield",
          "func.", "tile.load", "tile.store", "tile.map", "tile.cumsum")  # fmt: skip
_TALL, _GROUPS, _VECTOR = 8, 8, 4


@dataclass(frozen=True)
class _Sums:
    """One kernel: `steps` are summed up to `sums`, `rows` are sums of rows of memory, and `store` puts `whole`, made of all these, there.

    `loop` goes over intervals of rows; None where a program has one.
    """

    loop: ir.Operation | None
    loads: list[ir.Operation]
    steps: ir.Operation
    sums: ir.Operation
    rows: ir.Operation
    whole: ir.Operation
    store: ir.Operation


def plan_sums(kernel: ir.Operation, wave: int) -> Fields | None:
    """`threads` of a block, and `columns` of the tiles. None for a kernel of another form."""
    found = _read(kernel)
    if found is None:
        return None
    columns = ir.RankedTensorType(found.sums.results[0].type).shape[1]
    threads = columns // _VECTOR * _GROUPS
    valid = columns % _VECTOR == 0 and threads % wave == 0 and 0 < threads <= MOST_THREADS
    return {"threads": threads, "columns": columns} if valid else None


def _read(kernel: ir.Operation) -> _Sums | None:
    loops, sums = find_all(kernel, "scf.for"), find_all(kernel, "tile.cumsum")
    if len(sums) != 1 or len(loops) > 1 or not all(op.name.startswith(_KNOWN) for op in walk(kernel)):
        return None
    if grid_kind(kernel) != ("chunks" if loops else "rows") or any(list(op.results) for op in loops):
        return None
    inner = operations(body(loops[0] if loops else kernel))
    loads, maps, stores = ([op for op in inner if op.name == name] for name in ("tile.load", "tile.map", "tile.store"))
    tile = ir.RankedTensorType(sums[0].results[0].type)
    made = [op for op in maps if op.results[0].type == tile and not len(ir.ArrayAttr(op.attributes["reductions"]))]
    rows = [op for op in maps if op not in made]
    if not (len(stores) == len(rows) == 1 and len(made) == 2 and tile.rank == 2 and str(tile.element_type) == "f32"):
        return None
    steps, whole = made if sums[0].operands[0] == made[0].results[0] else made[::-1]
    found = _Sums(loops[0] if loops else None, loads, steps, sums[0], rows[0], whole, stores[0])
    return found if _fits(kernel, found, tile) else None


def _fits(kernel: ir.Operation, found: _Sums, tile: ir.RankedTensorType) -> bool:
    """Whether maps read what a thread has, and all tiles have the same place."""
    kinds = found.rows.opview.kinds()
    place = list(found.store.operands)[2:]
    own = [op.results[0] for op in found.loads]
    right = not flag(found.sums, "reverse") and found.sums.operands[0] == found.steps.results[0] and kinds == ["sum"]
    right = right and found.store.operands[0] == found.whole.results[0] and len(found.whole.results) == len(found.steps.results) == 1
    right = right and list(ir.RankedTensorType(found.rows.results[0].type).shape) == [tile.shape[1]] and len(found.rows.results) == 1
    right = right and all(op.results[0].type == tile and list(op.operands)[1:] == place for op in found.loads)
    for op in find_all(kernel, "tensor.extract"):
        source_, *indices = op.operands
        of, (i, j) = op.parent, op.block.arguments
        tiles = [*own, found.sums.results[0]] if of == found.whole else own if of == found.steps else []
        of_rows = of == found.whole and source_ == found.rows.results[0] and indices == [j]
        right = right and (of_rows or (source_ in tiles and indices == [i, j]))
    return right


def emit_sums(kernel: ir.Operation, dialect: Dialect) -> KernelCode:
    """The source of a scheduled kernel."""
    found = _read(kernel)
    assert found is not None
    return _Kernel(kernel, found, attributes.read(kernel, attributes.SCHEDULE), dialect).emit()


class _Kernel:
    def __init__(self, kernel: ir.Operation, sums: _Sums, schedule: Mapping[str, int | str], dialect: Dialect) -> None:
        self._kernel, self._sums, self._threads, self._columns = kernel, sums, int(schedule["threads"]), int(schedule["columns"])
        self._print = RowPrinter(kernel, 1, _VECTOR, dialect)
        self._packs = [f"loaded{n}" for n in range(len(sums.loads))]

    def emit(self) -> KernelCode:
        """The code of the kernel."""
        p, dialect = self._print, self._print.dialect
        p.line(f"const int thread = {dialect.thread}, group = thread / {self._columns // _VECTOR};")
        p.line(f"const int j0 = thread % {self._columns // _VECTOR} * {_VECTOR};")
        p.line(f"{dialect.shared} float of_rows[{self._columns}], parts[{_GROUPS}][{self._columns}];")
        with p.turns(self._sums.loop, "turn"):
            self._interval()
            if self._sums.loop is not None:
                p.line(f"{dialect.barrier};")  # sums of rows are read before the next turn writes them
        return source(self._kernel, p, self._threads, False)

    def _interval(self) -> None:
        p, dialect = self._print, self._print.dialect
        count = p.scalars.emit(self._sums.store.operands[5])
        self._of_rows()
        # Each warp wrote the sums of some rows.
        self._lines(f"{dialect.barrier};", f"float before[{_VECTOR}] = {{}};")
        with p.scope(f"for (int first = 0; first < {count}; first += {_TALL * _GROUPS})"):
            p.line(f"const int i0 = first + group * {_TALL};")
            for load, pack in zip(self._sums.loads, self._packs, strict=True):
                self._load(load, pack, count)
            p.line(f"float sums[{_TALL}][{_VECTOR}];")
            with self._rows():
                self._lines("const int i = i0 + r;")
                with self._columns_of_row():
                    p.line(f"sums[r][e] = {self._element(self._sums.steps)};")
                    p.line("if (r > 0) sums[r][e] += sums[r - 1][e];")
                    p.line(f"if (r == {_TALL - 1}) parts[group][j] = sums[r][e];")
            p.line(f"{dialect.barrier};")  # parts of all groups are there
            with self._columns_of_row():
                self._lines("float added = before[e];", "#pragma unroll")
                with p.scope(f"for (int g = 0; g < {_GROUPS}; ++g)"):
                    self._lines("const float part = parts[g][j];", "if (g < group) added += part;", "before[e] += part;")
                p.line("#pragma unroll")
                p.line(f"for (int r = 0; r < {_TALL}; ++r) sums[r][e] += added;")
            p.line(f"{dialect.barrier};")  # parts are read before those of the next rows replace them
            self._store(count)

    def _of_rows(self) -> None:
        """A wave adds up a row of memory after the other."""
        p, dialect, op = self._print, self._print.dialect, self._sums.rows
        width = p.scalars.emit(list(op.operands)[1])
        total = p.names.fresh("of_row")
        p.line("#pragma unroll 4")
        with p.scope(f"for (int i = thread / {dialect.wave}; i < {self._columns}; i += {self._threads // dialect.wave})"):
            self._lines(f"float {total} = 0.0f;", "#pragma unroll 4")
            with p.scope(f"for (int j = thread % {dialect.wave}; j < {width}; j += {dialect.wave})"):
                p.line(f"{total} += {p.scalars.emit(yielded(body(op))[0])};")
            p.line("#pragma unroll")
            p.line(f"for (int step = {dialect.wave // 2}; step > 0; step /= 2) {total} += {dialect.neighbour(total, 'step')};")
            p.line(f"if (thread % {dialect.wave} == 0) of_rows[i] = {total};")

    @contextmanager
    def _rows(self) -> Iterator[None]:
        """A loop over the thread's rows of this turn."""
        self._lines("#pragma unroll")
        with self._print.scope(f"for (int r = 0; r < {_TALL}; ++r)"):
            yield

    @contextmanager
    def _columns_of_row(self) -> Iterator[None]:
        """A loop over the thread's columns."""
        self._lines("#pragma unroll")
        with self._print.scope(f"for (int e = 0; e < {_VECTOR}; ++e)"):
            self._lines("const int j = j0 + e;")
            yield

    def _lines(self, *lines: str) -> None:
        for line in lines:
            self._print.line(line)

    def _element(self, op: ir.Operation) -> str:
        """An element of a map at row r and column e of the thread's."""
        p = self._print
        known = {load.results[0]: f"{pack}[r].x[e]" for load, pack in zip(self._sums.loads, self._packs, strict=True)}
        known |= {self._sums.sums.results[0]: "sums[r][e]", self._sums.rows.results[0]: "of_rows[j]"}
        for read in operations(body(op)):
            if read.name == "tensor.extract":
                p.scalars.bind(read.results[0], known[read.operands[0]])
        return p.scalars.emit(yielded(body(op))[0])

    def _load(self, op: ir.Operation, pack: str, count: str) -> None:
        """The thread's rows, the last one again for those that are not there."""
        p = self._print
        p.line(f"{p.pack_type(op.operands[0])} {pack}[{_TALL}];")
        with self._rows():
            p.line(f"const int i = min(i0 + r, {count} - 1);")
            address, stride = self._print.pack_address(op.operands[0], list(op.operands)[1:5])
            p.line(f"load_pack<Aligned>({pack}[r], {address}, {stride});")

    def _store(self, count: str) -> None:
        p, op = self._print, self._sums.store
        with self._rows():
            self._lines("const int i = i0 + r;", f"{p.pack_type(op.operands[1])} made;")
            with self._columns_of_row():
                p.line(f"made.x[e] = {self._element(self._sums.whole)};")
            with p.scope(f"if (i < {count})"):
                address, stride = self._print.pack_address(op.operands[1], list(op.operands)[2:6])
                p.line(f"store_pack<Aligned>({address}, made, {stride});")
