"""Kernels of grid "chunks" whose loop carries a tile, each element of which follows from itself: every thread keeps a pack of them."""

from collections.abc import Mapping

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields, grid_kind
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.scalar_ops import c_type
from attn_mlir.backends.gpu.scalars import dependence, frontier
from attn_mlir.backends.gpu.simt.dialect import MOST_THREADS, Dialect
from attn_mlir.backends.gpu.simt.source import source
from attn_mlir.backends.gpu.simt.values import RowPrinter
from attn_mlir.backends.gpu.structure import body, maker, operations, yielded
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk

_KNOWN = ("arith.", "math.", "memref.load", "memref.dim", "tensor.extract", "tile.program_id", "tile.yield", "scf.", "func.",
          "tile.load", "tile.store", "tile.map", "tile.fill")  # fmt: skip


def plan_scan(kernel: ir.Operation, choices: Mapping[str, int | str], wave: int) -> Fields | None:
    """`threads` of a block, `lanes` that share a row, `vector`, the elements of each, and `unroll`: how many iterations are printed
    after each other, so that what they load is on its way together. None for a kernel of another form.
    """
    tile = _carried(kernel)
    if tile is None:
        return None
    rows, columns = tile.shape
    vector = next(size for size in (4, 2, 1) if columns % size == 0)
    lanes = columns // vector
    fields: Fields = {"threads": -(-rows * lanes // wave) * wave, "lanes": lanes, "vector": vector, "unroll": 4}
    fields |= {name: value for name, value in choices.items() if name == "unroll"}
    return fields if int(fields["threads"]) <= MOST_THREADS and int(fields["unroll"]) > 0 else None


def _carried(kernel: ir.Operation) -> ir.RankedTensorType | None:
    """The type of the tile that the kernel's only loop carries; None for a kernel of another form."""
    loops = find_all(kernel, "scf.for")
    if len(loops) != 1 or len(loops[0].results) != 1 or grid_kind(kernel) != "chunks":
        return None
    if not all(op.name.startswith(_KNOWN) for op in walk(kernel)) or find_all(kernel, "scf.if"):
        return None
    tile = loops[0].results[0].type
    tiles = [op.results[0].type for op in find_all(kernel, "tile.load", "tile.fill")]
    states = (body(loops[0]).arguments[1], loops[0].results[0])
    maps, reads = find_all(kernel, "tile.map"), find_all(kernel, "tensor.extract")
    own = all(list(op.operands)[1:] == list(op.block.arguments)[: len(op.operands) - 1] for op in reads)
    whole = all(len(op.results) == 1 and not len(ir.ArrayAttr(op.attributes["reductions"])) for op in maps)
    stored = all(op.operands[0] in states for op in find_all(kernel, "tile.store"))
    same = isinstance(tile, ir.RankedTensorType) and tile.rank == 2 and all(type_ == tile for type_ in tiles)
    return ir.RankedTensorType(tile) if own and whole and stored and same else None


def emit_scan(kernel: ir.Operation, dialect: Dialect) -> KernelCode:
    """The source of a scheduled kernel."""
    return _Scan(kernel, attributes.read(kernel, attributes.SCHEDULE), dialect).emit()


class _Scan:
    """One kernel: pack `j0 / vector` of row `i` is a thread's."""

    def __init__(self, kernel: ir.Operation, schedule: Fields, dialect: Dialect) -> None:
        self._kernel, self._threads, self._unroll = kernel, int(schedule["threads"]), int(schedule["unroll"])
        self._print = RowPrinter(kernel, int(schedule["lanes"]), int(schedule["vector"]), dialect)
        (self._loop,) = find_all(kernel, "scf.for")

    def emit(self) -> KernelCode:
        """The code of the kernel."""
        p, thread = self._print, f"(int){self._print.dialect.thread}"
        p.line(f"const int i = {thread} / {p.lanes}, j0 = {thread} % {p.lanes} * {p.vector};")
        begin, end, step, initial = self._loop.operands
        number, carried = body(self._loop).arguments
        first, last, stride = (p.scalars.emit(value) for value in (begin, end, step))
        stores = [op for op in operations(body(self._kernel)) if op.name == "tile.store"]
        type_ = ir.RankedTensorType(carried.type)
        counts = {p.scalars.emit(op.operands[5]) for op in find_all(self._kernel, "tile.store")}
        p.line(f"if ({' || '.join(f'i >= {count}' for count in sorted(counts))}) return;")
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
        for op in stores:
            self._store(op, state)
        return source(self._kernel, p, self._threads, False)

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
        self._each(state, yielded(body(self._loop))[0])

    def _each(self, pack: str, tile: ir.Value) -> None:
        """Computes the elements of a pack; what is the same in all of them is printed before."""
        p, made = self._print, maker(tile)
        if made is not None and made.name == "tile.map":
            depends = dependence(body(made))
            for value in [*frontier(body(made), depends, frozenset()), *frontier(body(made), depends, frozenset({0}))]:
                p.scalars.emit(value)
        p.line("#pragma unroll")
        with p.scope(f"for (int e = 0; e < {p.vector}; ++e)"):
            p.line("const int j = j0 + e;")
            p.line(f"{pack}.x[e] = {p.element(tile)};")

    def _load(self, op: ir.Operation, pack: str) -> None:
        address, stride = self._print.pack_address(op.operands[0], list(op.operands)[1:5])
        self._print.pack_type(op.operands[0])
        self._print.line(f"load_pack<Aligned>({pack}, {address}, {stride});")

    def _store(self, op: ir.Operation, pack: str) -> None:
        address, stride = self._print.pack_address(op.operands[1], list(op.operands)[2:6])
        self._print.pack_type(op.operands[1])
        self._print.line(f"store_pack<Aligned>({address}, {pack}, {stride});")
