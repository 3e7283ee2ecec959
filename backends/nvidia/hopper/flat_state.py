"""What the consumers of the flat loop keep: registers, where queries, blocks of keys and finished programs are."""

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.structure import maker, yielded
from attn_mlir.backends.nvidia.hopper import stale_maximum
from attn_mlir.backends.nvidia.hopper.consumer import Consumer
from attn_mlir.backends.nvidia.hopper.overlap import Overlap
from attn_mlir.backends.nvidia.hopper.stale_maximum import Needed, carried_by, weights_of
from attn_mlir.backends.nvidia.hopper.steps import KvStep
from attn_mlir.backends.nvidia.hopper.stores import Stores
from attn_mlir.backends.nvidia.hopper.tiles import ROWS, RegRow, RegTile, SharedTile, Tile, round_up, tile_bytes
from attn_mlir.backends.nvidia.hopper.wgmma import ROW_BYTES, STEP
from attn_mlir.dialects.regions import element_of
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

PROGRAM = ("block", "head", "batch", "more")
"""What the consumers are told of a program; after the last one `more` is 0."""
PARTIAL, LAST = 1 << 16, 1 << 17
"""What they are told of a block of keys, beside its first key and the number of its keys."""
_ONES = {"f16": 0x3C003C00, "bf16": 0x3F803F80}
_ALL = 7
"""The named barrier of all consumers."""


@dataclass(frozen=True)
class FlatSchedule:
    """How the main loop saves work.

    `lazy_rescale`: whole blocks that are not the first of a program keep the old reference of their weights; a warp whose weights get too
    large computes its scores again and takes the exact step. `product`: a column of ones beside the values makes the sums of the weights.
    `in_registers`: queries are read into registers once for a program.
    """

    lazy_rescale: bool
    product: bool
    in_registers: bool

    @classmethod
    def read(cls, schedule: Fields) -> "FlatSchedule":
        """From `tile.schedule`."""
        return cls(
            bool(schedule["lazy_rescale"]),
            schedule["sums"] == "product",
            schedule["queries"] == "registers",
        )


