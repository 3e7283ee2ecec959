"""The persistent loop: blocks of keys of all programs that a thread block runs follow each other.

In the iteration that finishes a program the scores of the first block of the next one are computed already, so that tensor cores do not
wait between programs. The producer decides everything: what program comes next, where blocks of keys begin and how many keys exist travel
through shared memory beside the tiles. Queries have two buffers; a program's output leaves through the one that its queries were in.
"""

from attn_mlir.backends.gpu.structure import body, constant, operations
from attn_mlir.backends.nvidia.hopper.consumer import Consumer
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.flat_consumer import FlatConsumer
from attn_mlir.backends.nvidia.hopper.flat_state import LAST, PARTIAL, FlatSchedule
from attn_mlir.backends.nvidia.hopper.memory import SharedMemory
from attn_mlir.backends.nvidia.hopper.overlap import Overlap
from attn_mlir.backends.nvidia.hopper.stale_maximum import carried_by
from attn_mlir.backends.nvidia.hopper.stores import Stores
from attn_mlir.backends.nvidia.hopper.tile_scheduler import TileScheduler
from attn_mlir.backends.nvidia.hopper.tiles import atoms, tile_bytes
from attn_mlir.backends.nvidia.hopper.wgmma import COLUMNS, ROW_BYTES
from attn_mlir.mlir import ir


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

    def __init__(
        self, core: Core, memory: SharedMemory, overlap: Overlap, programs: TileScheduler, kernel: ir.Operation, schedule: FlatSchedule
    ) -> None:
        self.core, self.memory, self.overlap, self.programs, self.kernel = core, memory, overlap, programs, kernel
        self.schedule = schedule
        self.ops = operations(body(kernel))
        self.chain = [step.loop for step in overlap.steps]
        self.queries = [op for op in self.ops if op.name == "tile.load"]
        self.addresses: dict[ir.Operation, tuple[str, int]] = {}

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
        layout.slot("kOld", self.core.rows(self.queries[0].results[0].type) * 4 * len(carried_by(self.overlap.general)))
        layout.slot("kBlock", self.overlap.keys.stages * 8)
        if self.memory.widened is not None:
            self.memory.widened.tell(self.overlap.keys, f"shared + kBlock + {{iteration}} % {self.overlap.keys.stages} * 8")
        if self.schedule.product:
            layout.tile("kOnes", 16 * ROW_BYTES)

    # ---- the producer

    def producer(self) -> None:
        """Decides which programs and blocks are next, and loads them.

        The queries of the next program are loaded while this one still runs, as soon as the consumers are done with the buffer that they go
        to. The consumers give it back with the first values of this program: by then `stages` further blocks have been sent, and they need
        no more of them for it. (Not where blocks are classified: that takes the registers.)
        """
        core, writer, programs = self.core, self.core.writer, self.programs
        writer.all(self.memory.iterations())
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
                writer.line(f"send(found_kv, found_count | {LAST});", "follow();")
            else:
                writer.line(f"if (sent <= {self.overlap.keys.stages}) follow();")
        if self.overlap.windows is not None:
            self.overlap.windows.end(self.overlap.keys.iteration)

    def _ahead(self) -> None:
        """A function that tells the consumers of the next program, or that there is none, and loads its queries."""
        core, writer = self.core, self.core.writer
        message = "shared + kProgram + round % 2 * 16"
        full = "shared + kQueriesFull + round % 2 * 8"
        with core.scope("const auto ahead = [&](uint32_t round)"):
            # The program of two rounds before is done with this buffer, through which its outputs may leave, too.
            writer.line("attn::barrier_wait(shared + kQueriesFree + round % 2 * 8, (round / 2 & 1) ^ 1);")
            with writer.block("if (program >= programs)"):
                with writer.block("if (lane == 0)"):
                    # No copy lands here, so that this arrival completes the phase.
                    writer.line(f"attn::store_shared_int4({message}, 0, 0, 0, 0);", f"attn::barrier_arrive({full});")
                writer.line("return;")
            self.programs.decode()
            places = [[core.value(value) for value in list(op.operands)[3:0:-1]] for op in self.queries]
            copied = [core.arguments.copied_at(op.operands[0], *place) for op, place in zip(self.queries, places, strict=True)]
            with writer.block("if (lane == 0)"):
                writer.line(f"attn::store_shared_int4({message}, block, head, batch, 1);")
                total = sum(size for _, size in self.addresses.values())
                # Its one arrival, after the message: who waits for the bytes sees that, too.
                writer.line(f"attn::barrier_arrive_expect({full}, {total});")
                for op, place in zip(self.queries, copied, strict=True):
                    self._load_queries(op, place, full)
            # Lanes stay together: what follows is for all of them.
            writer.line("__syncwarp();", "next_block = block, next_head = head, next_batch = batch;")
        writer.lines[-1] += ";"

    def _send(self) -> None:
        """A function that loads a block of keys and tells the consumers about it."""
        writer, general = self.core.writer, self.overlap.general
        keys, values = self.overlap.keys, self.overlap.values
        place = self.overlap.place(general.keys, f"(count_and_kind & {PARTIAL - 1})")
        if not self.overlap.classified:
            writer.line("int sent = 0;")
        with writer.block("const auto send = [&](int kv, int count_and_kind)"):
            self.memory.find_pages(keys, place)
            # The consumers have read the stage's keys and its message.
            self.memory.await_free(keys)
            at = f"shared + kBlock + iteration % {keys.stages} * 8"
            told = [f"attn::store_shared_int({at}, kv);", f"attn::store_shared_int({at} + 4, count_and_kind);"]
            self.memory.send(keys, place, told, numbers=("kv", "count_and_kind"))
            writer.line("__syncwarp();")  # lanes stay together: the next wait is for all of them
            self.overlap.make()
            # Values are given back later than keys, by a barrier of their own.
            self.memory.await_free(values)
            self.memory.send(values, place)
            writer.line("__syncwarp();", "++iteration;")  # lanes stay together, as above
            if not self.overlap.classified:
                writer.line(f"if (++sent == {keys.stages + 1}) follow();")
        writer.lines[-1] += ";"
        if self.overlap.classified:
            writer.line("// A block is sent when the next one is known, because the last one is marked.")
            writer.line(f"int found_kv = 0, found_count = {PARTIAL};", "bool found = false;")

    def _blocks(self) -> None:
        """Block n: where it is, what it is."""
        core, writer, overlap = self.core, self.core.writer, self.overlap
        writer.line("const int kv = found_blocks == 0 ? 0 : begin_of(n);")
        partial = f"(n < partial_blocks || found_blocks == 0 ? {PARTIAL} : 0)"
        count = f"found_blocks == 0 ? 0 : min({overlap.keys.rows}, end_of(n) - kv)"
        if not overlap.classified:
            writer.line(f"const int count = {count};")
            writer.line(f"send(kv, count | {partial} | (n + 1 == key_blocks ? {LAST} : 0));")
            return
        writer.line(f"int count = ({count}) | {partial};")
        for step in overlap.order:
            if step.some is None or step.every is None:
                continue
            with core.scope("if (n >= partial_blocks && found_blocks > 0)"):
                core.scalars.bind(step.position, "kv")
                writer.line(f"if (!{core.value(step.some)}) continue;", f"if (!{core.value(step.every)}) count |= {PARTIAL};")
        writer.line("if (found) send(found_kv, found_count);", "found = true, found_kv = kv, found_count = count;")

    def _load_queries(self, op: ir.Operation, place: str, full: str) -> None:
        core = self.core
        name, size = self.addresses[op]
        rows, columns = core.rows(op.results[0].type), core.columns(op.results[0].type)
        descriptor = core.arguments.descriptor(op.operands[0], COLUMNS, rows)
        for atom in range(atoms(columns)):
            address = f"shared + {name} + round % 2 * {size}" + (f" + {atom * rows * ROW_BYTES}" if atom else "")
            core.writer.line(f"attn::tma_load({address}, {descriptor}, {full}, {atom * COLUMNS}, {place});")

    # ---- the consumers

    def consumer(self, consumer: Consumer, stores: Stores) -> None:
        """Computes."""
        FlatConsumer(consumer, stores, self.overlap, self.ops, self.addresses, self.schedule).print()
