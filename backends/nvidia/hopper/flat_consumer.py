"""Consumers of the persistent loop (`flat`)."""

from collections.abc import Callable

from attn_mlir.backends.gpu.origins import printing
from attn_mlir.backends.gpu.structure import maker, partial_sums, yielded
from attn_mlir.backends.nvidia.hopper import stale_maximum
from attn_mlir.backends.nvidia.hopper.flat_state import PARTIAL, FlatState, core_columns
from attn_mlir.backends.nvidia.hopper.products import WgmmaProducts
from attn_mlir.backends.nvidia.hopper.stale_maximum import Needed, weights_of
from attn_mlir.backends.nvidia.hopper.steps import KvStep
from attn_mlir.backends.nvidia.hopper.stores import through_tma
from attn_mlir.backends.nvidia.hopper.tiles import ROWS, RegRow, RegTile, SharedTile, round_up
from attn_mlir.backends.nvidia.hopper.wgmma import ROW_BYTES


class FlatConsumer(FlatState):
    """Prints the role of the consumers."""

    def print(self) -> None:
        """Prints it."""
        core, writer, overlap, consumer = self.core, self.core.writer, self.overlap, self.consumer
        consumer.maps.partial |= partial_sums(self.chain)
        self.carried = self._declare()
        self._staging()
        through = all(through_tma(op.operands[1].type) for op in self.ops if op.name == "tile.store" and core_columns(op))
        writer.line("uint32_t round = 0;", f"int {', '.join(self.program)};")
        with writer.block("const auto next_program = [&]()"):
            self._fetch()
        writer.lines[-1] += ";"
        with writer.block("const auto release = [&]()"):
            if not through:
                # Outputs that threads store themselves, not TMA: all have read them there before one thread gives the place back.
                writer.line("attn::named_sync(8 + warpgroup, 128);")
            with writer.block("if (threadIdx.x % 128 == 0)"):
                # Queries may come where outputs lay once their copies have read shared memory; who issued them asks.
                writer.line("attn::bulk_wait_read<0>();", "attn::barrier_arrive(shared + kQueriesFree + (round + 1) % 2 * 8);")
        writer.lines[-1] += ";"
        if self.in_registers:
            self._registers()
        writer.line("attn::barrier_wait(shared + kQueriesFull, 0);", "next_program();")  # the first program's queries and its message
        if self.in_registers:
            writer.line("load_queries();")
        self._initial()
        writer.line("bool ends;", "// The first block: nothing is in flight yet.")
        with core.scope(""):
            self._scores(overlap.general)
            consumer.products.wait(0, self.scores)
            self._place()
            self.memory.free(overlap.keys)
            overlap.wait_windows()
            self._maps(overlap.general)
            consumer.products.pack(self.weights, self.packed)
            self._free_windows()
        writer.line("++iteration;", "bool first = true;")
        if overlap.ping_pong:
            # Warpgroup 0 starts: nobody has its turn before, so the last one passes it on once in advance.
            writer.line(f"if (warpgroup == {overlap.warpgroups - 1}) attn::named_arrive(1, 256);")
        with core.scope("for (;; ++iteration)"):
            self._iteration()
        writer.line("// The sums of the last block of all.")
        with core.scope(""):
            overlap.sums(consumer, overlap.general, self.packed, self.accumulator, "first", self.beside)
            consumer.products.wait(0, self.accumulator)
            self._stash()
            self._finish()
        self.stores.finish()

    def _iteration(self) -> None:
        core, writer, overlap, products = self.core, self.core.writer, self.overlap, self.consumer.products
        writer.line("const bool last = ends;")
        with writer.block("if (last)"):
            writer.line("if (first && round > 0) release();", "++round;")
            # Two buffers alternate, each with a phase every second round.
            writer.line("attn::barrier_wait(shared + kQueriesFull + round % 2 * 8, round / 2 & 1);")
            writer.line("next_program();", f"if (!{self.program[3]}) break;")
            if self.in_registers:
                writer.line("load_queries();")
        # Ping-pong: this warpgroup's products are issued after those of the one before; meanwhile that one computes exponentials.
        self._scores(overlap.general, f"attn::named_sync({self.mine}, 256);" if overlap.ping_pong else "")
        overlap.sums(self.consumer, overlap.general, self.packed, self.accumulator, "first", self.beside)
        if overlap.ping_pong:
            # Both products are issued: the next warpgroup may issue its own.
            writer.line(f"attn::named_arrive({self.next}, 256);")
        products.wait(1, self.scores)
        self._place()
        if self.kept is None:
            self.memory.free(overlap.keys)
        for row in self._changed():
            writer.line(f"const float old_{row.name}[2] = {{{row.name}[0], {row.name}[1]}};")
        with writer.block("if (last)"):
            self._stash()
            self._initial()
        overlap.wait_windows()
        self._weights()
        self._free_windows()
        if self.kept is not None:
            self.memory.free(overlap.keys, f"attn::opaque({overlap.keys.iteration})")
        writer.line("if (first && !last && round > 0) release();")
        with core.scope("if (last)"):
            self._finish()
        if self.factor is not None and self.kept is None:
            with writer.block("else"):
                self._rescale()
        writer.line("first = last;")

    def _free_windows(self) -> None:
        """Gives windows back where the step might have been done again."""
        if self.kept is not None:
            self.overlap.free_windows()

    def _land(self) -> None:
        """Waits for the sums of the block before; then the packed weights may be overwritten."""
        overlap, whole = self.overlap, [row for row in self._rows() if not row.partial]
        if whole and overlap.pin:  # holds ptxas back from waiting before the maxima are there
            self.core.writer.line(f"attn::pin({whole[0].name}[0] + {whole[0].name}[1]);")
        self.consumer.products.wait(0, self.accumulator)
        # The address is computed again, so that it needs no register until here.
        self.memory.free(overlap.values, f"(attn::opaque({overlap.keys.iteration}) - 1)")

    def _weights(self) -> None:
        """From the scores of this block to its packed weights, by the cheapest step that is right."""
        core, overlap = self.core, self.overlap
        if overlap.inner is None:
            with core.scope(""):
                self._exact(overlap.general)
            return
        exact = f"kind & {PARTIAL}"
        if self.kept is not None:
            core.writer.line(f"const bool exact = last || {exact};")
        with core.scope("if (exact)" if self.kept is not None else f"if ({exact})"):
            if self.kept is not None:
                self._program("round")
                self._where()
            self._exact(overlap.general)
            if self.kept is not None:
                with core.scope("if (!last)"):
                    self._rescale()
        with core.scope("else"):
            if self.kept is None:
                self._exact(overlap.inner)
            else:
                self._maps(overlap.inner, self.kept)
                self._land()
                self.consumer.products.pack(self.weights, self.packed)
                self._again()

    def _exact(self, step: KvStep) -> None:
        """The step that follows the maxima; weights are packed as they are made, when the sums of the block before are done."""
        self._maps(step, before=self._land)
        self.consumer.products.pack(self.weights, self.packed)

    def _again(self) -> None:
        """Where weights with the old reference are too large: the scores once more, by this warp alone, and the exact step."""
        core, writer, overlap = self.core, self.core.writer, self.overlap
        step = overlap.inner or overlap.general
        writer.line("// Rare: a warp finds that its old maxima are too small.")
        with core.scope(f"if (attn::any_reaches<{stale_maximum.limit_of(step):#x}>({self.packed}))"):
            self._where()
            queries = self._queries(step)
            keys = SharedTile(overlap.keys.at(), overlap.keys.rows, overlap.keys.columns, overlap.keys.element)
            own = f"{queries.address} + warpgroup * {ROWS * ROW_BYTES}"
            depth = f"{keys.depth}, {'true' if keys.element == 'bf16' else 'false'}"
            writer.line(
                f"attn::scores_of_warp<{depth}>({self.scores.name}, {own}, {queries.atom_bytes}, {keys.address}, {keys.atom_bytes});"
            )
            for row in self._changed():
                writer.line(*(f"{row.name}[{h}] = old_{row.name}[{h}];" for h in range(2)))
            self._maps(step)
            self.consumer.products.pack(self.weights, self.packed)
            self._rescale()

    def _rescale(self) -> None:
        """Gives the accumulators the reference of the block's weights."""
        if self.factor is not None:
            self.consumer.products.rescale(self.accumulator, self.factor, self.overlap.vote)

    def _scores(self, step: KvStep, before: str = "") -> None:
        """Starts the product of queries and keys of the next block."""
        products: WgmmaProducts = self.consumer.products
        keys = self.memory.wait(self.overlap.keys)
        if before:
            self.core.writer.line(before)
        left = "queries" if self.in_registers else products.left(self._queries(step))
        with printing(step.scores):
            products.begin()
            products.start(self.scores, left, keys, keys.depth, True, True, keys.element)
            products.commit()

    def _maps(self, step: KvStep, kept: Needed | None = None, before: Callable[[], None] | None = None) -> None:
        """From scores to weights, in place, and to the new row values; with `kept` those of the old reference.

        `before` prints what comes before the weights.
        """
        core, writer, consumer = self.core, self.core.writer, self.consumer
        core.scalars.bind(step.position, "kv")
        if not step.whole:
            core.scalars.bind(list(step.keys.operands)[-1], "count")
        core.tiles[step.scores.results[0]] = self.scores
        weights = weights_of(step)
        consumer.maps.targets[weights] = self.weights
        needed = kept if kept is not None else stale_maximum.everything_but(step, self._left_out(step))
        # Sums that are in flight read the weights of the block before: what comes before the weights, or they alone, is computed meanwhile.
        alone = next(op for op in step.rest if op.name == "tile.map") == maker(weights)
        for op in step.rest:
            if before is not None and op == maker(weights) and not alone:
                before()
            if op.name == "tile.map":
                same = {result: core.tiles.get(needed.same[result]) for result in op.results if result in needed.same}
                core.tiles.update({result: tile for result, tile in same.items() if tile is not None})
                consumer.map(op, needed.results - needed.same.keys(), needed.fixed)
            else:
                consumer.operation(op, [])
            if self.kept is None:
                self.overlap.free_windows(step, op)
            if before is not None and op == maker(weights) and alone:
                if self.overlap.pin:
                    writer.line(f"attn::hold({self.weights.name});")
                before()
        made = core.tiles[weights]
        if made != self.weights and isinstance(made, RegTile):
            with writer.unrolled("c", made.registers):
                writer.line(f"{self.weights.name}[c] = {made.name}[c];")
        core.tiles[step.sums.results[0]] = RegTile(self.accumulator.name, round_up(core.columns(step.sums.results[0].type), 8))
        if self.factor is not None and kept is None:
            factor = core.tiles[step.sums.operands[1]]
            if isinstance(factor, RegRow):
                writer.line(*(f"{self.factor.name}[{h}] = {factor.name}[{h}];" for h in range(2)))
        pairs = [(tile, value) for tile, value in zip(self.carried, yielded(step.block), strict=True) if tile is not None]
        consumer.assign([tile for tile, _ in pairs], [value for _, value in pairs])
