"""Prints kernels over rows as plain C++."""

import contextlib

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.grid import depends_on_block
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.origins import for_op
from attn_mlir.backends.gpu.scalar_ops import c_type
from attn_mlir.backends.gpu.scalars import dependence
from attn_mlir.backends.gpu.simt.dialect import Dialect
from attn_mlir.backends.gpu.simt.merge import emit_merge
from attn_mlir.backends.gpu.simt.scan import emit_scan
from attn_mlir.backends.gpu.simt.source import source
from attn_mlir.backends.gpu.simt.steps import emit_steps
from attn_mlir.backends.gpu.simt.sums import emit_sums
from attn_mlir.backends.gpu.simt.total import emit_total
from attn_mlir.backends.gpu.simt.values import RowPrinter
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import block_of, find_all


def emit(kernel: ir.Operation, dialect: Dialect) -> KernelCode:
    """The source of a scheduled kernel. Raises UnsupportedError for scalar ops without a form in C++."""
    schedule = attributes.read(kernel, attributes.SCHEDULE)
    if "steps" in schedule:
        return emit_steps(kernel, dialect)
    if "lanes" not in schedule and find_all(kernel, "tile.cumsum"):
        return emit_sums(kernel, dialect)
    if "merges" in schedule:
        return emit_merge(kernel, dialect)
    if find_all(kernel, "scf.for"):
        return emit_scan(kernel, dialect) if "lanes" in schedule else emit_total(kernel, dialect)
    return _Kernel(kernel, schedule, dialect).emit()


