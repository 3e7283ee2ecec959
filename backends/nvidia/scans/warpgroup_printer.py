"""Prints the ops of a chunk scan whose products warpgroups make (wgmma)."""

from collections.abc import Iterator
from contextlib import contextmanager

from attn_mlir.backends.gpu.residuals import RESIDUAL_SCALE
from attn_mlir.backends.gpu.rules import SCALARS
from attn_mlir.backends.gpu.scalars import dependence, frontier
from attn_mlir.backends.gpu.structure import body, hint, widened, yielded
from attn_mlir.backends.nvidia.hopper.wgmma import SharedOperand, product, wgmma, wgmma_name
from attn_mlir.backends.nvidia.scans.core import ScanCore
from attn_mlir.backends.nvidia.scans.layout import HALVES, TurnedGrid, carried
from attn_mlir.backends.nvidia.scans.loops import element_of, extents, own_reads, shape_of
from attn_mlir.backends.nvidia.scans.maps import ScanMaps
from attn_mlir.backends.nvidia.scans.printer import ScanPrinter
from attn_mlir.backends.nvidia.scans.traffic import ScanTraffic
from attn_mlir.backends.nvidia.scans.warpgroup_layout import WarpgroupLayout
from attn_mlir.dialects.numbers import flag
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import maker, walk

_HELPERS, _GROUPS, _FULL, _EMPTY = 1, 2, 3, 5
"""Named barriers: of threads that help, of those that multiply, and of both: a stage is full, or empty."""
_ROW = "i = 8 * n + 2 * (lane % 4) + c"
_COLUMN = "j = 16 * warp + 8 * r + lane / 4"
_ITEM = "4 * n + 2 * r + c"


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
        self._meeting = _HELPERS

    def of_threads(self, meeting: int) -> None:
        """From here on the code is that of the threads that meet at this barrier; what others wrote is there when it begins."""
        self._meeting, self._accesses = meeting, []

    def meet(self) -> None:
        """The threads that help, or those that multiply."""
        count = self.layout.threads if self._meeting == _HELPERS else self.layout.all_threads - self.layout.threads
        self.writer.line(f"attn::named_sync({self._meeting}, {count});")
        self._accesses = []

    def started(self, sums: str, *factors: str) -> None:
        """A group of products was committed."""
        self._running.append((sums, *factors))

    def await_sums(self, *names: str) -> None:
        """Waits for the products that are added to these registers."""
        self._await(max((n for n, (sums, *_) in enumerate(self._running) if sums in names), default=-1))

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


def residual_of(value: ir.Value) -> ir.Value | None:
    """x, where a value is what rounding x leaves, x - wide(round(x)), rounded alike."""
    rounded = maker(value, "arith.truncf")
    difference = None if rounded is None else maker(rounded.operands[0], "arith.subf")
    wide = None if difference is None else maker(difference.operands[1], "arith.extf")
    narrow = None if wide is None else maker(wide.operands[0], "arith.truncf")
    if difference is None or narrow is None or narrow.operands[0] != difference.operands[0]:
        return None
    return narrow.operands[0] if narrow.results[0].type == value.type else None


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
        """Rounds pairs of elements: what rounding leaves of them is rounded as pairs, too."""
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
            core.grid, core.element = grid, ("i", "j", _ITEM)
            core.pairs = {value: f"{name}[2 * n + r]" for value, name in near.items()}
            for value, result in made:
                if result in pairs:
                    left = residual_of(value)
                    whole = widened(value) if left is None else left
                    text = core.value(whole)
                    text = f"attn::as_float({text})" if str(whole.type) in HALVES else text
                    core.writer.line(f"{pairs[result]}[r][c] = {text};")
                else:
                    core.writer.line(f"{core.tiles[result]}[{_ITEM}] = {core.value(value)};")
            core.element, core.grid = None, None


class WarpgroupTraffic(ScanTraffic):
    """Prints loads to atoms, and stores of registers."""

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
                core.writer.line(f"{name}[{_ITEM}] = from[min(i, (int){count} - 1) * {stride} + j];")

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
                core.writer.line(f"if (i < {count}) to[i * {stride} + j] = {name}[{_ITEM}];")

    def _target(self, op: ir.Operation) -> tuple[str, str, str]:
        """C++ of a store: where its rows begin, how far they are apart, and how many there are."""
        core, target = self.core, op.operands[1]
        place = [core.value(operand) for operand in list(op.operands)[2:5]]
        count = core.value(op.operands[5])
        return core.address(target, place, core.aligned(target)), core.arguments.stride(core.view(target).argument, 2), count

    def give(self, loop: ir.Operation, stores: list[ir.Operation]) -> None:
        """A function that takes rows of a chunk, which lie in shared memory, to where stores want them."""
        core = self.core
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


