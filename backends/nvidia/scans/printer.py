"""Prints the ops of a chunk scan."""

from attn_mlir.backends.gpu.origins import for_op
from attn_mlir.backends.gpu.residuals import RESIDUAL_SCALE
from attn_mlir.backends.gpu.rules import SCALARS, Rule, rule_of
from attn_mlir.backends.gpu.structure import body, is_row, is_tile, operations
from attn_mlir.backends.nvidia.passes.prepare_chunks import INVERSE, ONCE
from attn_mlir.backends.nvidia.scans.core import ROW, ScanCore
from attn_mlir.backends.nvidia.scans.inverse import stored_pieces
from attn_mlir.backends.nvidia.scans.layout import SOLVE, SharedPlace, WarpScanLayout, carried
from attn_mlir.backends.nvidia.scans.levels import warps_of_level
from attn_mlir.backends.nvidia.scans.loops import shape_of
from attn_mlir.backends.nvidia.scans.maps import ScanMaps, rows_of
from attn_mlir.backends.nvidia.scans.traffic import ScanTraffic
from attn_mlir.dialects.numbers import flag
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


class ScanPrinter:
    """Prints blocks of ops."""

    def __init__(self, core: ScanCore) -> None:
        self.core = core
        self.maps = ScanMaps(core)
        self.traffic = ScanTraffic(core, self.maps)
        self._done: set[ir.Operation] = set()
        """Ops that were printed together with one before."""

    @property
    def layout(self) -> WarpScanLayout:
        """Where tiles are."""
        return self.core.layout

    def block(self, block: ir.Block) -> None:
        """Prints the ops of a block."""
        for op in self.layout.ops_of(block):
            if op.name in ("scf.yield", "func.return"):
                break
            self.operation(op)

    @for_op
    def operation(self, op: ir.Operation) -> None:
        """Prints one op, unless it was printed with one before."""
        if op in self._done:
            return
        rule_of(_RULES, op, "scans")(self, op)

    # ---- products, sums, systems

    def _fill(self, op: ir.Operation) -> None:
        core, result = self.core, op.results[0]
        number = core.value(op.operands[0])
        if is_row(result.type):
            (length,) = shape_of(result)
            place = self.layout.places[result]
            core.touch([(place, True, ROW)])
            with core.each_row(length):
                core.writer.line(f"{core.item_of(place, 'i')} = {number};")
            return
        if not self.layout.in_registers(result):
            raise UnsupportedError(f"scans: a tile of one number that is in no registers ({op.location})")
        name = self.maps.declare(result, "zeros")
        with core.unrolled("n", self.layout.grid(shape_of(result)).registers):
            core.writer.line(f"{name}[n] = {number};")
        self.maps.scatter(result)

    def dot(self, op: ir.Operation) -> None:
        """A product, and those before it that it is added to."""
        core, result = self.core, op.results[0]
        if self.layout.is_chained(op):
            return
        if (other := self._beside(op)) is not None:
            self._both(op, other)
            return
        chain = self.layout.chains.get(op, [op])
        factors = [list(each.operands)[-2:] for each in chain]
        lefts, rights = (list(dict.fromkeys(pair[side] for pair in factors)) for side in (0, 1))
        a, b = factors[0]
        before = list(chain[0].operands)[:-2]
        grid = self.layout.grid(shape_of(result))
        name = self._sum(chain[0], result, before)
        homes = [[self.layout.places[value] for value in values] for values in (lefts, rights)]
        core.touch((home, False, "") for side in homes for home in side)
        turned = [flag(op, "transpose_a"), flag(op, "transpose_b")]
        depth = shape_of(a)[0 if turned[0] else 1]
        texts = [str(turns).lower() for turns in turned]
        pairs = ", ".join(str(8 * lefts.index(x) + rights.index(y)) for x, y in factors)
        kind = homes[0][0].element.upper()
        call = f"attn::multiply<attn::{kind}, {grid.rows}, {grid.columns}, {depth}, {grid.down}, {texts[0]}, {texts[1]}>"
        lists = ", ".join("{" + ", ".join(core.at(home) for home in side) + "}" for side in homes)
        arguments = f"{lists}, attn::Pairs<{pairs}>{{}}"
        if before and (a in core.residuals or b in core.residuals):
            with core.scope(""):
                core.writer.line(f"float sum[{grid.registers}] = {{}};", f"{call}(sum, {arguments});")
                with core.unrolled("n", grid.registers):
                    core.writer.line(f"{name}[n] += {1.0 / RESIDUAL_SCALE}f * sum[n];")
        else:
            some = warps_of_level(op, grid) if len(chain) == 1 and not before else ""
            core.writer.line(f"{f'if ({some}) ' if some else ''}{call}({name}, {arguments});")
        self.maps.scatter(result)

    def _beside(self, op: ir.Operation) -> ir.Operation | None:
        """The product after this one, where both are of one level, and have a factor in common at the same place."""
        steps = self.layout.ops_of(op.block)
        at = steps.index(op) + 1
        other = steps[at] if at < len(steps) else None
        if other is None or op.name != "tile.dot" or other.name != "tile.dot" or self.layout.is_chained(other):
            return None
        if op in self.layout.chains or other in self.layout.chains:
            return None
        if sum(x == y for x, y in zip(op.operands, other.operands, strict=True)) != 1:
            return None
        grid, results = self.layout.grid(shape_of(op.results[0])), (op.results[0].type, other.results[0].type)
        alike = [x.type for x in op.operands] == [x.type for x in other.operands] and results[0] == results[1]
        flags = all(flag(op, name) == flag(other, name) for name in ("transpose_a", "transpose_b"))
        level = warps_of_level(op, grid)
        return other if level and level == warps_of_level(other, grid) and alike and flags and grid.wide % 2 == 0 else None

    def _both(self, op: ir.Operation, other: ir.Operation) -> None:
        """Two products with a factor in common."""
        core, grid = self.core, self.layout.grid(shape_of(op.results[0]))
        names = [self._sum(each, each.results[0], []) for each in (op, other)]
        sides = [dict.fromkeys((op.operands[side], other.operands[side])) for side in (0, 1)]
        homes = [[self.layout.places[value] for value in values] for values in sides]
        core.touch((home, False, "") for side in homes for home in side)
        turned = [flag(op, "transpose_a"), flag(op, "transpose_b")]
        depth = shape_of(op.operands[0])[0 if turned[0] else 1]
        texts = ", ".join(str(turns).lower() for turns in turned)
        kinds = f"attn::{homes[0][0].element.upper()}, {grid.rows}, {grid.columns}, {depth}, {grid.down}, {texts}"
        arguments = ", ".join([*names, *("{" + ", ".join(core.at(home) for home in side) + "}" for side in homes)])
        core.writer.line(f"if ({warps_of_level(op, grid)}) attn::multiply_both<{kinds}>({arguments});")
        self._done.add(other)
        for each in (op, other):
            self.maps.scatter(each.results[0])

    def _sum(self, op: ir.Operation, result: ir.Value, before: list[ir.Value]) -> str:
        """The registers that a product is added to: those of what is added, if nothing else needs them."""
        core, grid = self.core, self.layout.grid(shape_of(result))
        if not before:
            name = self.maps.declare(result, "product")
            with core.unrolled("n", grid.registers):
                core.writer.line(f"{name}[n] = 0.0f;")
            return name
        old = before[0]
        if len(list(old.uses)) == 1 and not isinstance(old.owner, ir.Block) and old.owner.operation.block == op.block:
            name = core.tiles[result] = core.tiles[old]
        else:
            name = self.maps.declare(result, "product")
            with core.unrolled("n", grid.registers):
                core.writer.line(f"{name}[n] = {core.tiles[old]}[n];")
        if len(before) > 1:
            factors = before[1]
            home = core.sums[factors][0] if factors in core.sums else self.layout.places[factors]
            core.touch([(home, False, "")])
            with rows_of(core, grid):
                core.writer.line(f"const float scale = {core.row_item(factors, 'i')};")
                with core.unrolled("n", grid.wide):
                    for c in ("0", "1"):
                        core.writer.line(f"{name}[(m * {grid.wide} + n) * 4 + 2 * r + {c}] *= scale;")
        return name

    def _cumsum(self, op: ir.Operation) -> None:
        core, value, result = self.core, op.operands[0], op.results[0]
        home = self.layout.places[result]
        if value in core.sums:
            raise UnsupportedError(f"scans: running sums of sums along rows ({op.location})")
        source = self.layout.places[value]
        reverse = str(ir.BoolAttr(op.attributes["reverse"]).value).lower()
        core.touch([(source, False, ""), (home, True, "")])
        kind = {"f64": "double", "f32": "float"}[home.element]
        begins = ", ".join(f"({kind} *){core.at(place)}" for place in (source, home))
        if is_row(result.type):
            (length,) = shape_of(result)
            core.writer.line(f"attn::running_sum<{length}, {reverse}>({begins});")
        else:
            rows, columns = shape_of(result)
            core.writer.line(f"attn::running_sums<{rows}, {columns}, {reverse}>({begins}, {home.stride});")

    def _solve(self, op: ir.Operation) -> None:
        """The inverse of the triangle, and its product with the right side, both cut into pieces of bf16."""
        core, (a, right), result = self.core, op.operands, op.results[0]
        rows, columns = shape_of(result)
        upper, pieces = flag(op, "upper"), self.layout.pieces
        grid, triangle = self.layout.grid((rows, columns)), self.layout.places[op, "triangle"]
        if rows > min(128, 16 * self.layout.warps) or (rows & rows - 1):  # a warp inverts one diagonal block of 16 rows
            raise UnsupportedError(f"scans: systems of {rows} rows ({op.location})")
        product = self.layout.places[op, "product"]
        if INVERSE in op.attributes:
            self._inverse(op, triangle, product)
            return
        cut = self.layout.places[op, "pieces"]
        core.touch([(triangle, True, ""), (cut, True, ""), (product, True, "")])
        if not self.layout.in_registers(a):
            raise UnsupportedError(f"scans: a triangle that is in no registers ({op.location})")
        name = core.tiles[result] = core.names.fresh("solved")
        begin = f"(float *){core.at(triangle)}"
        inverse = core.at(cut)
        other = f"(memory + {cut.begin + 2 * pieces * rows * rows})"
        side = core.tiles[right]
        if not self.layout.in_registers(right):
            raise UnsupportedError(f"scans: a right side that is in no registers ({op.location})")
        turned, square = str(upper).lower(), self.layout.grid((rows, rows)).down
        core.writer.line(
            f"attn::keep_triangle<{rows}, {square}, {turned}>({core.tiles[a]}, {begin});",
            f"attn::cut_results<{rows}, {columns}, {grid.down}, {pieces}>({side}, {other});",
            "__syncthreads();",
            f"attn::invert_triangle<{rows}, {pieces}>({begin}, (float *){core.at(product)});",
            f"attn::cut_inverse<{rows}, {turned}, {pieces}>({begin}, {inverse});",
        )
        core.meet()
        core.writer.line(
            f"float {name}[{grid.registers}];",
            f"attn::multiply_pieces<{rows}, {columns}, {grid.down}, {pieces}>({name}, {inverse}, {other});",
        )
        core.touch([(triangle, False, ""), (cut, False, ""), (product, False, "")])
        self.maps.scatter(result)

    def _inverse(self, op: ir.Operation, triangle: SharedPlace, product: SharedPlace) -> None:
        """The inverse of the triangle itself."""
        core, a, (rows, columns) = self.core, op.operands[0], shape_of(op.results[0])
        grid, turned, begin = self.layout.grid((rows, columns)), str(flag(op, "upper")).lower(), f"(float *){core.at(triangle)}"
        core.touch([(triangle, True, ""), (product, True, "")])
        if not self.layout.in_registers(a):
            raise UnsupportedError(f"scans: a triangle that is in no registers ({op.location})")
        core.writer.line(
            f"attn::keep_triangle<{rows}, {grid.down}, {turned}>({core.tiles[a]}, {begin});",
            "__syncthreads();",
            f"attn::invert_triangle<{rows}, {self.layout.pieces}>({begin}, (float *){core.at(product)});",
        )
        core.met()
        # Of upper triangles others take as long, or 4 % longer (an H100, 2026-11-27).
        if not flag(op, "upper") and (stores := stored_pieces(op)) is not None:
            self._store_pieces(op, begin, stores)
            core.touch([(triangle, False, ""), (product, False, "")])
            return
        name = self.maps.declare(op.results[0], "inverse")
        core.writer.line(f"attn::take_inverse<{rows}, {grid.down}, {turned}>({begin}, {name});")
        core.touch([(triangle, False, ""), (product, False, "")])
        self.maps.scatter(op.results[0])

    def _store_pieces(self, op: ir.Operation, begin: str, stores: list[ir.Operation]) -> None:
        """Two pieces of an inverse, from where it was made to memory."""
        core, texts = self.core, list[str]()
        for store in stores:
            target, place = store.operands[1], [core.value(value) for value in list(store.operands)[2:5]]
            texts += [core.address(target, place, core.aligned(target)), core.arguments.stride(core.view(target).argument, 2)]
        turned, count = str(flag(op, "upper")).lower(), core.value(stores[0].operands[5])
        core.writer.line(f"attn::store_inverse<{shape_of(op.results[0])[0]}, {turned}>({', '.join([begin, *texts, count])});")
        self._done.update([stores[0].operands[0].owner.operation, *stores])

    # ---- loops

    def loop(self, op: ir.Operation) -> None:
        """A loop whose carried tiles are changed in place."""
        core, inner = self.core, body(op)
        for start, argument, _, result in carried(op):
            self._begin(start, argument, op)
            core.tiles.update({result: core.tiles[argument]} if argument in core.tiles else {})
        index = core.names.fresh("at")
        begin, end, step = (core.value(value) for value in list(op.operands)[:3])
        early, stages = op in self.layout.ahead, self.layout.stages
        if early:
            self.traffic.fetch(op)
            if stages > 1:
                core.writer.line("int stage = 0;")
                core.meet()
                core.writer.line(f"if ({begin} < {end}) fetch({begin}, 0);")
        turn = f"{index} += {step}, stage ^= 1" if early and stages > 1 else f"{index} += {step}"
        once = ONCE in op.attributes and stages < 2
        with core.branch():
            if not once:  # the compiler moves addresses out of a loop, and registers do not suffice for them
                core.writer.line("#pragma unroll 1")
            with core.scope("" if once else f"for (int {index} = {begin}; {index} < {end}; {turn})"):
                if once:
                    core.writer.line(f"const int {index} = {begin};")
                if early and stages > 1:
                    core.writer.line("attn::wait_copies();")
                core.meet()
                if early and stages > 1:
                    core.writer.line(f"if ({index} + {step} < {end}) fetch({index} + {step}, stage ^ 1);")
                elif early:
                    core.writer.line(f"fetch({index}, 0);", self.traffic.arrived)
                    core.meet()
                core.scalars.bind(inner.arguments[0], index)
                self.block(inner)
                self._assign([(argument, value) for _, argument, value, _ in carried(op)])
        for _, argument, _, result in carried(op):
            if argument in self.layout.places:
                self.layout.places[result] = self.layout.places[argument]

    def _begin(self, start: ir.Value, argument: ir.Value, op: ir.Operation) -> None:
        """Where a carried tile is while a loop runs; it begins as `start`."""
        core = self.core
        if not is_tile(start):
            raise UnsupportedError(f"scans: a loop carries {start}, which is no tile ({op.location})")
        if is_row(start.type):
            self._copy_row(start, argument)
            return
        if not self.layout.in_registers(argument) or self.layout.read_across(argument):
            raise UnsupportedError(f"scans: a loop carries a tile that threads read from each other ({op.location})")
        count = self.layout.grid(shape_of(start)).registers
        name = core.tiles[argument] = core.names.fresh("carried")
        core.writer.line(f"float {name}[{count}];")
        with core.unrolled("n", count):
            core.writer.line(f"{name}[n] = {core.tiles[start]}[n];")

    def _copy_row(self, start: ir.Value, argument: ir.Value) -> None:
        core, (length,) = self.core, shape_of(start)
        source = core.sums[start][0] if start in core.sums else self.layout.places[start]
        home = self.layout.places[argument]
        core.touch([(source, False, "" if start in core.sums else ROW), (home, True, ROW)])
        core.writer.line(
            f"for (int i = threadIdx.x; i < {length}; i += {self.layout.threads})",
            f"  {core.item_of(home, 'i')} = {core.row_item(start, 'i')};",
        )

    def _assign(self, news: list[tuple[ir.Value, ir.Value]]) -> None:
        """Puts what an iteration yields where it is carried."""
        core = self.core
        for argument, value in news:
            if is_row(argument.type):
                if any(value == other for other, _ in news if other != argument):
                    raise UnsupportedError("scans: a loop exchanges rows that it carries")
                self._copy_row(value, argument)
            elif core.tiles[value] != core.tiles[argument]:
                if any(core.tiles[value] == core.tiles.get(other) for other, _ in news):
                    raise UnsupportedError("scans: a loop exchanges tiles that it carries")
                with core.unrolled("n", self.layout.grid(shape_of(value)).registers):
                    core.writer.line(f"{core.tiles[argument]}[n] = {core.tiles[value]}[n];")

    def _branch(self, op: ir.Operation) -> None:
        """A branch that all threads take together."""
        core = self.core
        if list(op.results):
            raise UnsupportedError(f"scans: a branch makes no tiles ({op.location})")
        condition = core.value(op.operands[0])
        for number, region in enumerate(op.regions):
            if list(region.blocks) and len(operations(region.blocks[0])) > 1:
                with core.branch(), core.scope(f"if ({condition})" if number == 0 else f"if (!({condition}))"):
                    self.block(region.blocks[0])

    def _extract(self, op: ir.Operation) -> None:
        """One element, for all threads."""
        self.core.touch(self.core.reads([op]))
        self.core.statement(op)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(SCALARS, lambda printer, op: printer.core.statement(op)),
    **dict.fromkeys(DOTS, lambda printer, op: printer.dot(op)),
    SOLVE: ScanPrinter._solve,
    "memref.subview": lambda printer, op: printer.core.view(op.results[0]),
    "scf.for": lambda printer, op: printer.loop(op),
    "scf.if": ScanPrinter._branch,
    "tensor.extract": ScanPrinter._extract,
    "tile.cumsum": ScanPrinter._cumsum,
    "tile.fill": ScanPrinter._fill,
    "tile.load": lambda printer, op: printer.traffic.load(op),
    "tile.map": lambda printer, op: printer.maps.print(op),
    "tile.store": lambda printer, op: printer.traffic.store(op),
}
