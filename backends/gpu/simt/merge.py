"""Kernels that merge partial results (`attn.combine`): a wave, or a few, have one row, whose columns lanes share, and go over its parts."""

from contextlib import AbstractContextManager

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.scalar_bounds import MAX_COLUMNS
from attn_mlir.backends.gpu.simt.dialect import Dialect
from attn_mlir.backends.gpu.simt.source import source
from attn_mlir.backends.gpu.simt.values import RowPrinter
from attn_mlir.backends.gpu.structure import body, constant, is_row, maker, operations, yielded
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk

_SUMS = ("tile.dot_add", "tile.dot_rescale")
_WAVES = 4


def is_merge(kernel: ir.Operation) -> bool:
    """Whether a kernel adds up parts of single rows: its one product is of a weight and a row, in a loop over parts."""
    loops, sums = find_all(kernel, "scf.for"), find_all(kernel, *_SUMS)
    if len(loops) != 1 or len(sums) != 1 or sums[0].block != body(loops[0]) or find_all(kernel, "tile.dot"):
        return False
    return ir.RankedTensorType(sums[0].results[0].type).shape[0] == 1


def plan_merge(kernel: ir.Operation, wave: int) -> Fields | None:
    """`threads` of a block: one wave, or several for more columns than kernels sum up at a time. None for a kernel of another form."""
    return {"threads": _threads(kernel, wave), "merges": 1} if is_merge(kernel) else None


def _threads(kernel: ir.Operation, wave: int) -> int:
    (sums,) = find_all(kernel, *_SUMS)
    return wave * (1 if ir.RankedTensorType(sums.results[0].type).shape[1] <= MAX_COLUMNS else _WAVES)


def emit_merge(kernel: ir.Operation, dialect: Dialect, threads: int = 0) -> KernelCode:
    """The source of a scheduled kernel; `threads` have a row, 0: as many as is planned."""
    return _Merge(kernel, dialect, threads).emit()


class _Merge:
    """Prints one kernel. Row values are the same in all lanes; the accumulator is `acc`, an element for each of a lane's columns."""

    def __init__(self, kernel: ir.Operation, dialect: Dialect, threads: int = 0) -> None:
        self.kernel, self.dialect = kernel, dialect
        self.print = RowPrinter(kernel, 1, 1, dialect)
        (self.loop,), (self.sums,) = find_all(kernel, "scf.for"), find_all(kernel, *_SUMS)
        self.columns = ir.RankedTensorType(self.sums.results[0].type).shape[1]
        self.threads = threads or _threads(kernel, dialect.wave)
        self.each = -(-self.columns // self.threads)

    def emit(self) -> KernelCode:
        """The code of the kernel."""
        p, loop = self.print, self.loop
        begin, end, step, *initial = loop.operands
        number, *carried = body(loop).arguments
        p.line("const int i = 0;")
        p.line(f"const int own = (int){self.dialect.thread};")
        states = [p.names.fresh("state") for _ in carried]
        for name, start in zip(states, initial, strict=True):
            if is_row(start.type):
                p.line(f"float {name} = {p.row_value(start)};")
            else:
                filled = maker(start, "tile.fill")
                if filled is None or constant(filled.operands[0]) != 0:
                    raise UnsupportedError("parts of rows are added up from 0")
                p.line(f"float {name}[{self.each}] = {{}};")
        first, last, stride = (p.scalars.emit(value) for value in (begin, end, step))
        for value in dict.fromkeys(value for op in walk(loop) for value in op.operands if isinstance(value.type, ir.IndexType)):
            if maker(value) is not None and value.owner.operation.block == body(self.kernel):
                p.scalars.emit(value)
        turn = p.names.fresh("turn")
        p.line("#pragma unroll 4")
        with p.scope(f"for (int {turn} = {first}; {turn} < {last}; {turn} += {stride})"):
            p.scalars.bind(number, turn)
            self._bind(loop, carried, states)
            self._part(carried, states)
        self._bind(self.kernel, list(loop.results), states)
        for op in operations(body(self.kernel)):
            if op.name == "tile.store":
                self._store(op)
        return source(self.kernel, p, self.threads, False)

    def _part(self, carried: list[ir.Value], states: list[str]) -> None:
        """One iteration of the loop."""
        p, (accumulator, *scale, weights, tile) = self.print, self.sums.operands
        p.line("const int j = 0;")
        weight = p.element(weights)
        factor = f" * {p.row_value(scale[0])}" if scale else ""
        load = tile.owner.operation
        memory, b, h, row, _ = load.operands
        place = [p.scalars.emit(value) for value in (b, h, row)]
        news = []
        for name, value in zip(states, yielded(body(self.loop)), strict=True):
            if is_row(value.type):
                news.append((name, p.names.fresh("next")))
                p.line(f"const float {news[-1][1]} = {p.row_value(value)};")
        name = states[carried.index(accumulator)]
        with self._each():
            element = p.arguments.element(memory, [*place, f"(own + c * {self.threads})"])
            p.line(f"{name}[c] = {name}[c]{factor} + {weight} * {element};")
        for old, new in news:
            p.line(f"{old} = {new};")

    def _store(self, op: ir.Operation) -> None:
        p, (tile, memory, b, h, row, count) = self.print, op.operands
        place, exists = [p.scalars.emit(value) for value in (b, h, row)], f"0 < {p.scalars.emit(count)}"
        if is_row(tile.type):
            p.line(f"if (own == 0 && {exists}) {p.arguments.element(memory, place)} = {p.row_value(tile)};")
            return
        with self._each():
            p.line(f"const int j = own + c * {self.threads};")
            p.line(f"if ({exists}) {p.arguments.element(memory, [*place, 'j'])} = {p.element(tile)};")

    def _each(self) -> AbstractContextManager[None]:
        """A loop over a lane's columns that exist."""
        inside = f" if (own + c * {self.threads} < {self.columns})" if self.columns % self.threads else ""
        self.print.line("#pragma unroll")
        return self.print.scope(f"for (int c = 0; c < {self.each}; ++c){inside}")

    def _bind(self, within: ir.Operation, tiles: list[ir.Value], names: list[str]) -> None:
        """Makes variables stand for a lane's elements of tiles."""
        known = dict(zip(tiles, names, strict=True))
        for op in find_all(within, "tensor.extract"):
            if (name := known.get(op.operands[0])) is not None:
                self.print.scalars.bind(op.results[0], name if is_row(op.operands[0].type) else f"{name}[c]")
