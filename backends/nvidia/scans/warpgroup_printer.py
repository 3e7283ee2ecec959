"""Prints the ops of a chunk scan whose products warpgroups make (wgmma)."""

from attn_mlir.backends.gpu.residuals import RESIDUAL_SCALE
from attn_mlir.backends.gpu.rules import SCALARS
from attn_mlir.backends.gpu.structure import body
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.wgmma import SharedOperand, product, wgmma, wgmma_name
from attn_mlir.backends.nvidia.scans.boxes import atoms_of
from attn_mlir.backends.nvidia.scans.layout import TurnedGrid, carried
from attn_mlir.backends.nvidia.scans.loops import element_of, quotients, shape_of
from attn_mlir.backends.nvidia.scans.printer import ScanPrinter
from attn_mlir.backends.nvidia.scans.warpgroup_parts import (
    FULL,
    HELPING,
    ITEM,
    MULTIPLYING,
    WarpgroupCore,
    WarpgroupMaps,
    WarpgroupTraffic,
    elements_of,
)
from attn_mlir.dialects.numbers import flag
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_BARRIERS = 16
"""Named barriers of a thread block."""


class WarpgroupPrinter(ScanPrinter):
    """Prints a kernel: four warps have tiles brought, chunks ahead, and take rows to memory; the others multiply."""

    def __init__(self, core: WarpgroupCore) -> None:
        super().__init__(core)
        self.groups = core
        self.maps = self.pairs = WarpgroupMaps(core)
        self.traffic = self.stores = WarpgroupTraffic(core, self.pairs)
        self._first: dict[ir.Operation, ir.Operation] = {}
        if self._given >= _BARRIERS:
            raise UnsupportedError(f"scans: {self.layout.stages} stages need more named barriers than the {_BARRIERS} of a thread block")

    def block(self, block: ir.Block) -> None:
        """Prints the ops of a block; those of the kernel's own block for both kinds of warps."""
        core, layout = self.groups, self.groups.of_groups
        if block == body(layout.loop):
            self._print(layout.order[len(layout.leading) :])
            return
        ops = self.layout.ops_of(block)
        if layout.loop not in ops:
            self._print(ops)
            return
        plain = [op for op in ops if op.name == "memref.subview" or op.name in SCALARS]
        self._print(plain)
        if layout.by_tma:
            with core.scope("if (threadIdx.x == 0)"):
                core.writer.line(
                    f"for (int stage = 0; stage < {layout.stages}; ++stage) attn::barrier_init({core.arrival}, 1);",
                    "attn::barrier_init_fence();",
                )
            core.writer.line("__syncthreads();")  # no copy may arrive at a barrier that is not initialised
        core.of_threads(HELPING)
        registers = thresholds.SCAN_GROUP_REGISTERS.get(layout.groups)
        with core.scope("if (attn::warpgroup_index() == 0)"):
            if registers:
                core.writer.line(f"attn::fewer_registers<{registers[1]}>();")
            self._help(layout.loop)
        core.of_threads(MULTIPLYING)
        with core.scope("else"):
            if registers:
                core.writer.line(f"attn::more_registers<{registers[0]}>();")
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
        """What is loaded of each chunk, and, where threads copy tiles, numbers of its rows."""
        core, stages, stores = self.groups, self.layout.stages, self.groups.of_groups.given
        in_place, arrived = bool(core.of_groups.in_place), core.of_groups.by_tma
        for value in quotients(loop):  # the compiler leaves them in the loop, before copies are asked for: some 150 cycles for each
            core.value(value)
        self.traffic.fetch(loop)
        self.stores.give(loop, stores)
        if not arrived:
            self._numbers(loop)
        at, begin, end, step = self._turns(loop)
        # The warps that multiply have read the stage, and left in it what is stored of the chunk that it held.
        free = f"attn::named_sync({self._empty} + stage, {self.layout.all_threads});"
        given = f"give({at} - {stages} * {step}, stage);"
        core.writer.line(f"int stage = 0, {at} = {begin};", "#pragma unroll 1")
        with core.scope(f"for (; {at} < {end}; {at} += {step}, {_next(stages)})"):
            with core.scope(f"if ({at} >= {begin} + {stages} * {step})"):
                core.writer.line(free)
                if stores and (arrived or in_place):
                    # Rows are in memory before tiles take their place, or the next chunk of the stage is there, which leaves its rows.
                    core.writer.line(
                        given, *["attn::fence_proxy_async();"] * in_place, f"attn::named_sync({self._given}, {self.layout.threads});"
                    )
            core.writer.line(f"fetch({at}, stage);")
            if not arrived:
                if stores and not in_place:
                    core.writer.line(f"if ({at} >= {begin} + {stages} * {step}) {given}")
                core.writer.line("attn::wait_copies();", f"numbers({at}, stage);")
        with core.scope(f"for (int n = {stages}; n > 0; --n, {_next(stages)})"), core.scope(f"if ({at} >= {begin} + n * {step})"):
            core.writer.line(free, f"give({at} - n * {step}, stage);")

    def _numbers(self, loop: ir.Operation) -> None:
        """A function that makes the numbers of a chunk's rows, once its copies of this thread are there; then its stage is full."""
        core = self.groups
        core.writer.line("const auto numbers = [&](int now, int stage) {")
        core.writer.indent += "  "
        with core.scope(None):
            core.scalars.indent = core.writer.indent
            core.meet()
            core.scalars.bind(body(loop).arguments[0], "now")
            self._print(core.of_groups.helping)
            core.writer.line("attn::fence_proxy_async();")
            # Copies of this thread, which were awaited, and numbers of rows: the warps that multiply wait for all threads'.
            core.writer.line(f"attn::named_arrive({FULL} + stage, {self.layout.all_threads});")
        core.writer.indent = core.writer.indent[:-2]
        core.writer.line("};")

    @property
    def _given(self) -> int:
        """The named barrier at which the warps that help meet: the one after those of full and empty stages."""
        return FULL + 2 * self.layout.stages

    @property
    def _empty(self) -> int:
        """The named barrier of the first stage that is empty; those of full stages come before."""
        return FULL + self.layout.stages

    def loop(self, op: ir.Operation) -> None:
        """A loop over chunks, whose carried tiles are changed in place."""
        core, stages, threads = self.groups, self.layout.stages, self.layout.all_threads
        for start, argument, _, result in carried(op):
            self._begin(start, argument, op)
            core.tiles[result] = core.tiles[argument]
        at, begin, end, step = self._turns(op)
        arrived = core.of_groups.by_tma
        core.writer.line(f"int stage = 0{', parity = 0' if arrived else ''};", "#pragma unroll 1")
        turn = f"{at} += {step}, {_next(stages)}{', parity ^= stage == 0' if arrived else ''}"
        with core.scope(f"for (int {at} = {begin}; {at} < {end}; {turn})"):
            core.scalars.bind(body(op).arguments[0], at)
            self._print(core.of_groups.leading)
            if arrived:
                core.writer.line(f"attn::barrier_wait({core.arrival}, parity);")
            else:
                core.writer.line(f"attn::named_sync({FULL} + stage, {threads});")
            self.block(body(op))
            core.await_all()
            if core.of_groups.in_place:
                core.writer.line("attn::fence_proxy_async();")
            # All products that read the stage are done: those that copy may fill it.
            core.writer.line(f"attn::named_arrive({self._empty} + stage, {threads});")
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
        row_bytes, atom_bytes = atoms_of(home)
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
                    core.writer.line(f"{name}[{ITEM}] *= scale;")
        return name


def _next(stages: int) -> str:
    """The next stage."""
    return "stage ^= 1" if stages == 2 else f"stage = stage + 1 == {stages} ? 0 : stage + 1"
