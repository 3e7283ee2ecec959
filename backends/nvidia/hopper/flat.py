"""The main loop without ends: blocks of keys of all programs that a block of threads runs follow each other.

In the iteration that finishes a program the scores of the first block of the next one are computed already, so that tensor cores do not
wait between programs. The producer decides everything: what program comes next, where blocks of keys begin and how many keys exist travel
through shared memory beside the tiles. Queries have two buffers; a program's output leaves through the one that its queries were in.
"""

from collections.abc import Callable

from attn_mlir.backends.nvidia.hopper.consumer import Consumer
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.memory import Memory
from attn_mlir.backends.nvidia.hopper.overlap import Overlap, Step
from attn_mlir.backends.nvidia.hopper.programs import Programs
from attn_mlir.backends.nvidia.hopper.stores import Stores, through_tma
from attn_mlir.backends.nvidia.hopper.structure import body, constant, maker, operations, partial_sums, yielded
from attn_mlir.backends.nvidia.hopper.tiles import ROWS, Fragment, Row, Shared, Tile, panels, tile_bytes
from attn_mlir.backends.nvidia.hopper.wgmma import COLUMNS, ROW_BYTES, STEP
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_PROGRAM = ("block", "head", "batch", "more")
"""What the consumers are told of a program; the last one has no `more`."""
_PARTIAL, _LAST = 1 << 16, 1 << 17
"""What they are told of a block of keys, beside its first key and the number of its keys."""


def fits(kernel: ir.Operation, chain: list[ir.Operation]) -> bool:
    """Whether this schedule can run a kernel with this main loop: before it, queries are loaded and initial values made, no more."""
    ops = operations(body(kernel))
    starts = list(chain[0].operands)[3:]
    for op in ops[: ops.index(chain[0])]:
        if op.name == "tile.map" and not all(use.owner.operation == chain[0] for result in op.results for use in result.uses):
            return False
        if op.name == "tile.fill" and (op.results[0] not in starts or constant(op.operands[0]) != 0.0):
            return False
        if op.regions and op.name != "tile.map":
            return False
    later = ops[ops.index(chain[-1]) + 1 :]
    loads = [op for op in ops if op.name == "tile.load"]
    reads = any(operand == load.results[0] for op in later for load in loads for operand in op.operands)
    return not reads and all(op in chain or not op.name.startswith("scf.") for op in ops)