class FlatState:
    """What there is in the flat loop, for `FlatConsumer`."""

    def __init__(
        self,
        consumer: Consumer,
        stores: Stores,
        overlap: Overlap,
        ops: list[ir.Operation],
        queries: Mapping[ir.Operation, tuple[str, int]],
        schedule: FlatSchedule,
    ) -> None:
        """`queries`: where their two buffers begin and the size of one."""
        self.core = consumer.core
        self.memory, self.overlap, self.ops, self.addresses = overlap.memory, overlap, ops, queries
        self.consumer, self.stores = consumer, stores
        self.chain = [step.loop for step in overlap.steps]
        self.kept: Needed | None = None
        self.summed: int | None = None
        self.schedule = schedule
        self.in_registers = schedule.in_registers
        self.program = PROGRAM
        self.mine, self.next = "1 + warpgroup", f"1 + (warpgroup + 1) % {overlap.warpgroups}"
        self._choose(schedule)

    def _choose(self, schedule: FlatSchedule) -> None:
        """Raises UnsupportedError where the program has no such step."""
        if schedule.product:
            self.summed = stale_maximum.sum_by_product(self.overlap.steps)
            if self.summed is None:
                raise UnsupportedError("hopper: no carried sum is that of the weights alone, in values of 64 columns (sums = 'product')")
        inner = self.overlap.inner
        if schedule.lazy_rescale:
            kept = stale_maximum.keeps_reference(inner) if inner is not None else None
            if inner is None or kept is None:
                raise UnsupportedError("hopper: this program has no whole blocks whose maximum may stay (lazy_rescale = 1)")
            self.kept = stale_maximum.without(kept, inner, self._left_out(inner))

    def _left_out(self, step: KvStep) -> ir.Value | None:
        """The carried value that is not computed in registers."""
        return None if self.summed is None else carried_by(step)[self.summed]

    def _declare(self) -> list[Tile | None]:
        """Registers of what is carried from block to block, in the order of the loop's values; None for sums that products make."""
        core, overlap = self.core, self.overlap
        self.scores = core.fragment("s", overlap.keys.rows)
        general = overlap.general
        carried: list[Tile | None] = []
        names = [_name(value) for value in yielded(general.block)]
        for number, (argument, name) in enumerate(zip(carried_by(general), names, strict=True)):
            if number == self.summed:
                carried.append(None)
            elif ir.RankedTensorType(argument.type).rank == 1:
                row = core.row(name, partial=argument in self.consumer.maps.partial)
                core.names.fresh(f"old_{row.name}")
                carried.append(row)
            else:
                columns = round_up(core.columns(argument.type), 8)
                self.accumulator = core.fragment("o", columns if self.summed is None else columns + 8)
                carried.append(RegTile(self.accumulator.name, columns))
        position = carried_by(general).index(general.sums.operands[0])
        if not isinstance(carried[position], RegTile) or sum(isinstance(tile, RegTile) for tile in carried) != 1:
            raise UnsupportedError("hopper: the main loop carries one accumulator")
        self.packed = core.names.fresh("packed")
        for step in overlap.steps:
            pairs = zip(carried_by(step), carried, strict=True)
            core.tiles.update({argument: tile for argument, tile in pairs if tile is not None})
        core.writer.line(f"uint32_t {self.packed}[{overlap.keys.rows // 4}];")
        self.factor = core.row("factor") if general.sums.name == "tile.dot_rescale" else None
        element = str(ir.RankedTensorType(weights_of(general).type).element_type)
        self.weights = RegTile(self.scores.name, self.scores.columns, element)
        self.beside = self._ones(element) if self.summed is not None else ""
        return carried

    def _ones(self, element: str) -> str:
        """Columns of ones beside the values, for the sums of weights: the address of 16 rows of them."""
        writer, threads = self.core.writer, 128 * self.overlap.warpgroups
        with writer.block(f"for (int n = threadIdx.x; n < {16 * ROW_BYTES // 4}; n += {threads})"):
            writer.line(f"attn::store_shared_int(shared + kOnes + 4 * n, {_ONES[element]:#x});")
        # wgmma of every warpgroup reads the ones that all threads wrote.
        writer.line("attn::fence_proxy_async();", f"attn::named_sync({_ALL}, {threads});")
        return "shared + kOnes"

    def _rows(self) -> list[RegRow]:
        return [tile for tile in self.carried if isinstance(tile, RegRow)]

    def _changed(self) -> list[RegRow]:
        """The carried row values that change while their reference stays."""
        if self.kept is None or self.overlap.inner is None:
            return []
        step, same = self.overlap.inner, self.kept.same
        pairs = zip(self.carried, carried_by(step), yielded(step.block), strict=True)
        return [tile for tile, argument, value in pairs if isinstance(tile, RegRow) and (value not in same or same[value] != argument)]

    def _queries(self, step: KvStep) -> SharedTile:
        """The queries of the program whose scores are computed."""
        load = maker(step.scores.operands[0])
        if load is None or load not in self.addresses:
            raise UnsupportedError("hopper: scores are products of queries as they were loaded")
        name, size = self.addresses[load]
        rows, columns = self.core.rows(load.results[0].type), self.core.columns(load.results[0].type)
        return SharedTile(f"shared + {name} + round % 2 * {size}", rows, columns, self.overlap.keys.element)

    def _where(self) -> None:
        """Where this thread is, for rare code: the registers are free in between."""
        self.core.writer.line(
            "const int thread = attn::thread_again(), warpgroup = thread / 128, lane = thread % 32;",
            "const int row = thread / 32 * 16 + lane / 4, column = lane % 4 * 2;",
        )

    def _place_of(self, number: int) -> str:
        """Where carried row value `number` of a finished program waits for its output."""
        return f"shared + kOld + ({number * self.stores.rows} + row + 8 * h) * 4"

    def _stash(self) -> None:
        """Puts the carried row values of a finished program into shared memory."""
        core = self.core
        with core.scope(""):
            self._where()
            rows = [self.consumer.whole(row) for row in self._rows()]
            with core.writer.block("if (column == 0)"), core.writer.unrolled("h", 2):
                for number, row in enumerate(rows):
                    core.writer.line(f"attn::store_shared({self._place_of(number)}, {row.name}[h]);")
            core.writer.line("__syncwarp();")  # all lanes of a row read what its first one stores

    def _staging(self) -> None:
        """Lets outputs leave through the queries' buffers, if they fit."""
        stores = self.stores
        columns = max((core_columns(op) for op in self.ops if op.name == "tile.store"), default=0)
        name, size = next(iter(self.addresses.values()))
        if columns and tile_bytes(stores.rows, columns) <= size:
            stores.staging = f"{name} + (round + 1) % 2 * {size}"
            stores.fresh = True

    def _fetch(self) -> None:
        """The program that the next blocks belong to."""
        writer = self.core.writer
        writer.line("const int4 message = attn::load_shared_int4(shared + kProgram + round % 2 * 16);")
        writer.line(*(f"{name} = attn::uniform(message.{field});" for name, field in zip(self.program, "xyzw", strict=True)))

    def _program(self, round_: str) -> None:
        """The program of this round, for rare code."""
        writer = self.core.writer
        writer.line(f"const int4 message = attn::load_shared_int4(shared + kProgram + {round_} % 2 * 16);")
        writer.line("const int " + ", ".join(f"{name} = message.{field}" for name, field in zip(self.program, "xyzw", strict=True)) + ";")

    def _initial(self) -> None:
        """The carried row values at the beginning of a program."""
        core, starts = self.core, list(self.chain[0].operands)[3:]
        with core.scope(""):
            self._where()
            for op in self.ops[: self.ops.index(self.chain[0])]:
                if op.name == "tile.map":
                    self.consumer.maps.print(op)
                elif op.name == "tile.fill" and ir.RankedTensorType(op.results[0].type).rank == 1:
                    core.tiles[op.results[0]] = core.row("start", core.value(op.operands[0]))
            for tile, start in zip(self.carried, starts, strict=True):
                value = core.tiles.get(start)
                if isinstance(tile, RegRow) and isinstance(value, RegRow):
                    for h in range(2):
                        number = f"lane % 4 == 0 ? {value.name}[{h}] : 0.0f" if tile.partial else f"{value.name}[{h}]"
                        core.writer.line(f"{tile.name}[{h}] = {number};")

    def _registers(self) -> None:
        """A function that reads this warp's queries as left operand of its products."""
        writer, step = self.core.writer, self.overlap.general
        tile = self._queries(step)
        writer.line(f"uint32_t queries[{tile.depth // 4}];")
        with writer.block("const auto load_queries = [&]()"):
            writer.line(f"const uint32_t from = {tile.address} + warpgroup * {ROWS * ROW_BYTES};")
            writer.line("const uint32_t place = (threadIdx.x / 32 % 4 * 16 + lane % 16) * 128 + lane / 16 * 16;")
            with writer.unrolled("k", tile.depth // STEP):
                writer.line(
                    "uint32_t four[4];",
                    f"attn::load_matrices(from + k / 4 * {tile.atom_bytes} + attn::swizzle_128(place + k % 4 * 32), four);",
                )
                with writer.unrolled("i", 4):
                    writer.line("queries[4 * k + i] = four[i];")
        writer.lines[-1] += ";"

    def _place(self) -> None:
        """Reads which keys the block has, before its stage is given back."""
        writer, at = self.core.writer, f"shared + kBlock + iteration % {self.overlap.keys.stages} * 8"
        writer.line(f"const int kv = attn::load_shared_int({at}), kind = attn::uniform(attn::load_shared_int({at} + 4));")
        writer.line(f"const int count = kind % {PARTIAL};", f"ends = kind / {LAST};")

    def _finish(self) -> None:
        """What follows the loop, for the program before."""
        core, writer, consumer = self.core, self.core.writer, self.consumer
        self._where()
        self._program("(round + 1)")
        rows = self._rows()
        for result, tile in zip(self.chain[-1].results, self.carried, strict=True):
            if tile is None:
                total = core.row("total")
                column = 4 * (self.accumulator.columns // 8 - 1)
                writer.line(*(f"{total.name}[{h}] = {self.accumulator.name}[{column + 2 * h}];" for h in range(2)))
                core.tiles[result] = total
            elif isinstance(tile, RegRow):
                core.tiles[result] = old = core.row("old")
                with writer.unrolled("h", 2):
                    writer.line(f"{old.name}[h] = attn::load_shared({self._place_of(rows.index(tile))});")
            else:
                core.tiles[result] = tile
        self.stores.thread = "thread"
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
    number = maker(element_of(value))
    if number is None or not isinstance(number.location, ir.NameLoc):
        return "state"
    return number.location.name_str.removesuffix("_new")
