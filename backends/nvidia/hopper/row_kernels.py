"""Kernels over blocks of query rows: forward passes, tangents, further sums over a row."""

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.structure import body, chains, holds, operations
from attn_mlir.backends.nvidia.hopper.consumer import Consumer
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.few_rows import FewRows
from attn_mlir.backends.nvidia.hopper.flat import Flat
from attn_mlir.backends.nvidia.hopper.flat_state import FlatSchedule
from attn_mlir.backends.nvidia.hopper.gathered_rows import HEADER as GATHER_HEADER
from attn_mlir.backends.nvidia.hopper.kernel_text import function_source
from attn_mlir.backends.nvidia.hopper.memory import SharedMemory
from attn_mlir.backends.nvidia.hopper.overlap import Overlap
from attn_mlir.backends.nvidia.hopper.overlap_ahead import AheadOverlap
from attn_mlir.backends.nvidia.hopper.overlap_kept import KeptOverlap
from attn_mlir.backends.nvidia.hopper.score_exchange import HEADER as CLUSTER_HEADER
from attn_mlir.backends.nvidia.hopper.score_exchange import ScoreExchange, check_shared
from attn_mlir.backends.nvidia.hopper.shared_maps import Changes
from attn_mlir.backends.nvidia.hopper.steps import read_chain
from attn_mlir.backends.nvidia.hopper.stores import Stores
from attn_mlir.backends.nvidia.hopper.tile_scheduler import TileScheduler
from attn_mlir.backends.nvidia.hopper.tiles import ROWS, atoms
from attn_mlir.backends.nvidia.hopper.widened_rings import HEADER as WIDEN_HEADER
from attn_mlir.backends.nvidia.hopper.widened_rings import WidenedRings
from attn_mlir.backends.nvidia.hopper.windows import HEADER as WINDOWS_HEADER
from attn_mlir.backends.nvidia.hopper.windows import WindowRings, same_for_batches, windows_of
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


