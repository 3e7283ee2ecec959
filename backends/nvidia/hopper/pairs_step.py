"""What the consumer warpgroups do with one block of queries: products, weights, sums over queries and sums over keys."""

from collections.abc import Callable, Mapping

from attn_mlir.backends.gpu.origins import for_op
from attn_mlir.backends.gpu.structure import hint
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.dropout import print_seeds
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, as_int, key_count, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_key_sums import FREE_WEIGHTS
from attn_mlir.backends.nvidia.hopper.pairs_late import HEAD, ROW, begin_apart, let_begin
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout, SharedBuffer, head_columns, split_rows
from attn_mlir.backends.nvidia.hopper.pairs_loop import PARITY, STAGE, RolePrinter, staged_values, step_limit
from attn_mlir.backends.nvidia.hopper.pairs_map import PairMap, ProductsInFlight, QueryValues, WeightRegisters, body_of
from attn_mlir.backends.nvidia.hopper.pairs_sums import QuerySums
from attn_mlir.backends.nvidia.hopper.pairs_tiles import WindowSums
from attn_mlir.backends.nvidia.hopper.pairs_turns import tell_tiles
from attn_mlir.backends.nvidia.hopper.pairs_uses import WeightUses, uses_of
from attn_mlir.backends.nvidia.hopper.pairs_values import column_values, early_row_values, early_value
from attn_mlir.backends.nvidia.hopper.tiles import STEP as DEPTH
from attn_mlir.backends.nvidia.hopper.tiles import RegRow, RegTile, Tile, round_up
from attn_mlir.backends.nvidia.hopper.wgmma import COLUMNS, SharedOperand, product
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all


