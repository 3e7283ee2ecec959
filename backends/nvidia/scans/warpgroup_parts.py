"""Maps, loads and stores of chunk scans whose products warpgroups make (wgmma), and which products are in flight."""

from collections.abc import Iterator
from contextlib import contextmanager

from attn_mlir.backends.gpu.residuals import RESIDUAL_SCALE
from attn_mlir.backends.gpu.scalars import dependence, frontier
from attn_mlir.backends.gpu.structure import body, hint, widened, yielded
from attn_mlir.backends.nvidia.scans.boxes import box_lines, bytes_of
from attn_mlir.backends.nvidia.scans.core import ScanCore
from attn_mlir.backends.nvidia.scans.layout import HALVES, TurnedGrid
from attn_mlir.backends.nvidia.scans.loops import element_of, extents, own_reads, residual_of, shape_of
from attn_mlir.backends.nvidia.scans.maps import ScanMaps
from attn_mlir.backends.nvidia.scans.traffic import ScanTraffic
from attn_mlir.backends.nvidia.scans.warpgroup_layout import WarpgroupLayout
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import walk

HELPING, MULTIPLYING, FULL = 1, 2, 3
"""Named barriers: of threads that help, of those that multiply, and of both: the first stage is full. Those of empty stages come after."""
_ROW = "i = 8 * n + 2 * (lane % 4) + c"
_COLUMN = "j = 16 * warp + 8 * r + lane / 4"
ITEM = "4 * n + 2 * r + c"


class WarpgroupCore(ScanCore):
    """Knows which products are in flight. `factors`: registers of pairs of 16-bit numbers, by tile."""

    def __init__(self, kernel: ir.Operation, layout: WarpgroupLayout) -> None:
        super().__init__(kernel, layout)
        self.of_groups = layout
        self.factors: dict[ir.Value, str] = {}
        self.instructions: dict[str, str] = {}
        """The text of the wgmma wrappers that the code calls, by name."""
        self._running: list[tuple[str, ...]] = []
        """The sums and the packed factors of groups of products in flight, in their order."""
        self._meeting = HELPING

    @property
    def arrival(self) -> str:
        """C++: the address of the barrier at which the tiles of a stage arrive."""
        return f"attn::shared_address(memory + {self.of_groups.arrivals}) + 8 * stage"

    def of_threads(self, meeting: int) -> None:
        """From here on the code is that of the threads that meet at this barrier; what others wrote is there when it begins."""
        self._meeting, self._accesses = meeting, []

    def meet(self) -> None:
        """The threads that help, or those that multiply."""
        count = self.layout.threads if self._meeting == HELPING else self.layout.all_threads - self.layout.threads
        self.writer.line(f"attn::named_sync({self._meeting}, {count});")
        self._accesses = []

    def started(self, sums: str, *factors: str) -> None:
        """A group of products was committed."""
        self._running.append((sums, *factors))

    def await_sums(self, *names: str) -> None:
        """Waits for the products that are added to these registers.

        Where another warpgroup multiplies in the meantime, for all: their factors leave registers, of which there are too few.
        """
        last = max((n for n, (sums, *_) in enumerate(self._running) if sums in names), default=-1)
        self._await(len(self._running) - 1 if last >= 0 and self.of_groups.groups > 1 else last)

    def await_all(self) -> None:
        """Waits for all products."""
        self._await(len(self._running) - 1)

    def _await(self, last: int) -> None:
        """Up to this group."""
        if last < 0:
            return
        done, self._running = self._running[: last + 1], self._running[last + 1 :]
        self.writer.line(f"attn::wgmma_wait<{len(self._running)}>();")
        for name in dict.fromkeys(name for group in done for name in group):
            self.writer.line(f"attn::hold({name});")


@contextmanager
def elements_of(core: ScanCore, grid: TurnedGrid, rows: bool = True) -> Iterator[None]:
    """A scope for each row `i` of a tile that a thread has elements of, without its columns, or with them."""
    with core.unrolled("n", grid.wide), core.unrolled("c", 2):
        core.writer.line(f"const int {_ROW};")
        if rows:
            yield
            return
        with core.unrolled("r", 2):
            core.writer.line(f"const int {_COLUMN};")
            yield