class _Kernel:
    """One kernel: a loop over the rows of a block, in which stores and sums ask for values."""

    def __init__(self, kernel: ir.Operation, schedule: attributes.Fields, dialect: Dialect) -> None:
        self.kernel = kernel
        self.threads, self.ordered = int(schedule["threads"]), bool(schedule["deterministic"])
        self.rows = ir.IntegerAttr(ir.DictAttr(kernel.attributes["tile.kernel"])["block_q"]).value
        self.print = RowPrinter(kernel, int(schedule["lanes"]), int(schedule["vector"]), dialect)
        actions = [view.operation for view in block_of(kernel).operations]
        self.stores = [op for op in actions if op.name == "tile.store"]
        scatters = [op for op in actions if op.name == "tile.scatter_add"]
        self.sums = {op: self.print.names.fresh("sum") for op in scatters if _is_one_place(op)}
        self.scatters = [op for op in scatters if op not in self.sums]

    def emit(self) -> KernelCode:
        """The code of the kernel."""
        p = self.print
        self.ordered = self.ordered and bool(self.sums or self.scatters)
        for op, name in self.sums.items():
            type_ = c_type(ir.MemRefType(op.operands[0].type).element_type)
            p.line(f"{type_} {name} = 0;")
        with p.scope(f"for (int block = 0; block < {p.blocks()}; ++block)") if self.ordered else contextlib.nullcontext():
            self._block()
        for op, name in self.sums.items():
            self._add(op, name)
        return source(self.kernel, self.print, self.threads, self.ordered)

    def _block(self) -> None:
        """The rows of one block."""
        p = self.print
        for op in self.stores:
            for value in list(op.operands)[2:]:
                p.scalars.emit(value)
        for op in [*self.scatters, *self.sums]:
            p.scalars.emit(op.operands[1])
        step, trips = self.threads // p.lanes, -(-self.rows * p.lanes // self.threads)
        row = f"(int){p.dialect.thread} / {p.lanes}" if p.lanes > 1 else p.dialect.thread
        if trips > 1:
            p.line(f"#pragma unroll {min(trips, 4)}")
        with p.scope(f"for (int i0 = 0; i0 < {self.rows}; i0 += {step})" if trips > 1 else ""):
            p.line(f"const int i = {'i0 + ' if trips > 1 else ''}{row};")
            for op in self.stores:
                self._store(op)
            for op in [] if self.ordered else self.scatters:
                self._scatter(op)
            for op, name in self.sums.items():
                self._sum(op, name)
        if self.ordered and self.scatters:
            p.serial = True
            with (
                p.scope(f"if ({p.dialect.thread} == 0)"),
                p.scope(f"for (int i = 0; i < {p.scalars.emit(self.scatters[0].operands[1])}; ++i)"),
            ):
                for op in self.scatters:
                    self._scatter(op)
            p.serial = False

    def _exists(self, count: ir.Value, one_lane: bool) -> str:
        """The condition that row i exists, and that this thread speaks for it."""
        p = self.print
        lane = "lane == 0 && " if one_lane and p.lanes > 1 and not p.serial else ""
        return f"{lane}i < {p.scalars.emit(count)}"

    @for_op
    def _store(self, op: ir.Operation) -> None:
        p, (tile, memory, b, h, row, count) = self.print, op.operands
        if ir.RankedTensorType(tile.type).rank == 1:
            value = p.row_value(tile)
            place = [p.scalars.emit(b), p.scalars.emit(h), f"({p.scalars.emit(row)} + i)"]
            p.line(f"if ({self._exists(count, True)}) {p.arguments.element(memory, place)} = {value};")
            return
        address, pack = p.row_address(memory, [b, h, row, count], clamp=False), p.names.fresh("result")
        stride = p.arguments.stride(memory, 3)

        def before() -> None:
            p.line(f"{p.pack_type(memory)} {pack};")

        def write() -> None:
            p.line(f"if ({self._exists(count, False)}) store_pack<Aligned>({address} + c * {p.vector} * {stride}, {pack}, {stride});")

        def body() -> None:
            p.line(f"{pack}.x[e] = {p.element(tile)};")

        p.columns(_extent(tile), [tile], body, before, write)

    @for_op
    def _scatter(self, op: ir.Operation) -> None:
        p, (memory, *extents) = self.print, op.operands
        value, present, *place = block_of(op).operations[-1].operation.operands
        if len(extents) == 2 and not p.serial and not _of_columns(op, [present, *place]):
            self._scatter_row(op)
            return

        def body() -> None:
            shown, condition, *indices = (p.scalars.emit(v) for v in (value, present, *place))
            wanted = "" if condition == "true" else f" && {condition}"
            exists, address = self._exists(extents[0], len(extents) == 1), p.arguments.element(memory, indices)
            # Elements of which none is wanted may have no place.
            if not wanted and self._is_in_waves(op):
                self._add_together(exists, shown, address, [index for index in indices if not index.isdecimal()])
                return
            p.line(f"if ({exists}{wanted}) {p.dialect.add}(&{address}, {shown});")

        if len(extents) == 1:
            body()
        else:
            p.columns(extents[1], [value, present, *place], body)

    def _is_in_waves(self, op: ir.Operation) -> bool:
        """Whether all threads of a wave add an element of their own, in f32, at a time."""
        p, (memory, *extents) = self.print, op.operands
        alone = len(extents) == 1 and p.lanes == 1 and not p.serial and self.threads % p.dialect.wave == 0
        return alone and isinstance(ir.MemRefType(memory.type).element_type, ir.F32Type)

    def _add_together(self, exists: str, value: str, address: str, indices: list[str]) -> None:
        """Adds a number of each thread; where those of a wave go to one place, as they do in large buckets, their sum."""
        p, together, of_all = self.print, self.print.names.fresh("together"), self.print.names.fresh("of_all")
        own = [p.names.fresh("place") for _ in indices]
        p.line(f"float {of_all} = {exists} ? {value} : 0;")
        p.line(f"const float own_{of_all} = {of_all};")
        p.line(f"int {together} = 1;")
        for name, index in zip(own, indices, strict=True):
            p.line(f"const int {name} = (int)({index});")
        for step in (1 << n for n in range(p.dialect.wave.bit_length() - 1)):
            equal = " & ".join(f"({p.dialect.neighbour(name, str(step))} == {name})" for name in own) or "1"
            p.line(f"{together} &= {p.dialect.neighbour(together, str(step))} & {equal};")
            p.line(f"{of_all} += {p.dialect.neighbour(of_all, str(step))};")
        only = f"{p.dialect.thread} % {p.dialect.wave} == 0"
        p.line(f"if ({together} ? {only} : ({exists})) {p.dialect.add}(&{address}, {together} ? {of_all} : own_{of_all});")

    def _scatter_row(self, op: ir.Operation) -> None:
        """All columns of a row add at one place: their sum is added, once."""
        p, (memory, *extents) = self.print, op.operands
        value, present, *place = block_of(op).operations[-1].operation.operands
        total = p.row_sum(extents[1], value)
        condition, *indices = (p.scalars.emit(v) for v in (present, *place))
        wanted = "" if condition == "true" else f" && {condition}"
        p.line(f"if ({self._exists(extents[0], True)}{wanted}) {p.dialect.add}(&{p.arguments.element(memory, indices)}, {total});")

    @for_op
    def _sum(self, op: ir.Operation, name: str) -> None:
        """Adds what row i contributes to a single place to the sum of this thread."""
        p, extents = self.print, list(op.operands)[1:]
        value, present, *_ = block_of(op).operations[-1].operation.operands

        def body() -> None:
            shown, condition = p.scalars.emit(value), p.scalars.emit(present)
            wanted = "" if condition == "true" else f" && {condition}"
            p.line(f"if ({self._exists(extents[0], len(extents) == 1)}{wanted}) {name} += {shown};")

        if len(extents) == 1:
            body()
        else:
            p.columns(extents[1], [value, present], body)

    def _add(self, op: ir.Operation, name: str) -> None:
        """Adds the sums of all threads in a fixed order, and one of them to memory."""
        p, memory = self.print, op.operands[0]
        place = list(block_of(op).operations[-1].operation.operands)[2:]
        indices = [p.scalars.emit(value) for value in place]
        p.line(f"{name} = block_sum<{self.threads}>({name});")
        p.line(f"if ({p.dialect.thread} == 0) {p.dialect.add}(&{p.arguments.element(memory, indices)}, {name});")


def _extent(tile: ir.Value) -> ir.Value:
    """How many columns a tile of two dimensions has."""
    op = tile.owner.operation
    return op.operands[1]


def _of_columns(op: ir.Operation, values: list[ir.Value]) -> bool:
    """Whether some of the values in a scatter's region depend on the column."""
    depends = dependence(block_of(op))
    return any(1 in depends.get(value, frozenset()) for value in values)


def _is_one_place(op: ir.Operation) -> bool:
    """Whether a scatter adds everything at one place, the same for all blocks of a head."""
    block = block_of(op)
    depends = dependence(block)
    _, _, *place = block.operations[-1].operation.operands
    return not any(depends.get(value) or depends_on_block(value) for value in place)