class Consumers(RolePrinter):
    """The warpgroups that compute."""

    def __init__(self, core: Core, kernel: PairsKernel, layout: BackwardLayout, element: str) -> None:
        super().__init__(core, kernel, layout)
        self.element = element
        self.packed: dict[ir.Value, WeightRegisters] = {}
        self.sums = QuerySums(core, kernel, layout, element)
        self.tiles = WindowSums(core, kernel, layout)
        self.placed = () if layout.reduction_warps or layout.key_sums else ("tile.accumulate",)
        self._held: dict[ir.Value, str] = {}

    # ---- carried tiles

    def enter(self, carried: list[ir.Value], initial: list[ir.Value]) -> None:
        for name, value in zip(carried, initial, strict=True):
            self.core.tiles[name] = self.core.tiles[value]

    def leave(self, results: list[ir.Value], values: list[ir.Value]) -> None:
        for result, value in zip(results, values, strict=False):
            self.core.tiles[result] = self.core.tiles[value]

    def before_heads(self, block: ir.Block) -> None:
        key_count(self.core, self.kernel)
        print_seeds(self.core, find_all(block.owner.operation, "attn.kept"))
        for op in ops_of(block, "tile.fill"):
            self.core.tiles[op.results[0]] = self.core.row("state", self.core.value(op.operands[0]))

    def after_heads(self, block: ir.Block) -> None:
        self.core.seeds = {}
        for op in ops_of(block, "tile.scatter_add"):
            self.sums.scatter_keys(op)

    def _copy(self, op: ir.Operation, block: ir.Block) -> None:
        values = list(block.operations[-1].operation.operands)
        for result, value in zip(op.results, values, strict=True):
            tile = self.core.tiles[value]
            if result not in self.core.tiles:
                self.core.tiles[result] = tile
            elif self.core.tiles[result] != tile:
                raise UnsupportedError("hopper: a branch carries other tiles than the one beside it")

    def accumulators(self) -> None:
        """Declares the sums over queries."""
        core = self.core
        for op in self.kernel.fills:
            columns = ir.RankedTensorType(op.results[0].type).shape[1]
            core.tiles[op.results[0]] = core.fragment("sum", columns, "f32", core.value(op.operands[0]))

    def begin(self) -> None:
        """Declares where sums that are late belong."""
        if self.layout.late:
            self.core.writer.line(f"int {ROW} = -1;", *([] if self.layout.reduction_warps else [f"int {HEAD} = 0;"]))

    def last(self) -> None:
        """Makes what a program's last step has left."""
        if self.layout.late:
            self.sums.last({op.results[0]: op.operands[0] for op in self.kernel.key_loads})

    def end(self) -> None:
        """Waits until nothing of the weights is read any more: as often as the warpgroup of sums over keys has told that it is not."""
        for copy in range(2):
            self.core.writer.line(f"attn::named_sync({FREE_WEIGHTS + copy * self.layout.warpgroups} + warpgroup, 256);")

    def hold_keys(self) -> None:
        """Reads keys and values, where products take them from registers: shared memory is what such products wait for.

        All of them, or their first columns (`BackwardLayout.held`).
        """
        core, layout = self.core, self.layout
        if not layout.key_sums and not layout.held:
            return
        for memory, buffer in self.held_keys().items():
            depth = round_up(buffer.columns, DEPTH) if layout.key_sums else layout.held * DEPTH
            name = self._held[memory] = core.names.fresh("held")
            core.writer.line(f"uint32_t {name}[{depth // 4}];")
            with core.unrolled("k", depth // DEPTH):
                atom, within = (f" + k / 4 * {buffer.rows * 128}", "k % 4") if depth > COLUMNS else ("", "k")
                core.writer.line(
                    "uint32_t four[4];",
                    "const uint32_t place = (row / 16 * 16 + lane % 16) * 128 + lane / 16 * 16;",
                    f"attn::load_matrices(shared + {buffer.offset}{atom} + attn::swizzle_128(place + 32 * ({within})), four);",
                )
                with core.unrolled("i", 4):
                    core.writer.line(f"{name}[4 * k + i] = four[i];")

    def held_keys(self) -> Mapping[ir.Value, SharedBuffer]:
        """The tiles of keys that it holds, or the first columns of."""
        return self.layout.keys

    # ---- one step

    def step(self, block: ir.Block) -> None:
        core = self.core
        dots = ops_of(block, "tile.dot")
        maps = [op for op in ops_of(block, "tile.map") if len(list(op.operands)) == 2]
        limit = step_limit(list(maps[0].operands)[1]) if maps else None
        self._waited: set[ir.Value] = set()
        self._memory = {op.results[0]: op.operands[0] for op in (*self.kernel.key_loads, *ops_of(block, "tile.load"))}
        if dots and maps:
            dots = self._order(dots, maps[0])
        read: dict[ir.Value, str] = {}
        if self.layout.apart:
            begin_apart(core)
        for number, op in enumerate(dots):
            self._dot(op)
            if self.layout.early and number == 0:
                read = self._read_rows(block, maps[0], op.results[0])
        with core.scope(None):
            text = None if limit is None else as_int(core, limit)
            self._maps(block, maps, dots, text, read)
            self._products(block, dots, text)
            uses = uses_of(block)[0]
            inside = [op for scatters in uses.scattered.values() for op in scatters]
            inside += [op for scatters in uses.banded.values() for op, _ in scatters]
            for op in ops_of(block, "tile.scatter_add"):
                if op not in inside:
                    self.sums.scatter_pairs(op, text)
            for op in ops_of(block, "tile.map"):
                if op not in maps:
                    self._carry(op)

    def _order(self, dots: list[ir.Operation], first_map: ir.Operation) -> list[ir.Operation]:
        """The product whose elements something can be done with alone comes first."""
        for op in dots:
            if early_value(body_of(first_map), op.results[0]) is not None:
                return [op, *(other for other in dots if other != op)]
        return dots

    def _wait(self, memory: ir.Value) -> None:
        """Waits for the tile of a tensor of queries."""
        if memory not in self._waited:
            self._waited.add(memory)
            pipe = list(self.layout.queries).index(memory)
            self.core.writer.line(f"attn::barrier_wait({self._full(pipe)}, {PARITY});")  # its bytes have landed

    def _full(self, pipe: int) -> str:
        return f"barriers + {self.layout.full(pipe) - self.layout.barriers} + 8 * {STAGE}"

    def _release(self, pipe: int, stage: str = STAGE) -> None:
        free = f"barriers + {self.layout.free(pipe) - self.layout.barriers} + 8 * {stage}"
        if pipe >= len(self.layout.queries):  # all lanes have read the values of rows
            self.core.writer.line("attn::warp_sync();")
        self.core.writer.line(f"attn::warp_arrive({free}, lane == 0);")

    def _query_operand(self, memory: ir.Value, mn_major: bool) -> SharedOperand:
        buffer = self.layout.queries[memory]
        address = f"shared + {buffer.offset} + {buffer.bytes} * {STAGE}"
        return SharedOperand(address, buffer.rows * 128, mn_major)

    @for_op
    def _dot(self, op: ir.Operation) -> None:
        core, queries = self.core, self.kernel.queries
        if not ir.BoolAttr(op.attributes["transpose_b"]).value:
            raise UnsupportedError("hopper: weights of pairs come from products of keys and queries")
        key, query = (self._memory[value] for value in op.operands)
        self._wait(query)
        keys, held = self.layout.keys[key], self._held.get(key, "")
        part = "" if self.layout.roles else f" + {64 * 128} * warpgroup"
        shared = SharedOperand(f"shared + {keys.offset}{part}", keys.rows * 128)
        fragment = core.fragment("product", queries)
        core.tiles[op.results[0]] = fragment
        for form in (["registers"] if held else []) + (["shared"] if not (held and self.layout.key_sums) else []):
            core.uses("", queries, form, self.element)
        core.writer.line("attn::wgmma_begin();")
        depth = round_up(keys.columns, DEPTH)
        a = held if held and self.layout.key_sums else shared
        some = (held, self.layout.held) if held else ("", 0)
        core.writer.all(product(fragment.name, queries, depth, a, self._query_operand(query, False), self.element, clear=True, held=some))
        core.writer.line("attn::wgmma_commit();")

    def _wait_for_rows(self) -> None:
        layout = self.layout
        # The row values and windows are written: ordinary writes, published by their lanes' arrivals.
        self.core.writer.line(
            f"attn::barrier_wait({self._full(layout.pipes - 1)}, {PARITY});",
            f"const uint32_t columns = {layout.rows_at(STAGE)} + 4 * column;",
        )

    def _read_rows(self, block: ir.Block, first_map: ir.Operation, product: ir.Value) -> dict[ir.Value, str]:
        """Reads the values of query rows that early values need while their product is made; the registers by value, two for 8 queries."""
        core, queries, slots = self.core, self.kernel.queries, staged_values(self.core, block)
        self._wait_for_rows()
        found: dict[ir.Value, str] = {}
        for value in early_row_values(first_map, product, queries <= 64, core.scalars.type_of):
            found[value] = name = core.names.fresh(hint(value, "of_queries"))
            core.writer.line(f"float2 {name}[{queries // 8}];")
            with core.unrolled("c", queries // 8):
                core.writer.line(f"{name}[c] = attn::load_shared2(columns + {slots.index(value) * 4 * core.width} + 32 * c);")
        return found

    def _maps(
        self, block: ir.Block, maps: list[ir.Operation], dots: list[ir.Operation], limit: str | None, read: dict[ir.Value, str]
    ) -> None:
        core, layout = self.core, self.layout
        if layout.column_slots and not layout.early:
            self._wait_for_rows()
        fragments = [core.tiles[op.results[0]] for op in dots]

        def land(pending: int, some: list[Tile]) -> None:
            if some:
                core.writer.line(f"attn::wgmma_wait<{pending}>();")
                core.writer.all(f"attn::hold({tile.name});" for tile in some if isinstance(tile, RegTile))

        slots = {value: slot for slot, value in enumerate(staged_values(core, block))}
        products = [op.results[0] for op in dots]
        early = bool(maps) and len(dots) > 1 and early_value(body_of(maps[0]), products[0]) is not None
        uses, rounds = uses_of(block)
        for number, op in enumerate(maps):
            if rounds is not None and op == rounds:
                continue
            own = {value: slots[value] for value in column_values(op, core.scalars.type_of)}
            of_first = (uses, self.tiles.of_step(block)) if op == maps[0] else (WeightUses(), {})
            if number:
                awaited = ProductsInFlight()  # the first map has waited for all
            elif early:
                landed = lambda: self._first_landed(land, dots, fragments), lambda: land(0, fragments[1:])
                awaited = ProductsInFlight(products, *landed, (lambda: self._pin(dots)) if layout.early else None)
            else:
                awaited = ProductsInFlight(rest=lambda: land(0, fragments))
            PairMap(core, op, layout, QueryValues(own, read, limit), of_first, self.packed).print(awaited)
        if layout.column_slots:
            core.writer.line("__syncwarp();")  # all lanes have read the row values before one gives them back for the warp
            if not self.tiles.of_step(block):
                self._release(layout.pipes - 1)

    def _first_landed(self, land: Callable[[int, list[Tile]], None], dots: list[ir.Operation], fragments: list[Tile]) -> None:
        """Waits for the first product, whose weights can be computed alone; the other consumer may begin a program then."""
        land(len(dots) - 1, fragments[:1])
        if self.layout.apart:
            let_begin(self.core)

    def _pin(self, dots: list[ir.Operation]) -> None:
        """Keeps early values where they are printed: ptxas moves most exponentials after the wait for the second product.

        It moves none over a wait for a barrier, which is that of a tile that has landed.
        """
        tile = self.core.tiles[dots[0].results[0]]
        hold = [f"attn::hold({tile.name});"] if isinstance(tile, RegTile) else []
        pipe = list(self.layout.queries).index(self._memory[dots[1].operands[1]])
        self.core.writer.line(*hold, f"attn::barrier_wait({self._full(pipe)}, {PARITY});", *hold)

    def _products(self, block: ir.Block, dots: list[ir.Operation], limit: str | None) -> None:
        """Sums over queries and over keys; the first sum over queries runs while weights go to shared memory."""
        core, layout = self.core, self.layout
        sums, adds = ops_of(block, "tile.dot_add"), ops_of(block, "tile.accumulate")
        own = adds if not layout.key_sums else []
        groups = [sums[:1], own, sums[1:]] if adds else [sums]
        last = {self._memory[op.operands[2]]: n for n, group in enumerate(groups) for op in group if op.name == "tile.dot_add"}
        for number, group in enumerate(groups):
            if number == 1 and adds:
                self.sums.clear_missing_keys([self.packed[value] for value in dict.fromkeys(op.operands[0] for op in adds)])
                self.tiles.clear(block, STAGE)
                self.sums.exchange(adds, self.packed)
                self.tiles.send(block, STAGE, limit)
                if layout.tile_warps:
                    tell_tiles(core, layout)
                if layout.late:
                    self.sums.await_late()
            if group:
                core.writer.line("attn::wgmma_begin();")
                for op in group:
                    if op.name == "tile.dot_add":
                        self._dot_add(op)
                if number == 1 and adds:
                    free = core.tiles[dots[0].results[0]]
                    self.sums.multiply(adds, self._memory, free if isinstance(free, RegTile) else None)
                core.writer.line("attn::wgmma_commit();")
            if group and number == 1 and adds:
                self.sums.scatter_bands(uses_of(block)[0].banded, self.packed, limit)
        pipes = {memory: pipe for pipe, memory in enumerate(layout.queries)}
        released: set[ir.Value] = set()
        after = [sum(bool(group) for group in groups[n + 1 :]) for n in range(len(groups))]
        if adds:
            done = [memory for memory in pipes if last.get(memory, -1) <= 0]
            if sums[:1]:
                # The first sum over queries is done, those that were started later run on: it alone read these tiles.
                core.writer.line(f"attn::wgmma_wait<{after[0]}>();")
                for memory in done:
                    self._release(pipes[memory])
                released.update(done)
            if own:
                # Sums over keys are done, and leave while the other sums over queries are made.
                core.writer.line(f"attn::wgmma_wait<{after[1]}>();")
                if layout.late:
                    self.sums.add_late(adds)
                else:
                    self.sums.add(adds, limit)
        # The last products read weights in registers, and tiles that are given back below.
        core.writer.line("attn::wgmma_wait<0>();")
        for fill in self.kernel.fills:
            tile = core.tiles[fill.results[0]]
            if isinstance(tile, RegTile):
                core.writer.line(f"attn::hold({tile.name});")
        for memory, pipe in pipes.items():
            if memory not in released:
                self._release(pipe)
        if layout.late:
            self.sums.follow(adds)
        if self.tiles.of_step(block):
            self.tiles.free()
            self._release(layout.pipes - 1)

    @for_op
    def _dot_add(self, op: ir.Operation) -> None:
        core = self.core
        accumulator, weights, query = op.operands
        tile, packed = core.tiles[accumulator], self.packed.get(weights)
        if not isinstance(tile, RegTile) or packed is None:
            raise UnsupportedError("hopper: sums over queries multiply weights of 16 bits")
        self._wait(self._memory[query])
        operand = self._query_operand(self._memory[query], True)
        core.uses("", tile.columns, "registers", self.element, True)
        core.writer.all(product(tile.name, tile.columns, self.kernel.queries, packed.name, operand, self.element))
        core.tiles[op.results[0]] = tile

    def _carry(self, op: ir.Operation) -> None:
        """A map over keys that updates carried values in place."""
        core, block = self.core, body_of(op)
        yielded = list(block.operations[-1].operation.operands)
        users = [use.owner.operation for result in op.results for use in result.uses]
        terminator = op.block.operations[-1].operation
        if any(user != terminator for user in users):
            raise UnsupportedError("hopper: values of keys are only carried on")
        with core.unrolled("h", 2):
            core.scalars.bind(block.arguments[0], "(row + 8 * h)")
            texts = [core.scalars.emit(value) for value in yielded]
            for text, result in zip(texts, op.results, strict=True):
                tile = core.tiles[self._carried(result, terminator)]
                if not isinstance(tile, RegRow):
                    raise UnsupportedError("hopper: values of keys are carried as such")
                core.writer.line(f"{tile.name}[h] = {text};")
                core.tiles[result] = tile

    def _carried(self, result: ir.Value, terminator: ir.Operation) -> ir.Value:
        """The carried value that a yielded one replaces, of the loop around the branches that yield it."""
        while True:
            place, block = list(terminator.operands).index(result), terminator.block
            if list(block.arguments):
                return list(block.arguments)[1 + place]
            branch = block.owner.operation
            result, terminator = branch.results[place], branch.block.operations[-1].operation


def accumulated(kernel: PairsKernel) -> dict[ir.Value, int]:
    """The tensors that sums over keys are added to, and their columns."""
    return {op.operands[2]: head_columns(op.operands[2]) for op in kernel.step_ops("tile.accumulate")}


__all__ = ["Consumers", "accumulated", "split_rows"]