class WarpgroupMaps(ScanMaps):
    """Prints maps over registers."""

    def __init__(self, core: WarpgroupCore) -> None:
        super().__init__(core)
        self.groups = core

    def pairs_of(self, value: ir.Value) -> str:
        """The registers of a tile of 16 bits, as a product takes them: loaded here, if it lies in shared memory."""
        core = self.groups
        if value not in core.factors:
            home, (rows, columns) = core.layout.places[value], shape_of(value)
            core.touch([(home, False, "")])
            name = core.factors[value] = core.names.fresh("near")
            core.writer.line(f"uint32_t {name}[{rows // 2}];", f"attn::load_turned<{rows}, {columns}>({core.at(home)}, {name});")
        return core.factors[value]

    def scatter(self, value: ir.Value) -> None:
        """Nothing reads registers of other threads."""

    def _pairs(self, op: ir.Operation) -> None:
        core, block = self.groups, body(op)
        grid = TurnedGrid(*extents(op))
        own = [read for read in own_reads(op) if shape_of(read.operands[0]) == (grid.rows, grid.columns)]
        wide = [read.operands[0] for read in own if element_of(read.operands[0]) not in HALVES]
        core.await_sums(*(core.tiles[value] for value in wide))
        near = {read.operands[0]: self.pairs_of(read.operands[0]) for read in own if element_of(read.operands[0]) in HALVES}
        core.touch(core.reads([read for read in walk(op) if read.name in ("tensor.extract", "memref.load") and read not in own]))
        made = list(zip(yielded(block), op.results, strict=True))
        halves = [result for _, result in made if element_of(result) in HALVES]
        for result in op.results:
            if result in halves:
                core.factors[result] = core.names.fresh(hint(result, "packed"))
                core.writer.line(f"uint32_t {core.factors[result]}[{grid.registers // 2}];")
            else:
                self.declare(result)
        with core.scope(None):
            for value in frontier(block, dependence(block), frozenset()):
                core.value(value)
            with core.unrolled("n", grid.wide):
                pairs = {result: core.names.fresh("made") for result in halves}
                core.writer.line(*(f"float {name}[2][2];" for name in pairs.values()))
                with core.unrolled("c", 2):
                    self._row_of_pairs(op, grid, near, made, pairs)
                for value, result in made:
                    if result in pairs:
                        self._pack(value, result, pairs[result])
        core.pairs, core.grid, core.element = {}, None, None

    def _pack(self, value: ir.Value, result: ir.Value, name: str) -> None:
        """Rounds pairs of elements: their residuals are rounded as pairs, too."""
        core = self.groups
        kind = f"attn::{element_of(result).upper()}{{}}"
        call = "residual" if residual_of(value) is not None else "pack"
        scale = f", {RESIDUAL_SCALE}f" if result in core.residuals else ", 1.0f" if call == "residual" else ""
        with core.unrolled("r", 2):
            core.writer.line(f"{core.factors[result]}[2 * n + r] = attn::{call}({kind}, {name}[r][0], {name}[r][1]{scale});")

    def _row_of_pairs(
        self,
        op: ir.Operation,
        grid: TurnedGrid,
        near: dict[ir.Value, str],
        made: list[tuple[ir.Value, ir.Value]],
        pairs: dict[ir.Value, str],
    ) -> None:
        core, block = self.groups, body(op)
        core.writer.line(f"const int {_ROW};")
        core.scalars.bind(block.arguments[0], "i")
        for value in frontier(block, dependence(block), frozenset({0})):
            core.value(value)
        with core.unrolled("r", 2):
            core.writer.line(f"const int {_COLUMN};")
            core.scalars.bind(block.arguments[1], "j")
            core.grid, core.element = grid, ("i", "j", ITEM)
            core.pairs = {value: f"{name}[2 * n + r]" for value, name in near.items()}
            for value, result in made:
                if result in pairs:
                    left = residual_of(value)
                    whole = widened(value) if left is None else left
                    text = core.value(whole)
                    text = f"attn::as_float({text})" if str(whole.type) in HALVES else text
                    core.writer.line(f"{pairs[result]}[r][c] = {text};")
                else:
                    core.writer.line(f"{core.tiles[result]}[{ITEM}] = {core.value(value)};")
            core.element, core.grid = None, None


