"""Kernels over pairs: backward passes, second backward passes, gradients of captured tensors.

A program has one block of keys of one head. Consumer warpgroups hold 64 keys each: products with queries are [keys, queries], their weights
stay in registers for the sums over queries, and go through shared memory for the sums over keys, which are added to global memory.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.kernel_text import WORDS, header
from attn_mlir.backends.nvidia.hopper.memory import of_warps
from attn_mlir.backends.nvidia.hopper.pairs_bands import HEADER as BANDS
from attn_mlir.backends.nvidia.hopper.pairs_claims import FIELD as CLAIMS
from attn_mlir.backends.nvidia.hopper.pairs_claims import check_claims
from attn_mlir.backends.nvidia.hopper.pairs_dropout import HEADER
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, as_int, check_types
from attn_mlir.backends.nvidia.hopper.pairs_key_sums import KeySums
from attn_mlir.backends.nvidia.hopper.pairs_late import HEAD, ROW, begin_late, end_late
from attn_mlir.backends.nvidia.hopper.pairs_layout import (
    KEY_SUMS,
    NEIGHBOURS,
    REGISTERS,
    WINDOW_REGISTERS,
    BackwardLayout,
    is_transposed,
)
from attn_mlir.backends.nvidia.hopper.pairs_pieces import FIELD, Pieces, check_pieces, make_room
from attn_mlir.backends.nvidia.hopper.pairs_pieces import HEADER as PIECES
from attn_mlir.backends.nvidia.hopper.pairs_producer import ColumnWriter, Loader, load_keys
from attn_mlir.backends.nvidia.hopper.pairs_reduction import ReductionPrinter, may_descend
from attn_mlir.backends.nvidia.hopper.pairs_results import ResultStores
from attn_mlir.backends.nvidia.hopper.pairs_roles import CONSUMERS
from attn_mlir.backends.nvidia.hopper.pairs_scheduler import PairTileScheduler
from attn_mlir.backends.nvidia.hopper.pairs_step import Consumers
from attn_mlir.backends.nvidia.hopper.pairs_turns import WARPS, TileSender, declare_turns, shares_batches, stored_tiles
from attn_mlir.backends.nvidia.hopper.pairs_uses import uses_of
from attn_mlir.backends.nvidia.hopper.pairs_weights import BEFORE, WEIGHTS, WeightConsumer
from attn_mlir.backends.nvidia.hopper.pairs_weights import HEADER as HANDED
from attn_mlir.backends.nvidia.hopper.tiles import ROWS
from attn_mlir.backends.nvidia.hopper.windows import HEADER as WINDOWS
from attn_mlir.backends.nvidia.hopper.windows import same_for_batches
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_NAMES = ("step", "stage", "parity", "columns", "query", "chunk", "place", "to", "first", "second", "at", "inside", "warp", "barriers")
_NAMES += (
    "store_row", "tile_row", "add_row", "add_chunk", "odd_row", "key", "k", "first_column", "memory", "present", "column_float",
    "left", "begun", "before", "turn", "in_turn",
    "same_program", "part", "together", "key_rows", "key_block", "first_semaphore", "seen", ROW, HEAD,
)  # fmt: skip
_NAMES += (WEIGHTS, BEFORE, "piece", "sharing", "rows_of_head", "worker", "other", "from", "own_thread")


def pairs_core(kernel: PairsKernel) -> Core:
    """What rules of ops print with, which keeps the names that this file writes itself."""
    core = Core(kernel.function, kernel.queries)
    for name in _NAMES:
        core.names.fresh(name)
    return core


class PairsPrinter:
    """Prints one kernel."""

    def __init__(self, layout: BackwardLayout, fields: Mapping[str, int | str]) -> None:
        self.ordered = bool(fields.get("deterministic", 0))
        layout.reduction_warps = bool(layout.adds) and (self.ordered or bool(fields.get("reduction_warps", 0)))
        self.layout, self.kernel = layout, layout.kernel
        self.core = pairs_core(self.kernel)
        layout.claims = bool(fields.get(CLAIMS))
        if layout.claims:
            check_claims(self.kernel, layout, self.ordered)
        layout.tile_warps = bool(fields.get(WARPS))
        if layout.tile_warps and not stored_tiles(layout):
            raise UnsupportedError("hopper: tiles that warps of the producer send are all made, or those of the first queries are not")
        layout.turns = layout.tile_warps and shares_batches(layout)
        waits = (self.ordered and layout.reduction_warps) or layout.turns
        order = str(fields.get("order", "dynamic" if waits else "tiles"))
        others = layout.adders or layout.warpgroups * layout.tile_warps
        roles = 4 * (layout.warpgroups + layout.key_sums) + (layout.column_slots > 0) * layout.row_warps + others
        layout.descending = bool(fields.get("descending"))
        if layout.descending and (not may_descend(self.kernel) or (self.ordered and self.core.packed)):
            raise UnsupportedError("hopper: steps go to the first queries in loops that no list makes, nor packed sequences (descending)")
        reverse = self.ordered and not layout.descending
        self.programs = PairTileScheduler(self.core, self.kernel.over, order, int(fields.get("group", 1)), reverse, roles)
        self.programs.most_heads, self.programs.last = int(fields.get("heads", 0)), int(fields.get("last", 0))
        self.programs.least_heads = int(fields.get("least", 1))
        self.programs.waits = waits
        if waits and order != "dynamic":
            raise UnsupportedError(f"hopper: programs that add in a fixed order are drawn from a counter, not by order = '{order}'")
        self.pieces = None
        if most := int(fields.get(FIELD, 0)):
            check_pieces(self.kernel, layout, fields)
            make_room(layout)
            self.pieces = Pieces(self.core, self.kernel, layout, most)
            self.programs.pieces, self.programs.queries = self.pieces.at, self.kernel.queries
        self.programs.shared_batches = not self.core.packed and same_for_batches(
            self.kernel.function, self.kernel.step_ops("tile.load_window")
        )
        self.banded = any(uses_of(step)[0].banded for step in self.kernel.steps)
        others = layout.words or layout.windows or layout.bands or self.banded
        if is_transposed(self.kernel.queries) and others:
            raise UnsupportedError(
                f"hopper: with dropout and captured windows blocks of pairs have a multiple of {ROWS} queries, not {self.kernel.queries}"
            )
        if self.banded and self.ordered:
            raise UnsupportedError(
                "hopper: diagonals that meet in one element are added in no fixed order (deterministic, batch_invariant)"
            )
        self.name = ir.StringAttr(self.kernel.function.attributes["sym_name"]).value

    def code(self) -> KernelCode:
        """The whole kernel."""
        core, layout = self.core, self.layout
        core.writer.indent = "  "
        self._bind_program()
        self._group()
        self.programs.declare()
        if layout.turns:
            declare_turns(core, self.kernel)
        self._producer()
        self._consumers()
        body = core.writer.lines
        head = [
            f'extern "C" __global__ void __launch_bounds__({layout.threads}, {layout.occupancy}) {self.name}(',
            *(f"    {text}," for text in core.arguments.declarations()),
        ]
        head[-1] = head[-1][:-1] + ") {"
        text = [
            *([WORDS] if layout.by_words else []),
            header(
                *([HEADER] if layout.words is not None else []),
                *([WINDOWS] if layout.windows or layout.bands else []),
                *([BANDS] if self.banded else []),
                *([PIECES] if self.pieces else []),
                *([HANDED] if layout.roles else []),
            ),
            core.instructions(),
            core.scalars.helper_source(),
            *head,
            *self._prologue(),
            *body,
            "}",
            "",
        ]
        parameters, grid = core.arguments.parameters(), self.programs.grid
        return KernelCode(self.name, self.name, "\n".join(text), parameters, layout.threads, layout.bytes, grid, occupancy=layout.occupancy)

    def _bind_program(self) -> None:
        """A program has one block of keys: a chunk is one block."""
        core, kernel = self.core, self.kernel
        for value in core.arguments.values[: None if core.packed else -1]:
            if not isinstance(value.type, ir.MemRefType):
                core.arguments.scalar(value)
        if not core.packed:
            core.scalars.bind(core.arguments.values[-1], str(kernel.keys))
        core.scalars.bind(kernel.key_loop.regions[0].blocks[0].arguments[0], "key0")
        core.names.fresh("key0")

    def _prologue(self) -> list[str]:
        layout, warps = self.layout, 4 * self.layout.warpgroups
        readers = warps + 4 * layout.key_sums
        lines = [
            "extern __shared__ __align__(1024) unsigned char memory[];",
            "const uint32_t shared = attn::shared_address(memory);",
            f"const uint32_t barriers = shared + {layout.barriers}; // of the keys; then full and free ones of tiles of queries",
            "const int warpgroup = attn::warpgroup_index(), warp = attn::warp_index() % 4, lane = threadIdx.x % 32;",
            f"constexpr uint32_t kNextFull = {layout.next}, kNextFree = {layout.next + 16}, kNext = {layout.next_program};",
            "if (threadIdx.x == 0) {",
            # The keys' barrier: the thread that expects their bytes. Tiles are given back by every warp of consumers.
            "  attn::barrier_init(barriers, 1);",
            f"  attn::barrier_init(shared + {layout.keys_free}, {of_warps(readers)});",
        ]
        for pipe in range(layout.pipes):
            writers = 32 * (layout.row_warps + bool(layout.windows or layout.bands))
            arrivals = writers if layout.column_slots and pipe == layout.pipes - 1 else 1
            full, free = layout.full(pipe) - layout.barriers, layout.free(pipe) - layout.barriers
            for stage in range(layout.stages):
                # One arrival with the bytes; in the pipe of row values one of every lane that writes some.
                lines.append(f"  attn::barrier_init(barriers + {full + 8 * stage}, {arrivals});")
                senders = layout.warpgroups if layout.tile_warps and pipe == layout.pipes - 1 else 0
                lines.append(f"  attn::barrier_init(barriers + {free + 8 * stage}, {of_warps(warps + senders)});")
        if self.programs.order == "dynamic":
            for slot in range(2):
                # The producer's warp draws a program, and all warps read it.
                lines.append(f"  attn::barrier_init(shared + kNextFull + {8 * slot}, 1);")
                lines.append(f"  attn::barrier_init(shared + kNextFree + {8 * slot}, {of_warps(self.programs.warps)});")
        parts = range(layout.warpgroups if layout.reduction_warps else 0)
        # The reduction warp of each consumer tells with one arrival that its sums were read.
        lines += [f"  attn::barrier_init(barriers + {layout.added - layout.barriers + 8 * part}, 1);" for part in parts]
        # Copies and other threads see the mbarriers initialised.
        return [f"  {line}" for line in [*lines, "  attn::barrier_init_fence();", "}"]]

    def _group(self) -> None:
        """Keeps the number of heads of a group where it takes no register."""
        core = self.core
        with core.scope("if (threadIdx.x == 0)"):
            core.writer.line(f"attn::store_shared_int(shared + {self.layout.group}, {as_int(core, self.kernel.heads.operands[1])});")
        if self.pieces:
            self.pieces.plan(self.kernel.over)
        # All roles read the number, and none may meet an mbarrier that is not initialised.
        core.writer.line("__syncthreads();")

    def _producer(self) -> None:
        core, layout, kernel = self.core, self.layout, self.kernel
        more, fewer = NEIGHBOURS if layout.occupancy > 1 else REGISTERS[layout.warpgroups]
        if (layout.windows or layout.bands) and layout.warpgroups == 2:
            more, fewer = WINDOW_REGISTERS
        if layout.key_sums:
            more, own, fewer = KEY_SUMS
            self._key_sums(own)
        with core.scope(f"if (warpgroup == {layout.warpgroups + layout.key_sums})"):
            if fewer:
                # First, as consumers wait for these registers (thresholds: their sum fits into those of the launch).
                core.writer.line(f"attn::fewer_registers<{fewer}>();")
            with core.scope("if (warp == 0)"), self._programs(True):
                load_keys(core, kernel, layout)
                Loader(core, kernel, layout).print()
            if layout.column_slots:
                rows = "warp == 1" if layout.row_warps == 1 else f"warp < {1 + layout.row_warps}"
                with core.scope(f"else if ({rows})"), self._programs():
                    ColumnWriter(core, kernel, layout).print()
            if layout.reduction_warps:
                first = 1 + layout.row_warps
                with core.scope(f"else if (warp >= {first} && warp < {first + layout.adders})"):
                    if not layout.adds_by_one:
                        of_steps = "every other step" if layout.key_sums else "this warpgroup"
                        core.writer.line(f"const int part = warp - {first}; // sums of {of_steps}")
                    role = ReductionPrinter(core, kernel, layout, self.ordered)
                    role.begin()
                    with self._programs():
                        role.begin_program()
                        role.print()
            elif layout.tile_warps:
                first = 1 + layout.row_warps
                with core.scope(f"else if (warp >= {first} && warp < {first + layout.warpgroups})"):
                    core.writer.line(f"const int part = warp - {first}; // tiles of this warpgroup")
                    sender = TileSender(core, kernel, layout)
                    with self._programs():
                        sender.begin_program()
                        sender.print()
            core.writer.line("return;")
        if more:
            core.writer.line(f"attn::more_registers<{more}>();")

    def _key_sums(self, registers: int) -> None:
        core, layout, kernel = self.core, self.layout, self.kernel
        role = KeySums(core, kernel, layout, check_types(kernel))
        with core.scope(f"if (warpgroup == {layout.warpgroups})"):
            # As in the producer.
            core.writer.line(f"attn::fewer_registers<{registers}>();")
            role.begin()
            with self._programs():
                core.writer.line("attn::barrier_wait(barriers, round & 1);")  # this program's keys have landed
                role.print()
                # All products with these keys are done: `step` waits for each.
                core.writer.line(f"attn::warp_arrive(shared + {layout.keys_free}, lane == 0);")
            # Shared memory ends with the thread block: what was added has been read from it.
            core.writer.line("if (threadIdx.x % 128 == 0) attn::bulk_wait_read<0>();", "return;")

    def _consumers(self) -> None:
        core, layout, kernel = self.core, self.layout, self.kernel
        row = "tile_row" if layout.roles else "64 * warpgroup + tile_row"
        core.writer.line(
            f"const int tile_row = 16 * warp + lane / 4, row = {row}, column = 2 * (lane % 4);",
            "const float column_float = column;",
        )
        results = ResultStores(core, kernel, layout)
        if layout.roles:
            for role in range(CONSUMERS):
                others = dict(core.tiles)
                with core.scope(f"if (warpgroup == {role})"):
                    self._weight_consumer(role, results)
                core.tiles.clear()  # loops and branches carry the tiles of one consumer
                core.tiles.update(others)
            return
        consumers = Consumers(core, kernel, layout, check_types(kernel))
        if layout.late:
            begin_late(core)
        with self._programs():
            consumers.accumulators()
            core.writer.line("attn::barrier_wait(barriers, round & 1);")  # this program's keys have landed
            consumers.hold_keys()
            consumers.begin()
            consumers.print()
            consumers.last()
            # Products with these keys have been waited for; `hold_keys` read them with all lanes of a warp at once.
            core.writer.line(f"attn::warp_arrive(shared + {layout.keys_free}, lane == 0);")
            with self._again(), self._summed(kernel.stores):
                for number, op in enumerate(kernel.stores):
                    results.store(op, number)
        # Shared memory ends with the thread block: copies of results, and additions, have read it.
        core.writer.line("if (threadIdx.x % 128 == 0) attn::bulk_wait_read<0>();")
        if layout.key_sums:
            consumers.end()
        if layout.late:
            end_late(core)

    def _summed(self, stores: list[ir.Operation]) -> AbstractContextManager[None]:
        """Around the stores of a warpgroup's results, where programs may be shared."""
        return self.pieces.summed(self.programs.slot, stores) if self.pieces else nullcontext()

    def _weight_consumer(self, role: int, results: ResultStores) -> None:
        """One of two consumers that have a weight each."""
        core, layout, kernel = self.core, self.layout, self.kernel
        consumer = WeightConsumer(core, kernel, layout, check_types(kernel), role)
        free = f"attn::warp_arrive(shared + {layout.keys_free}, lane == 0);"
        consumer.first()
        with self._programs():
            consumer.accumulators()
            consumer.begin()
            core.writer.line("attn::barrier_wait(barriers, round & 1);")  # this program's keys have landed
            consumer.hold_keys()
            consumer.print()
            consumer.last()
            if not layout.among_keys:
                core.writer.line(free)
            with self._again(), self._summed(consumer.stores()):
                for number, op in enumerate(consumer.stores()):
                    results.store(op, number)
            if layout.among_keys:
                consumer.left()
                core.writer.line(free)
        core.writer.line("if (threadIdx.x % 128 == 0) attn::bulk_wait_read<0>();")  # shared memory ends with the thread block
        consumer.end()

    def _first_key(self) -> None:
        """Prints where the program's keys begin."""
        core, kernel = self.core, self.kernel
        begin = core.value(kernel.key_loop.operands[0]) if core.packed else f"{kernel.keys} * block"
        core.writer.line(f"const int key0 = {begin};")

    @contextmanager
    def _again(self) -> Iterator[None]:
        """Where the program's place is computed once more, so that it needs no registers before."""
        if self.programs.order != "dynamic":
            yield
            return
        with self.core.scope(""):
            self.core.writer.line("const int same_program = attn::opaque(program);")
            with self.core.scope(""):
                self.core.writer.line("const int program = same_program;")
                self.programs.decode()
                self._first_key()
                yield

    @contextmanager
    def _programs(self, producer: bool = False) -> Iterator[None]:
        """The loop over programs of one role."""
        with self.programs.each(producer):
            self._first_key()
            yield