class RowsKernel:
    """Prints one kernel: a producer warp that loads, and `block_q / 64` warpgroups of consumers."""

    def __init__(self, kernel: ir.Operation, schedule: Fields) -> None:
        sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
        number = {item.name: item.attr.value for item in sizes if isinstance(item.attr, ir.IntegerAttr)}
        self.kernel, self.schedule = kernel, schedule
        self.warpgroups = number["block_q"] // ROWS
        self.core = Core(kernel, number["block_kv"])
        self.core.cluster = int(schedule.get("cluster", 1))
        self.stages = int(schedule["stages"])
        over = list(body(kernel).arguments)[number.get("over", 0)]
        warps = 4 * self.warpgroups
        self.memory = SharedMemory(self.core, warps)
        self.memory.gather(schedule.get("gather", 0))
        if schedule.get("widen"):
            ahead, many = 4 if int(schedule["producer_registers"]) > 40 else 2, int(schedule["wideners"])
            self.memory.widened = WidenedRings(self.core, self.memory.layout, int(schedule["widen"]), many, ahead)
        self.programs = TileScheduler(self.core, over, str(schedule["order"]), int(schedule["group"]), bool(schedule["reverse"]), warps)
        self.stores = Stores(self.core, self.memory, number["block_q"])
        self.few = FewRows(self.core) if schedule.get("few") else None
        self.programs.few = self.few is not None
        self.overlaps: dict[ir.Operation, Overlap] = {}
        self.flat: Flat | None = None
        self.windows: WindowRings | None = None
        self.exchange: ScoreExchange | None = None

    def emit(self) -> KernelCode:
        """The source and how to launch it."""
        core, writer = self.core, self.core.writer
        self._place()
        gathered, widened = self.memory.gathered, self.memory.widened
        busy = "copy" if gathered is not None else "widen"
        if (gathered is not None or widened is not None) and self.windows is not None:
            raise UnsupportedError(f"hopper: warps of the producer {busy} rows, and bring nothing else")
        producers = 1 if widened is None else -(-(1 + widened.warps) // 4)
        threads = 128 * (self.warpgroups + producers)
        writer.indent = "  "
        self.programs.declare()
        with core.scope(f"if (warpgroup {'==' if producers == 1 else '>='} {self.warpgroups})"):
            # A multiprocessor has 65,536 registers: what consumers get more, the producer gives first (`plan` checks the sum).
            writer.line(f"attn::fewer_registers<{self.schedule['producer_registers']}>();")
            writer.line("const int lane = threadIdx.x % 32;")
            with core.scope(f"if (attn::warp_index() == {4 * self.warpgroups})"):
                if widened is not None:
                    writer.line("uint32_t raw = 0;")
                self._producer()
                if widened is not None:
                    widened.end()
                if gathered is not None:
                    gathered.end()
            if widened is not None:
                with core.scope("else"):
                    widened.workers(4 * self.warpgroups + 1)
            elif gathered is not None:
                with core.scope("else"):
                    gathered.workers(4 * self.warpgroups + 1)
            elif self.windows is not None:
                with core.scope("else"):
                    self.windows.workers(4 * self.warpgroups + 1)
        with core.scope("else"):
            writer.line(f"attn::more_registers<{self.schedule['consumer_registers']}>();")
            self._consumers()
            if self.few is not None:
                self.few.merge(4 * self.warpgroups)
        more = [WINDOWS_HEADER] if self.windows is not None else []
        more += [GATHER_HEADER] if gathered is not None else []
        more += [WIDEN_HEADER] if widened is not None else []
        more += [CLUSTER_HEADER] if self.exchange is not None or self.few is not None else []
        first = () if self.few is None else self.few.declarations(threads)
        source = function_source(core, self.memory.layout, threads, *more, first=first)
        return KernelCode(
            name=ir.StringAttr(self.kernel.attributes["sym_name"]).value,
            entry=ir.StringAttr(self.kernel.attributes["sym_name"]).value,
            source=source,
            parameters=core.arguments.parameters(),
            threads=threads,
            shared_bytes=self.memory.layout.bytes(),
            grid=self.programs.grid,
            cluster=core.cluster,
        )

    def _place(self) -> None:
        """Decides where tiles are before either role is printed."""
        for op in operations(body(self.kernel)) if self.schedule["flow"] != "flat" else []:
            if op.name == "tile.load":
                self.memory.program_tile(op)
        for chain in chains(body(self.kernel)) if self.schedule["flow"] != "plain" else []:
            steps = read_chain(chain)
            if steps is not None and (self.schedule["flow"] == "flat" or all(step.some is None for step in steps)):
                ping_pong = bool(self.schedule["ping_pong"]) and self.warpgroups > 1
                asked = {"ping_pong": ping_pong, "vote": bool(self.schedule["vote"]), "pin": bool(self.schedule["pin"])}
                kind = KeptOverlap if self.schedule["flow"] == "each" and self.schedule["lazy_rescale"] else Overlap
                kind = AheadOverlap if self.schedule.get("ahead") else kind
                self.overlaps[chain[0]] = kind(self.core, self.memory, steps, self.stages, self.warpgroups, **asked)
        if self.core.cluster > 1:
            self._share_columns()
        self._rings(self.kernel)
        if self.memory.gathered is not None:
            self._check_turns(self.kernel)
        if self.memory.widened is not None:
            self.memory.widened.allocate()
        if len(self.overlaps) == 1 and len(chains(body(self.kernel))) == 1:
            next(iter(self.overlaps.values())).share_iteration()
        self._windows()
        if self.schedule["flow"] == "flat":
            (overlap,) = self.overlaps.values()
            self.flat = Flat(self.core, self.memory, overlap, self.programs, self.kernel, FlatSchedule.read(self.schedule))
            self.flat.allocate()
            return
        self.programs.allocate(self.memory.layout)
        if self.schedule["staging"] == "query":
            self._stage_in_queries()

    def _share_columns(self) -> None:
        """Lets thread blocks of a cluster have a part of the columns each. Raises UnsupportedError where they cannot."""
        check_shared(self.kernel, {op for each in self.overlaps.values() for step in each.steps for op in (step.scores, step.sums)})
        copies = self.schedule.get("exchange") == "copies"
        self.exchange = ScoreExchange(self.core, self.memory.layout, 4 * self.warpgroups, copies=copies)
        for overlap in self.overlaps.values():
            if isinstance(overlap, KeptOverlap) or self.schedule["flow"] != "each":
                raise UnsupportedError("hopper: thread blocks share columns in the loop inside each program (flow = 'each')")
            if isinstance(overlap, AheadOverlap):
                overlap.exchange, overlap.early = self.exchange, self.schedule["ahead"] == 2
            else:
                overlap.complete = self.exchange.add

    def _windows(self) -> None:
        """Where maps read windows of captured tensors: who brings them. Raises UnsupportedError where nobody can."""
        overlaps = [overlap for overlap in self.overlaps.values() if any(map(windows_of, overlap.steps))]
        if not overlaps:
            return
        if len(self.overlaps) != 1 or len(chains(body(self.kernel))) != 1:
            raise UnsupportedError("hopper: windows of captured tensors are brought for one loop over keys, by warps that do nothing else")
        (overlap,) = overlaps
        depths = (self.stages, int(self.schedule.get("windows", 1)))
        parts = (overlap.steps, overlap.general, overlap.keys.rows, self.warpgroups, depths)
        self.programs.shared_batches = not self.core.packed and same_for_batches(self.kernel, windows_of(overlap.general))
        self.windows = overlap.windows = WindowRings(self.core, self.memory.layout, *parts)

    def _stage_in_queries(self) -> None:
        """Lets outputs leave through the memory of the queries. Raises UnsupportedError where it is too small."""
        queries = self.memory.program_tiles[0][1]
        columns = [ir.MemRefType(op.operands[1].type).shape[-1] for op in operations(body(self.kernel)) if op.name == "tile.store"]
        if any(atoms(number) > queries.atoms for number in columns):
            raise UnsupportedError("hopper: outputs are wider than the queries, whose memory they should leave through")
        self.stores.staging = queries.address.removeprefix("shared + ")

    def _rings(self, op: ir.Operation) -> None:
        """Reserves the stages of all loads in loops."""
        for block in (block for region in op.regions for block in region.blocks):
            for inner in operations(block):
                if inner.name == "tile.load" and op.name != "func.func" and self._brings(inner):
                    self.memory.ring(inner, self.stages)
                self._rings(inner)

    def _check_turns(self, op: ir.Operation) -> None:
        """Raises UnsupportedError where rings are not filled in turn, as warps that copy pages wait for their messages (`workers`)."""
        rings = list(self.memory.rings.values())
        for block in (block for region in op.regions for block in region.blocks):
            loads = [inner for inner in operations(block) if inner.name == "tile.load" and op.name != "func.func" and self._brings(inner)]
            if loads and [self.memory.ring(load, self.stages) for load in loads] != rings:
                raise UnsupportedError("hopper: all warps of the producer copy pages of loops that load one block of each tensor in turn")
            for inner in operations(block):
                self._check_turns(inner)

    def _brings(self, load: ir.Operation) -> bool:
        """Whether a load in a loop has a ring of its own."""
        return True

    # ---- the producer

    def _producer(self) -> None:
        if self.flat is not None:
            self.flat.producer()
            return
        self.core.writer.all(self.memory.iterations())
        with self.programs.each(producer=True):
            self.memory.load_program_tiles(self.programs.round)
            self._loads(body(self.kernel))
        if self.windows is not None:
            self.windows.end("iteration")

    def _loads(self, block: ir.Block) -> None:
        """Replays the control flow of a block, loads only."""
        core, members = self.core, self._members()
        for op in operations(block):
            if op in self.overlaps:
                with core.scope(""):
                    self.overlaps[op].producer()
            elif op in members:
                continue
            elif op.name == "tile.load" and block != body(self.kernel) and self._brings(op):
                self.memory.load(op, self.memory.ring(op, self.stages))
            elif op.name == "scf.for" and holds(op, "tile.load"):
                begin, end, step = (core.value(value) for value in list(op.operands)[:3])
                index = core.names.fresh("kv")
                with core.scope(f"for (int {index} = {begin}; {index} < {end}; {index} += {step})"):
                    core.scalars.bind(next(iter(body(op).arguments)), index)
                    self._loads(body(op))
            elif op.name == "scf.if" and holds(op, "tile.load"):
                condition = core.value(op.operands[0])
                for number, region in enumerate(op.regions):
                    with core.scope(f"if ({condition})" if number == 0 else "else"):
                        self._loads(region.blocks[0])

    def _members(self) -> list[ir.Operation]:
        return [step.loop for overlap in self.overlaps.values() for step in overlap.steps]

    # ---- the consumers

    def _consumers(self) -> None:
        core, writer, memory = self.core, self.core.writer, self.memory
        writer.line("const int lane = threadIdx.x % 32;")
        writer.line(f"const int row = warpgroup * {ROWS} + threadIdx.x / 32 % 4 * 16 + lane / 4, column = lane % 4 * 2;")
        writer.all(memory.iterations())
        if self.exchange is not None:
            self.exchange.declare()
        if self.flat is not None:
            self.flat.consumer(Consumer(core, memory, self.stores, Changes(core, 128 * self.warpgroups), self.stages), self.stores)
            return
        if any(overlap.ping_pong for overlap in self.overlaps.values()):
            # Ping-pong: warpgroup 0 starts; nobody has its turn before, so the last one passes it on once in advance.
            writer.line(f"if (warpgroup == {self.warpgroups - 1}) attn::named_arrive(1, 256);")
        consumer = Consumer(core, memory, self.stores, Changes(core, 128 * self.warpgroups), self.stages)
        ops, members = operations(body(self.kernel)), self._members()
        uses = [number for number, op in enumerate(ops) if self._reads_program_tiles(op)]
        with self.programs.each(producer=False):
            waited = freed = False
            for number, op in enumerate(ops[:-1]):
                if not waited and number in uses:
                    memory.wait_program_tiles(self.programs.round)
                    waited = True
                if op in self.overlaps:
                    self.overlaps[op].consumer(consumer)
                elif op not in members and not (op.name == "tile.load"):
                    consumer.operation(op, [])
                if waited and not freed and number >= uses[-1] and self.schedule["staging"] != "query":
                    consumer.land()
                    memory.free_program_tiles()
                    freed = True
            if self.schedule["staging"] == "query":
                self._wait_for_staging()
                memory.free_program_tiles()
        self.stores.finish()
        if self.exchange is not None:
            writer.line("attn::cluster_sync();")  # others may still send to this thread block's shared memory

    def _wait_for_staging(self) -> None:
        # The thread that issued the copies asks whether they have read shared memory; the others learn it at the barrier.
        self.core.writer.line("if (threadIdx.x % 128 == 0) attn::bulk_wait_read<0>();", "attn::named_sync(8 + warpgroup, 128);")

    def _reads_program_tiles(self, op: ir.Operation) -> bool:
        values = [load.results[0] for load, _ in self.memory.program_tiles]
        return _reads(op, values)


def _reads(op: ir.Operation, values: list[ir.Value]) -> bool:
    """Whether an op or something in it, or something made in place of the tiles, reads one of the values."""
    made = [*values]
    for value in values:
        made += [use.owner.operation.results[0] for use in value.uses if use.owner.operation.name == "tile.map"]
        for use in value.uses:
            outer = use.owner.operation.parent
            if outer is not None and outer.name == "tile.map":
                made += list(outer.results)
    inside = [op, *(inner for region in op.regions for block in region.blocks for inner in _all(block))]
    return any(operand in made for inner in inside for operand in inner.operands)


def _all(block: ir.Block) -> list[ir.Operation]:
    found = []
    for op in operations(block):
        found.append(op)
        for region in op.regions:
            for inner in region.blocks:
                found += _all(inner)
    return found