class Flat:
    """Prints both roles of a kernel with that schedule."""

    def __init__(self, core: Core, memory: Memory, overlap: Overlap, programs: Programs, kernel: ir.Operation, in_registers: bool) -> None:
        self.core, self.memory, self.overlap, self.programs, self.kernel = core, memory, overlap, programs, kernel
        self.ops = operations(body(kernel))
        self.chain = [step.loop for step in overlap.steps]
        self.queries = [op for op in self.ops if op.name == "tile.load"]
        self.addresses: dict[ir.Operation, tuple[str, int]] = {}
        self.in_registers = in_registers

    def allocate(self) -> None:
        """Reserves the queries' two buffers and what the roles tell each other."""
        core, layout = self.core, self.memory.layout
        for op in self.queries:
            rows, columns = core.rows(op.results[0].type), core.columns(op.results[0].type)
            name = core.names.fresh(core.arguments.names[core.arguments.number(op.operands[0])])
            size = tile_bytes(rows, columns)
            self.addresses[op] = (layout.tile(f"k{name[0].upper()}{name[1:]}", 2 * size), size)
        layout.barrier("kQueriesFull", 2, 1)
        layout.barrier("kQueriesFree", 2, self.overlap.warpgroups)
        layout.slot("kProgram", 2 * 16)
        layout.slot("kBlock", self.overlap.keys.stages * 8)

    # ---- the producer

    def producer(self) -> None:
        """Decides which programs and blocks are next, and loads them.

        The queries of the next program are loaded while this one still runs, as soon as the consumers are done with the buffer that they go
        to. The consumers give it back with the first values of this program: by then `stages` further blocks have been sent, and they need
        no more of them for it. (Not where blocks are classified: that takes the registers.)
        """
        core, writer, programs = self.core, self.core.writer, self.programs
        writer.all(self.memory.turns())
        if programs.order == "tiles":
            writer.line("int program = 0;", "constexpr int programs = 1;")
        else:
            writer.line("int program = blockIdx.x;")
        writer.line("int next_block, next_head, next_batch;")
        self._ahead()
        writer.line("ahead(0);")
        with core.scope("for (uint32_t round = 0; program < programs; ++round)"):
            writer.line("const int block = next_block, head = next_head, batch = next_batch;")
            programs.draw()
            with writer.block("const auto follow = [&]()"):
                programs.follow()
                writer.line("ahead(round + 1);")
            writer.lines[-1] += ";"
            self.overlap.positions()
            self._send()
            with core.scope("for (int n = 0; n < key_blocks; ++n)"):
                self._blocks()
            if self.overlap.classified:
                writer.line(f"send(found_kv, found_count | {_LAST});", "follow();")
            else:
                writer.line(f"if (sent <= {self.overlap.keys.stages}) follow();")

    def _ahead(self) -> None:
        """A function that tells the consumers of the next program, or that there is none, and loads its queries."""
        core, writer = self.core, self.core.writer
        message = "shared + kProgram + round % 2 * 16"
        full = "shared + kQueriesFull + round % 2 * 8"
        with core.scope("const auto ahead = [&](uint32_t round)"):
            writer.line("attn::barrier_wait(shared + kQueriesFree + round % 2 * 8, (round / 2 & 1) ^ 1);")
            with writer.block("if (program >= programs)"):
                with writer.block("if (lane == 0)"):
                    writer.line(f"attn::store_shared_int4({message}, 0, 0, 0, 0);", f"attn::barrier_arrive({full});")
                writer.line("return;")
            self.programs.decode()
            first = [core.value(op.operands[3]) for op in self.queries]
            with writer.block("if (lane == 0)"):
                writer.line(f"attn::store_shared_int4({message}, block, head, batch, 1);")
                total = sum(size for _, size in self.addresses.values())
                writer.line(f"attn::barrier_arrive_expect({full}, {total});")
                for op, begin in zip(self.queries, first, strict=True):
                    self._load_queries(op, begin, full)
            writer.line("__syncwarp();", "next_block = block, next_head = head, next_batch = batch;")
        writer.lines[-1] += ";"

    def _send(self) -> None:
        """A function that loads a block of keys and tells the consumers about it."""
        core, writer, general = self.core, self.core.writer, self.overlap.general
        keys, values = self.overlap.keys, self.overlap.values
        place = ["kv", core.value(general.keys.operands[2]), core.value(general.keys.operands[1])]
        if not self.overlap.classified:
            writer.line("int sent = 0;")
        with writer.block("const auto send = [&](int kv, int count_and_kind)"):
            writer.line(f"attn::barrier_wait({keys.barrier('free')}, ({keys.parity()}) ^ 1);")
            with writer.block("if (lane == 0)"):
                at = f"shared + kBlock + turn % {keys.stages} * 8"
                writer.line(f"attn::store_shared_int({at}, kv);", f"attn::store_shared_int({at} + 4, count_and_kind);")
                self.memory.copy_stage(keys, place)
            writer.line("__syncwarp();", f"attn::barrier_wait({values.barrier('free')}, ({values.parity()}) ^ 1);")
            with writer.block("if (lane == 0)"):
                self.memory.copy_stage(values, place)
            writer.line("__syncwarp();", "++turn;")
            if not self.overlap.classified:
                writer.line(f"if (++sent == {keys.stages + 1}) follow();")
        writer.lines[-1] += ";"
        if self.overlap.classified:
            writer.line("// A block is sent when the next one is known, because the last one is marked.")
            writer.line(f"int found_kv = 0, found_count = {_PARTIAL};", "bool found = false;")

    def _blocks(self) -> None:
        """Block n: where it is, what it is."""
        core, writer, overlap = self.core, self.core.writer, self.overlap
        writer.line("const int kv = found_blocks == 0 ? 0 : begin_of(n);")
        partial = f"(n < partial_blocks || found_blocks == 0 ? {_PARTIAL} : 0)"
        count = f"found_blocks == 0 ? 0 : min({overlap.keys.rows}, end_of(n) - kv)"
        if not overlap.classified:
            writer.line(f"const int count = {count};")
            writer.line(f"send(kv, count | {partial} | (n + 1 == key_blocks ? {_LAST} : 0));")
            return
        writer.line(f"int count = ({count}) | {partial};")
        for step in overlap.order:
            if step.some is None or step.every is None:
                continue
            with core.scope("if (n >= partial_blocks && found_blocks > 0)"):
                core.scalars.bind(step.position, "kv")
                writer.line(f"if (!{core.value(step.some)}) continue;", f"if (!{core.value(step.every)}) count |= {_PARTIAL};")
        writer.line("if (found) send(found_kv, found_count);", "found = true, found_kv = kv, found_count = count;")

    def _load_queries(self, op: ir.Operation, begin: str, full: str) -> None:
        core = self.core
        name, size = self.addresses[op]
        rows, columns = core.rows(op.results[0].type), core.columns(op.results[0].type)
        descriptor = core.arguments.descriptor(op.operands[0], COLUMNS, rows)
        for panel in range(panels(columns)):
            address = f"shared + {name} + round % 2 * {size}" + (f" + {panel * rows * ROW_BYTES}" if panel else "")
            core.writer.line(f"attn::tma_load({address}, {descriptor}, {full}, {panel * COLUMNS}, {begin}, head, batch);")

    # ---- the consumers

    def consumer(self, consumer: Consumer, stores: Stores) -> None:
        """Computes."""
        core, writer, overlap = self.core, self.core.writer, self.overlap
        consumer.maps.partial |= partial_sums(self.chain)
        carried = self._declare(consumer)
        self._staging(stores)
        through = all(through_tma(op.operands[1].type) for op in self.ops if op.name == "tile.store" and core_columns(op))
        writer.line("uint32_t round = 0;", "int block, head, batch, more, old_block = 0, old_head = 0, old_batch = 0;")
        with writer.block("const auto next_program = [&]()"):
            self._fetch()
        writer.lines[-1] += ";"
        with writer.block("const auto release = [&]()"):
            if not through:
                writer.line("attn::named_sync(8 + warpgroup, 128);")
            with writer.block("if (threadIdx.x % 128 == 0)"):
                writer.line("attn::bulk_wait_read<0>();", "attn::barrier_arrive(shared + kQueriesFree + (round + 1) % 2 * 8);")
        writer.lines[-1] += ";"
        if self.in_registers:
            self._registers()
        writer.line("attn::barrier_wait(shared + kQueriesFull, 0);", "next_program();")
        if self.in_registers:
            writer.line("load_queries();")
        self._initial(consumer, carried)
        writer.line("bool ends;", "// The first block: nothing is in flight yet.")
        with core.scope(""):
            self._scores(consumer, overlap.general)
            consumer.products.wait(0, self.scores)
            self._place()
            self.memory.free(overlap.keys)
            self._maps(consumer, overlap.general, carried)
            consumer.products.pack(self.weights, self.packed)
        writer.line("++turn;", "bool first = true;", "bool leaving = false;")
        if overlap.take_turns:
            writer.line(f"if (warpgroup == {overlap.warpgroups - 1}) attn::named_arrive(1, 256);")
        with core.scope("for (;; ++turn)"):
            self._iteration(consumer, carried)
        writer.line("// The sums of the last block of all.")
        with core.scope(""):
            overlap.sums(consumer, overlap.general, self.packed, self.accumulator, "first")
            consumer.products.wait(0, self.accumulator)
            rows = [tile for tile in carried if isinstance(tile, Row)]
            writer.line(*(f"const float (&old_{row.name})[2] = {row.name};" for row in rows))
            self._finish(consumer, carried)
        stores.finish()

    def _declare(self, consumer: Consumer) -> list[Tile]:
        """Registers of what is carried from block to block, in the order of the loop's values."""
        core, overlap = self.core, self.overlap
        self.scores = core.fragment("s", overlap.keys.rows)
        general = overlap.general
        carried: list[Tile] = []
        names = [_name(value) for value in yielded(general.block)]
        for argument, name in zip(list(body(general.loop).arguments)[1:], names, strict=True):
            if ir.RankedTensorType(argument.type).rank == 1:
                row = core.row(name, partial=argument in consumer.maps.partial)
                core.names.fresh(f"old_{row.name}")
                carried.append(row)
            else:
                carried.append(core.fragment("o", core.columns(argument.type)))
        position = [list(body(general.loop).arguments)[1:].index(general.sums.operands[0])]
        accumulator = carried[position[0]]
        if not isinstance(accumulator, Fragment) or sum(isinstance(tile, Fragment) for tile in carried) != 1:
            raise UnsupportedError("hopper: the main loop carries one accumulator")
        self.accumulator = accumulator
        self.packed = core.names.fresh("packed")
        for step in overlap.steps:
            core.tiles.update(zip(list(body(step.loop).arguments)[1:], carried, strict=True))
        core.writer.line(f"uint32_t {self.packed}[{overlap.keys.rows // 4}];")
        self.factor = core.row("factor") if general.sums.name == "tile.dot_rescale" else None
        weights = list(general.sums.operands)[-2]
        self.weights = Fragment(self.scores.name, self.scores.columns, str(ir.RankedTensorType(weights.type).element_type))
        return carried

    def _staging(self, stores: Stores) -> None:
        """Lets outputs leave through the queries' buffers, if they fit."""
        columns = max((core_columns(op) for op in self.ops if op.name == "tile.store"), default=0)
        name, size = next(iter(self.addresses.values()))
        if columns and tile_bytes(stores.rows, columns) <= size:
            stores.staging = f"{name} + (round + 1) % 2 * {size}"
            stores.fresh = True

    def _fetch(self) -> None:
        """The program that the next blocks belong to."""
        writer = self.core.writer
        writer.line("const int4 message = attn::load_shared_int4(shared + kProgram + round % 2 * 16);")
        writer.line(*(f"{name} = attn::uniform(message.{field});" for name, field in zip(_PROGRAM, "xyzw", strict=True)))

    def _initial(self, consumer: Consumer, carried: list[Tile]) -> None:
        """The carried row values at the beginning of a program."""
        core, starts = self.core, list(self.chain[0].operands)[3:]
        with core.scope(""):
            for op in self.ops[: self.ops.index(self.chain[0])]:
                if op.name == "tile.map":
                    consumer.maps.print(op)
                elif op.name == "tile.fill" and ir.RankedTensorType(op.results[0].type).rank == 1:
                    core.tiles[op.results[0]] = core.row("start", core.value(op.operands[0]))
            for tile, start in zip(carried, starts, strict=True):
                value = core.tiles.get(start)
                if isinstance(tile, Row) and isinstance(value, Row):
                    for h in range(2):
                        number = f"lane % 4 == 0 ? {value.name}[{h}] : 0.0f" if tile.partial else f"{value.name}[{h}]"
                        core.writer.line(f"{tile.name}[{h}] = {number};")

    def _iteration(self, consumer: Consumer, carried: list[Tile]) -> None:
        core, writer, overlap, products = self.core, self.core.writer, self.overlap, consumer.products
        rows = [tile for tile in carried if isinstance(tile, Row)]
        writer.line("const bool last = ends;")
        with writer.block("if (last)"):
            writer.line("if (leaving) release();", "leaving = false;", "++round;")
            writer.line("attn::barrier_wait(shared + kQueriesFull + round % 2 * 8, round / 2 & 1);")
            writer.line(*(f"old_{name} = {name};" for name in _PROGRAM[:3]), "next_program();", "if (!more) break;")
            if self.in_registers:
                writer.line("load_queries();")
        self._scores(consumer, overlap.general, "attn::named_sync(1 + warpgroup, 256);" if overlap.take_turns else "")
        overlap.sums(consumer, overlap.general, self.packed, self.accumulator, "first")
        if overlap.take_turns:
            writer.line(f"attn::named_arrive(1 + (warpgroup + 1) % {overlap.warpgroups}, 256);")
        products.wait(1, self.scores)
        self._place()
        self.memory.free(overlap.keys)
        writer.line(*(f"const float old_{row.name}[2] = {{{row.name}[0], {row.name}[1]}};" for row in rows))
        with writer.block("if (last)"):
            self._initial(consumer, carried)

        def sums_done() -> None:
            whole = [row for row in rows if not row.partial]
            if whole and overlap.pin:
                writer.line(f"attn::pin({whole[0].name}[0] + {whole[0].name}[1]);")
            products.wait(0, self.accumulator)
            self.memory.free(overlap.values, overlap.before)

        if overlap.inner is not None:
            with core.scope(f"if (kind & {_PARTIAL})"):
                self._maps(consumer, overlap.general, carried, sums_done)
                products.pack(self.weights, self.packed)
            with core.scope("else"):
                self._maps(consumer, overlap.inner, carried, sums_done)
                products.pack(self.weights, self.packed)
        else:
            with core.scope(""):
                self._maps(consumer, overlap.general, carried, sums_done)
                products.pack(self.weights, self.packed)
        writer.line("if (leaving) release();", "leaving = last;")
        with core.scope("if (last)"):
            self._finish(consumer, carried)
        if self.factor is not None:
            with writer.block("else"):
                products.rescale(self.accumulator, self.factor, overlap.vote)
        writer.line("first = last;")

    def _scores(self, consumer: Consumer, step: Step, before: str = "") -> None:
        """Starts the product of queries and keys of the next block."""
        products, overlap, writer = consumer.products, self.overlap, self.core.writer
        keys = self.memory.wait(overlap.keys)
        if before:
            writer.line(before)
        left = "queries" if self.in_registers else products.left(self._queries(step, keys.element))
        products.begin()
        products.start(self.scores, left, keys, keys.depth, True, True, keys.element)
        products.commit()

    def _queries(self, step: Step, element: str) -> Shared:
        """The queries of this program."""
        load = maker(step.scores.operands[0])
        if load is None or load not in self.addresses:
            raise UnsupportedError("hopper: scores are products of queries as they were loaded")
        name, size = self.addresses[load]
        rows, columns = self.core.rows(load.results[0].type), self.core.columns(load.results[0].type)
        return Shared(f"shared + {name} + round % 2 * {size}", rows, columns, element)

    def _registers(self) -> None:
        """A function that reads this warp's queries as left operand of its products."""
        writer, step = self.core.writer, self.overlap.general
        tile = self._queries(step, "")
        writer.line(f"uint32_t queries[{tile.depth // 4}];")
        with writer.block("const auto load_queries = [&]()"):
            writer.line(f"const uint32_t from = {tile.address} + warpgroup * {ROWS * ROW_BYTES};")
            writer.line("const uint32_t place = (threadIdx.x / 32 % 4 * 16 + lane % 16) * 128 + lane / 16 * 16;")
            with writer.unrolled("k", tile.depth // STEP):
                writer.line(
                    "uint32_t four[4];",
                    f"attn::load_matrices(from + k / 4 * {tile.panel_bytes} + attn::swizzle_128(place + k % 4 * 32), four);",
                )
                with writer.unrolled("i", 4):
                    writer.line("queries[4 * k + i] = four[i];")
        writer.lines[-1] += ";"

    def _place(self) -> None:
        """Reads which keys the block has, before its stage is given back."""
        writer, at = self.core.writer, f"shared + kBlock + turn % {self.overlap.keys.stages} * 8"
        writer.line(f"const int kv = attn::load_shared_int({at}), kind = attn::uniform(attn::load_shared_int({at} + 4));")
        writer.line(f"const int count = kind % {_PARTIAL};", f"ends = kind / {_LAST};")

    def _maps(self, consumer: Consumer, step: Step, carried: list[Tile], before: Callable[[], None] | None = None) -> None:
        """From scores to weights, in place, and to the new row values."""
        core, writer = self.core, self.core.writer
        core.scalars.bind(step.position, "kv")
        if not step.whole:
            core.scalars.bind(list(step.keys.operands)[-1], "count")
        core.tiles[step.scores.results[0]] = self.scores
        weights = list(step.sums.operands)[-2]
        consumer.maps.targets[weights] = self.weights
        # Sums that are in flight read the weights of the block before: what comes before the weights, or they alone, is computed meanwhile.
        maps = [op for op in step.rest if op.name == "tile.map"]
        alone = maps.index(maker(weights)) == 0
        for op in step.rest:
            if before is not None and op == maker(weights) and not alone:
                before()
            consumer.operation(op, [])
            if before is not None and op == maker(weights) and alone:
                if self.overlap.pin:
                    writer.line(f"attn::hold({self.weights.name});")
                before()
        made = core.tiles[weights]
        if made != self.weights and isinstance(made, Fragment):
            with writer.unrolled("c", made.registers):
                writer.line(f"{self.weights.name}[c] = {made.name}[c];")
        core.tiles[step.sums.results[0]] = self.accumulator
        if self.factor is not None:
            factor = core.tiles[step.sums.operands[1]]
            if isinstance(factor, Row):
                writer.line(*(f"{self.factor.name}[{h}] = {factor.name}[{h}];" for h in range(2)))
        consumer.assign(carried, yielded(step.block))

    def _finish(self, consumer: Consumer, carried: list[Tile]) -> None:
        """What follows the loop, for the program before."""
        core, writer = self.core, self.core.writer
        writer.line("const int block = old_block, head = old_head, batch = old_batch;")
        for result, tile in zip(self.chain[-1].results, carried, strict=True):
            old = Row(f"old_{tile.name}", tile.partial) if isinstance(tile, Row) else tile
            core.tiles[result] = consumer.whole(old)
        for op in self.ops[self.ops.index(self.chain[-1]) + 1 : -1]:
            consumer.operation(op, [])


def core_columns(op: ir.Operation) -> int:
    """The columns of what a store writes; 0 for row values."""
    type_ = ir.RankedTensorType(op.operands[0].type)
    return type_.shape[1] if type_.rank == 2 else 0


def _name(value: ir.Value) -> str:
    """A name for a carried row value: that of the number it becomes, without `_new`."""
    op = maker(value)
    if op is None or op.name != "tile.map":
        return "state"
    number = maker(yielded(body(op))[ir.OpResult(value).result_number])
    if number is None or not isinstance(number.location, ir.NameLoc):
        return "state"
    return number.location.name_str.removesuffix("_new")
