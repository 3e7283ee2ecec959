"""The schedule of a loop over keys: while the weights of one block are computed, the scores of this block and the sums of the one before
are in flight on the tensor cores.

It is for loops of the shape: scores = queries keys^T, maps, accumulator = accumulator * scale + weights values. Blocks are visited from
the last to the first, those that may be partial before the whole ones; the first of all is peeled, and handled as a partial one.
"""

from collections.abc import Callable, Sequence

from attn_mlir.backends.gpu.origins import printing
from attn_mlir.backends.gpu.structure import body, maker, operations, partial_sums, yielded
from attn_mlir.backends.nvidia.hopper.consumer import Consumer
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.dropout import kept_in, keys_along_columns, print_rows, print_seeds
from attn_mlir.backends.nvidia.hopper.memory import SharedMemory
from attn_mlir.backends.nvidia.hopper.steps import KvStep
from attn_mlir.backends.nvidia.hopper.tiles import RegRow, RegTile
from attn_mlir.backends.nvidia.hopper.windows import WindowRings
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

_PING_PONG = 1
"""The first of the named barriers of warpgroups in ping-pong."""


class Overlap:
    """Prints a chain of loops with that schedule, for both roles."""

    def __init__(
        self,
        core: Core,
        memory: SharedMemory,
        steps: list[KvStep],
        stages: int,
        warpgroups: int,
        *,
        ping_pong: bool,
        vote: bool,
        pin: bool,
    ) -> None:
        self.core, self.memory, self.steps = core, memory, steps
        self.windows: WindowRings | None = None
        self.complete: Callable[[RegTile], None] | None = None
        """Prints what makes whole scores of a product over a part of the columns."""
        self.warpgroups, self.ping_pong, self.vote, self.pin = warpgroups, ping_pong, vote, pin
        self.pending = 0
        """Products that are in flight after the sums of the block before, when these are waited for."""
        # The body with the most ops has the mask: it is right for all blocks.
        partial = [step for step in steps if not step.whole]
        self.general = max(partial, key=lambda step: sum(len(operations(body(op))) for op in step.rest if op.name == "tile.map"))
        whole = [step for step in steps if step.whole]
        self.classified = any(step.some is not None for step in steps)
        self.inner = whole[0] if whole else None
        self.order = [*reversed(partial), *reversed(whole)]
        self.keys, self.values = memory.ring(self.general.keys, stages), memory.ring(self.general.values, stages)
        if whole and (memory.ring(whole[0].keys, stages) != self.keys or memory.ring(whole[0].values, stages) != self.values):
            raise UnsupportedError("hopper: whole blocks have another size than partial ones")

    def share_iteration(self) -> None:
        """Counts blocks once for keys and values, where no other loop takes stages of their rings."""
        self.values.iteration = self.keys.iteration = "iteration"

    # ---- which blocks

    def positions(self) -> None:
        """Prints where blocks begin and end."""
        core, writer = self.core, self.core.writer
        size = self.keys.rows
        limits = []
        for number, step in enumerate(self.order):
            begin, end = (core.value(value) for value in list(step.loop.operands)[:2])
            count = core.names.fresh(f"blocks_{number}")
            writer.line(f"const int {count} = max(0, ({end} - {begin} + {size - 1}) / {size});")
            limits.append((begin, end, count))
        partial = sum(not step.whole for step in self.order)
        writer.line(f"const int partial_blocks = {' + '.join(count for *_, count in limits[:partial])};")
        rest = " + ".join(["partial_blocks", *(count for *_, count in limits[partial:])])
        writer.line(f"const int found_blocks = {rest}, key_blocks = max(1, found_blocks);")
        for name, which in (("begin_of", 0), ("end_of", 1)):
            with writer.block(f"const auto {name} = [&](int n)"):
                for position, limit in enumerate(limits):
                    value = f"{limit[0]} + ({limit[2]} - 1 - n) * {size}" if which == 0 else limit[1]
                    if position == len(limits) - 1:
                        writer.line(f"return {value};")
                    else:
                        writer.line(f"if (n < {limit[2]}) return {value};", f"n -= {limit[2]};")
            writer.lines[-1] += ";"

    def place(self, load: ir.Operation, count: str) -> list[str]:
        """First row, head, batch and count of a block of keys that begins at position `kv`; prints what does not depend on that."""
        core, position = self.core, self.general.position
        _, batch, head, row, _ = load.operands
        adds = maker(row, "arith.addi")
        if row == position:
            first = "kv"
        elif adds is not None and position in list(adds.operands):  # where a sequence of packed tensors begins
            begin = next(value for value in adds.operands if value != position)
            first = f"{core.value(begin)} + kv"
        else:
            raise UnsupportedError("hopper: keys are loaded at other rows than those of the loop")
        return [first, core.value(head), core.value(batch), count]

    def producer(self) -> None:
        """Loads the blocks."""
        core = self.core
        self.positions()
        with core.scope("for (int n = 0; n < key_blocks; ++n)"):
            core.writer.line("const int kv = found_blocks == 0 ? 0 : begin_of(n);")
            for load, ring in ((self.general.keys, self.keys), (self.general.values, self.values)):
                self.memory.fill(ring, self.place(load, f"(found_blocks == 0 ? 0 : min({self.keys.rows}, end_of(n) - kv))"))
                if ring is self.keys:
                    self.make()
            self.count()

    def make(self) -> None:
        """Tells the warps that bring windows which keys these are."""
        if self.windows is not None:
            self.windows.make(self.keys.iteration)

    # ---- the consumers

    def wait_windows(self) -> None:
        """Waits for the windows of this block."""
        if self.windows is not None:
            self.windows.wait(self.keys.iteration)

    def free_windows(self, step: KvStep | None = None, op: ir.Operation | None = None) -> None:
        """Gives them back; of a step's ops, after the last one that reads them."""
        if self.windows is not None and (step is None or op == self.windows.last_reader(step)):
            self.windows.free(self.keys.iteration)

    def consumer(self, consumer: Consumer) -> None:
        """Computes; afterwards the chain's results are known tiles."""
        core, writer = self.core, self.core.writer
        last = self.steps[-1].loop
        partial = partial_sums([step.loop for step in self.steps])
        consumer.maps.partial |= partial
        starts = list(self.steps[0].loop.operands)[3:]
        carried = [
            consumer.carry(argument, value) for argument, value in zip(list(body(self.general.loop).arguments)[1:], starts, strict=True)
        ]
        for step in self.steps:
            core.tiles.update(zip(list(body(step.loop).arguments)[1:], carried, strict=True))
        accumulator = consumer.fragment(self.general.sums.operands[0])
        self.positions()
        print_seeds(core, [op for step in self.steps for op in find_all(step.loop, "attn.kept")])
        packed = core.names.fresh("packed")
        writer.line(f"uint32_t {packed}[{self.keys.rows // 4}];")
        self.blocks(consumer, packed, carried, accumulator)
        writer.line("// The sums of the last block.")
        self.sums(consumer, self.general, packed, accumulator)
        consumer.products.wait(0, accumulator)
        self.land_sums()
        core.seeds = {}
        for result, tile in zip(last.results, carried, strict=True):
            core.tiles[result] = consumer.whole(tile)

    def blocks(self, consumer: Consumer, packed: str, carried: list, accumulator: RegTile) -> None:
        """All blocks but for the sums of the last one."""
        self.core.writer.line("// The first block: nothing is in flight yet.")
        with self.core.scope(""):
            self.core.writer.line("const int n = 0;")
            scores = self.scores(consumer, self.general)
            self.land(consumer, scores, 0)
            self.weigh(consumer, self.general, packed, carried, accumulator, first=True)
        self.loop(consumer, self.general, "int n = 1; n < partial_blocks; ++n", packed, carried, accumulator)
        if self.inner is not None:
            self.loop(consumer, self.inner, "int n = max(1, partial_blocks); n < key_blocks; ++n", packed, carried, accumulator)

    def loop(self, consumer: Consumer, step: KvStep, head: str, packed: str, carried: list, accumulator: RegTile) -> None:
        """The steady state."""
        with self.core.scope(f"for ({head})"):
            scores = self.start(consumer, step, packed, accumulator)
            self.dropout(consumer, step)
            self.land(consumer, scores, 1)
            self.weigh(consumer, step, packed, carried, accumulator)

    def weigh(self, consumer: Consumer, step: KvStep, packed: str, carried: list, accumulator: RegTile, *, first: bool = False) -> None:
        """From the scores of a block to its packed weights; unless it is the `first` one, sums of the block before are in flight."""
        core, products = self.core, consumer.products
        self.wait_windows()
        self.softmax(consumer, step, None if first else accumulator)
        self.count()
        products.pack(self.weights(step), packed)
        factor = core.tiles.get(step.sums.operands[1]) if step.sums.name == "tile.dot_rescale" and not first else None
        if isinstance(factor, RegRow):
            products.rescale(accumulator, factor, self.vote)
        core.tiles[step.sums.results[0]] = accumulator
        consumer.assign(carried, yielded(step.block))
        consumer.maps.ready.clear()

    def land(self, consumer: Consumer, scores: RegTile, pending: int) -> None:
        """Waits for scores, but for so many products after them, and gives their keys back."""
        consumer.products.wait(pending, scores)
        self.memory.free(self.keys)
        if self.complete is not None:
            self.complete(scores)

    def land_sums(self) -> None:
        """Gives back the values of sums that are done."""
        self.memory.free(self.values, self.before)

    def dropout(self, consumer: Consumer, step: KvStep) -> None:
        """Makes the bits of the block while its scores are in flight."""
        for op in step.rest:
            kept = kept_in(body(op)) if op.name == "tile.map" else None
            if kept is not None and keys_along_columns(kept):
                consumer.maps.ready[kept] = print_rows(self.core, kept, self.keys.rows)

    def start(self, consumer: Consumer, step: KvStep, packed: str, accumulator: RegTile) -> RegTile:
        """Starts both products, when the other warpgroups are past theirs."""
        mine, following = self.turns()
        scores = self.scores(consumer, step, mine)
        self.sums(consumer, step, packed, accumulator)
        self.core.writer.all(following)
        return scores

    def turns(self) -> tuple[list[str], list[str]]:
        """Before the products of a block, and after: the next warpgroup may issue its own.

        Ping-pong: products are issued after those of the warpgroup before, which computes exponentials meanwhile.
        """
        if not self.ping_pong:
            return [], []
        following = f"{_PING_PONG} + (warpgroup + 1) % {self.warpgroups}"
        return [f"attn::named_sync({_PING_PONG} + warpgroup, 256);"], [f"attn::named_arrive({following}, 256);"]

    def position(self, step: KvStep) -> None:
        """Prints where block n begins, and how many keys it has."""
        core, writer = self.core, self.core.writer
        writer.line("const int kv = found_blocks == 0 ? 0 : begin_of(n);")
        core.scalars.bind(step.position, "kv")
        if not step.whole:
            writer.line(f"const int count = found_blocks == 0 ? 0 : min({self.keys.rows}, end_of(n) - kv);")
            core.scalars.bind(list(step.keys.operands)[-1], "count")

    def scores(self, consumer: Consumer, step: KvStep, before: Sequence[str] = ()) -> RegTile:
        """Starts the product of queries and keys of block n."""
        core, products = self.core, consumer.products
        self.position(step)
        core.tiles[step.keys.results[0]] = keys = self.memory.wait(self.keys)
        core.writer.all(list(before))
        scores = core.fragment("s", self.keys.rows)
        with printing(step.scores):
            products.begin()
            products.start(scores, products.left(consumer.shared(step.scores.operands[0])), keys, keys.depth, True, True, keys.element)
            products.commit()
        core.tiles[step.scores.results[0]] = scores
        return scores

    def sums(
        self, consumer: Consumer, step: KvStep, packed: str, accumulator: RegTile, clear: str | bool = False, beside: str = ""
    ) -> None:
        """Starts the product of weights and values of the block before, and of what is `beside` them."""
        products = consumer.products
        values = self.memory.wait(self.values, self.before)
        with printing(step.sums):
            products.begin()
            products.start(accumulator, packed, values, self.keys.rows, False, clear, values.element, beside=beside)
            products.commit()
        self.core.tiles[step.sums.results[0]] = accumulator

    @property
    def before(self) -> str:
        """The iteration of the block before, whose values are summed now."""
        return f"({self.values.iteration} - 1)"

    def count(self) -> None:
        """The next block."""
        self.core.writer.line(*(f"++{iteration};" for iteration in dict.fromkeys((self.keys.iteration, self.values.iteration))))

    def weights(self, step: KvStep) -> RegTile:
        """The weights of this block."""
        tile = self.core.tiles[list(step.sums.operands)[-2]]
        if not isinstance(tile, RegTile):
            raise UnsupportedError("hopper: weights are in registers")
        return tile

    def softmax(self, consumer: Consumer, step: KvStep, accumulator: RegTile | None = None) -> None:
        """The maps between the products; before the one that makes weights the sums that are in flight, if any, are waited for.

        Windows are given back as soon as they are read.
        With `pin` this wait must not move before the first row values.
        """
        first: list[str] = []
        weights = maker(list(step.sums.operands)[-2])
        for op in step.rest:
            if accumulator is not None and op == weights:
                if self.pin and first:
                    self.core.writer.line(f"attn::pin({' + '.join(first)});")
                consumer.products.wait(self.pending, accumulator)
                self.land_sums()
            consumer.operation(op, [])
            self.free_windows(step, op)
            rows = [
                tile for tile in (self.core.tiles.get(result) for result in op.results) if isinstance(tile, RegRow) and not tile.partial
            ]
            if not first and rows:
                first = [f"{rows[0].name}[{h}]" for h in range(2)]