class WarpgroupPrinter(ScanPrinter):
    """Prints a kernel: four warps copy tiles and make numbers of rows, a chunk ahead; the others multiply."""

    def __init__(self, core: WarpgroupCore) -> None:
        super().__init__(core)
        self.groups = core
        self.maps = self.pairs = WarpgroupMaps(core)
        self.traffic = self.stores = WarpgroupTraffic(core, self.pairs)
        self._first: dict[ir.Operation, ir.Operation] = {}

    def block(self, block: ir.Block) -> None:
        """Prints the ops of a block; those of the kernel's own block for both kinds of warps."""
        core, layout = self.groups, self.groups.of_groups
        if block == body(layout.loop):
            self._print(layout.order)
            return
        ops = self.layout.ops_of(block)
        if layout.loop not in ops:
            self._print(ops)
            return
        plain = [op for op in ops if op.name == "memref.subview" or op.name in SCALARS]
        self._print(plain)
        core.of_threads(_HELPERS)
        with core.scope("if (attn::warpgroup_index() == 0)"):
            self._help(layout.loop)
        core.of_threads(_GROUPS)
        with core.scope("else"):
            core.writer.line(f"const int warp = (threadIdx.x >> 5) - {layout.warps};")
            self._print([op for op in ops if op not in plain])

    def _print(self, ops: list[ir.Operation]) -> None:
        for op in ops:
            if op.name not in ("scf.yield", "func.return"):
                self.operation(op)

    def _turns(self, op: ir.Operation) -> tuple[str, str, str, str]:
        """The name of a loop's position, its ends and step."""
        begin, end, step = (self.core.value(value) for value in list(op.operands)[:3])
        return self.core.names.fresh("at"), begin, end, step

    def _help(self, loop: ir.Operation) -> None:
        """What is loaded of each chunk, and numbers of its rows."""
        core, stages, stores = self.groups, self.layout.stages, self.groups.of_groups.given
        self.traffic.fetch(loop)
        self.stores.give(loop, stores)
        at, begin, end, step = self._turns(loop)
        free = f"attn::named_sync({_EMPTY} + stage, {self.layout.all_threads});"
        core.writer.line(f"int stage = 0, {at} = {begin};", "#pragma unroll 1")
        with core.scope(f"for (; {at} < {end}; {at} += {step}, {_next(stages)})"):
            with core.scope(f"if ({at} >= {begin} + {stages} * {step})"):
                core.writer.line(free, f"give({at} - {stages} * {step}, stage);")
            core.writer.line(f"fetch({at}, stage);", "attn::wait_copies();")
            core.meet()
            core.scalars.bind(body(loop).arguments[0], at)
            self._print(core.of_groups.helping)
            core.writer.line("attn::fence_proxy_async();", f"attn::named_arrive({_FULL} + stage, {self.layout.all_threads});")
        with core.scope(f"for (int n = {stages}; n > 0; --n, {_next(stages)})"), core.scope(f"if ({at} >= {begin} + n * {step})"):
            core.writer.line(free, f"give({at} - n * {step}, stage);")

    def loop(self, op: ir.Operation) -> None:
        """A loop over chunks, whose carried tiles are changed in place."""
        core, stages, threads = self.groups, self.layout.stages, self.layout.all_threads
        for start, argument, _, result in carried(op):
            self._begin(start, argument, op)
            core.tiles[result] = core.tiles[argument]
        at, begin, end, step = self._turns(op)
        core.writer.line("int stage = 0;", "#pragma unroll 1")
        with core.scope(f"for (int {at} = {begin}; {at} < {end}; {at} += {step}, {_next(stages)})"):
            core.writer.line(f"attn::named_sync({_FULL} + stage, {threads});")
            core.scalars.bind(body(op).arguments[0], at)
            self.block(body(op))
            core.await_all()
            core.writer.line(f"attn::named_arrive({_EMPTY} + stage, {threads});")
            self._assign([(argument, value) for _, argument, value, _ in carried(op)])

    def dot(self, op: ir.Operation) -> None:
        """A product, which is not waited for; two of the same left factor that are added up take turns."""
        core, result = self.groups, op.results[0]
        if (after := self._added(op)) is not None:
            self._first[after] = op
            return
        ops = [self._first.pop(op), op] if op in self._first else [op]
        a, before = list(op.operands)[-2], list(ops[0].operands)[:-2]
        factors, home = [self.pairs.pairs_of(each.operands[-1]) for each in ops], core.layout.places[a]
        residual = self._is_residual(op)
        name = core.tiles[result] = self._sum(ops[0], ops[0].results[0], before)
        core.touch([(home, False, "")])
        rows, depth, element = shape_of(result)[0], shape_of(op.operands[-1])[0], element_of(a)
        turned = flag(op, "transpose_a")
        row_bytes, atom_bytes = core.of_groups.atoms_of(home)
        operand = SharedOperand(f"attn::shared_address({core.at(home)})", atom_bytes, turned, row_bytes=row_bytes)
        wrapper = wgmma_name(rows, "registers", element, transpose_b=turned)
        core.instructions[wrapper] = wgmma(rows, "registers", element, transpose_b=turned)
        sums = name
        if residual:
            sums = core.names.fresh("sum")
            core.writer.line(f"float {sums}[{rows // 2}];")
        texts = [product(sums, rows, depth, factor, operand, element)[2:-1] for factor in factors]
        if residual or not before:
            (first, *others), *more = texts
            texts = [[first.replace(", 1);", ", 0);"), *others], *more]
        descriptor = product(sums, rows, depth, factors[0], operand, element)[1]
        core.writer.line("attn::wgmma_begin();", "{", descriptor, *(line for lines in zip(*texts, strict=True) for line in lines), "}")
        core.writer.line("attn::wgmma_commit();")
        core.started(sums, *factors)
        if residual:
            core.await_sums(sums)
            with core.unrolled("n", rows // 2):
                core.writer.line(f"{name}[n] += {1.0 / RESIDUAL_SCALE}f * {sums}[n];")

    def _is_residual(self, op: ir.Operation) -> bool:
        return len(list(op.operands)) > 2 and any(value in self.core.residuals for value in list(op.operands)[-2:])

    def _added(self, op: ir.Operation) -> ir.Operation | None:
        """The product of the same left factor that is added to this one: with it, each descriptor of that factor serves two instructions.

        The next descriptor takes its registers, so that it waits for the instruction before.
        """
        uses = [use.owner.operation for use in op.results[0].uses]
        if len(uses) != 1 or uses[0].name != "tile.dot_add" or uses[0].block != op.block or op in self._first:
            return None
        after = uses[0]
        same = after.operands[0] == op.results[0] and after.operands[-2] == op.operands[-2]
        alike = flag(after, "transpose_a") == flag(op, "transpose_a")
        return after if same and alike and not (self._is_residual(op) or self._is_residual(after)) else None

    def _sum(self, op: ir.Operation, result: ir.Value, before: list[ir.Value]) -> str:
        """The registers that a product is added to: those of what is added, if nothing else needs them."""
        core, grid = self.groups, TurnedGrid(*shape_of(result))
        if not before:
            return self.maps.declare(result, "product")
        old = before[0]
        inside = not isinstance(old.owner, ir.Block) and old.owner.operation.block == op.block
        if (inside and len(list(old.uses)) == 1) or core.of_groups.changed.get(old) == op:
            name = core.tiles[result] = core.tiles[old]
        else:
            core.await_sums(core.tiles[old])
            name = self.maps.declare(result, "product")
            with core.unrolled("n", grid.registers):
                core.writer.line(f"{name}[n] = {core.tiles[old]}[n];")
        if len(before) > 1:
            core.await_sums(core.tiles[old])
            factors = before[1]
            core.touch([(core.sums[factors][0] if factors in core.sums else self.layout.places[factors], False, "")])
            with elements_of(core, grid):
                core.writer.line(f"const float scale = {core.row_item(factors, 'i')};")
                with core.unrolled("r", 2):
                    core.writer.line(f"{name}[{_ITEM}] *= scale;")
        return name


def _next(stages: int) -> str:
    """The next stage."""
    return "stage ^= 1" if stages == 2 else f"stage = stage + 1 == {stages} ? 0 : stage + 1"