class WarpgroupTraffic(ScanTraffic):
    """Prints loads to atoms, which TMA copies or threads, and stores of registers."""

    copies = "copy_atoms"

    def __init__(self, core: WarpgroupCore, maps: WarpgroupMaps) -> None:
        super().__init__(core, maps)
        self.groups = core

    def load(self, op: ir.Operation) -> None:
        """`tile.load`: of f32 to registers; others are early."""
        core, source, result = self.core, op.operands[0], op.results[0]
        if self.layout.is_early(op):
            return
        grid = TurnedGrid(*shape_of(result))
        place = [core.value(value) for value in list(op.operands)[1:4]]
        count = core.value(op.operands[4])
        base, stride = core.address(source, place, core.aligned(source)), core.arguments.stride(core.view(source).argument, 2)
        name = self.maps.declare(result, "loaded")
        with core.scope(""):
            core.writer.line(f"const float *from = {base};")
            with elements_of(core, grid, rows=False):
                core.writer.line(f"{name}[{ITEM}] = from[min(i, (int){count} - 1) * {stride} + j];")

    def copy(self, loads: list[ir.Operation]) -> None:
        """One thread asks TMA for the tiles of a stage: copies by threads would fill the queue that their other accesses to memory pass.

        It takes longer for a stage, so that with few stages threads copy.
        """
        core = self.groups
        if core.of_groups.cuts:
            for op, load in core.of_groups.cuts.items():
                self._cut(op, load)
            return
        if not core.of_groups.by_tma:
            super().copy(loads)
            return
        brought = core.of_groups.brought
        size = bytes_of(loads) + sum(4 * extents(op)[0] for op in brought)
        lines = ["if (threadIdx.x == 0) {", f"  attn::barrier_arrive_expect({core.arrival}, {size});"]
        lines += [f"  {line}" for line in box_lines(core, loads, core.arrival)]
        for op, read in brought.items():
            with core.scope(None):
                core.scalars.bind(body(op).arguments[0], "0")
                tensor, *indices = list(read.operands)
                source = core.address(tensor, [core.value(index) for index in indices], core.aligned(tensor))
            to = f"attn::shared_address({core.at(core.layout.places[op.results[0]])})"
            lines.append(f"  attn::bulk_load({to}, {source}, {4 * extents(op)[0]}, {core.arrival});")
        core.writer.line(*lines, "}")

    def _cut(self, op: ir.Operation, load: ir.Operation) -> None:
        """A matrix of f32, as two pieces of bf16."""
        core, source, (rows, columns) = self.core, load.operands[0], shape_of(load.results[0])
        place = [core.value(value) for value in list(load.operands)[1:4]]
        base, stride = core.address(source, place, core.aligned(source)), core.arguments.stride(core.view(source).argument, 2)
        pieces = ", ".join(core.at(self.layout.places[result]) for result in op.results)
        core.writer.line(f"attn::copy_pieces<{rows}, {columns}>({pieces}, {base}, {stride}, {core.value(load.operands[4])});")

    def store(self, op: ir.Operation) -> None:
        """`tile.store` of the rows that exist."""
        core, value, target = self.groups, op.operands[0], op.operands[1]
        core.await_sums(core.tiles[value])
        (rows, columns), name = shape_of(value), core.tiles[value]
        kind = str(ir.MemRefType(target.type).element_type)
        if kind in HALVES:
            home = core.layout.places[op, "rows"]
            core.writer.line(f"attn::keep_turned<attn::{kind.upper()}, {rows}, {columns}>({core.at(home)}, {name});")
            return
        base, stride, count = self._target(op)
        with core.scope(""):
            core.writer.line(f"auto *to = {base};")
            with elements_of(core, TurnedGrid(rows, columns), rows=False):
                core.writer.line(f"if (i < {count}) to[i * {stride} + j] = {name}[{ITEM}];")

    def _target(self, op: ir.Operation) -> tuple[str, str, str]:
        """C++ of a store: where its rows begin, how far they are apart, and how many there are."""
        core, target = self.core, op.operands[1]
        place = [core.value(operand) for operand in list(op.operands)[2:5]]
        count = core.value(op.operands[5])
        return core.address(target, place, core.aligned(target)), core.arguments.stride(core.view(target).argument, 2), count

    def give(self, loop: ir.Operation, stores: list[ir.Operation]) -> None:
        """A function that takes rows of a chunk, which lie in shared memory, to where stores want them."""
        core = self.groups
        core.writer.line("const auto give = [&](int last, int stage) {")
        core.writer.indent += "  "
        with core.scope(None):
            core.scalars.indent = core.writer.indent
            core.scalars.bind(body(loop).arguments[0], "last")
            for op in stores:
                (rows, columns), home = shape_of(op.operands[0]), core.at(core.layout.places[op, "rows"])
                base, stride, count = self._target(op)
                core.writer.line(f"attn::store_atoms<{rows}, {columns}>({home}, {base}, {stride}, {count});")
        core.writer.indent = core.writer.indent[:-2]
        core.writer.line("};")
