"""The overlapped loop in which thread blocks of a cluster send scores a block ahead: what is on its way is hidden behind products.

While the sums of the block before and the scores of the next block are on the tensor cores, the other thread blocks' part of this block's
scores arrives, and its weights are computed. Only then the next scores are waited for and sent. So nobody waits for what was just sent.
"""

from attn_mlir.backends.gpu.origins import printing
from attn_mlir.backends.nvidia.hopper.consumer import Consumer
from attn_mlir.backends.nvidia.hopper.overlap import Overlap
from attn_mlir.backends.nvidia.hopper.score_exchange import ScoreExchange
from attn_mlir.backends.nvidia.hopper.steps import KvStep
from attn_mlir.backends.nvidia.hopper.tiles import RegTile
from attn_mlir.errors import UnsupportedError


class AheadOverlap(Overlap):
    """`Overlap` with that order. Keys are a block ahead of values, so each of them counts its own stages."""

    exchange: ScoreExchange | None = None
    early = False
    """Whether scores are sent before the weights of the block before are computed, or after."""

    def share_iteration(self) -> None:
        """Keys and values are at different blocks."""

    @property
    def before(self) -> str:
        """The values of the block before are counted when they have been summed."""
        return self.values.iteration

    def count(self) -> None:
        """Each ring is counted where its stage is given back."""

    def land_sums(self) -> None:
        super().land_sums()
        self.core.writer.line(f"++{self.values.iteration};")

    def producer(self) -> None:
        """Loads the keys of a block before the values of the block before, as they are read."""
        if self.windows is not None:
            raise UnsupportedError("hopper: windows are not brought for thread blocks that send scores a block ahead (ahead = 1)")
        core, writer = self.core, self.core.writer
        self.positions()
        with core.scope("for (int next = 0; next <= key_blocks; ++next)"):
            rings = (
                ("next < key_blocks", "next", self.general.keys, self.keys),
                ("next > 0", "next - 1", self.general.values, self.values),
            )
            for condition, which, load, ring in rings:
                with core.scope(f"if ({condition})"):
                    writer.line(f"const int n = {which};", "const int kv = found_blocks == 0 ? 0 : begin_of(n);")
                    self.memory.fill(ring, self.place(load, f"(found_blocks == 0 ? 0 : min({ring.rows}, end_of(n) - kv))"))
                    writer.line(f"++{ring.iteration};")

    def blocks(self, consumer: Consumer, packed: str, carried: list, accumulator: RegTile) -> None:
        core, writer, general = self.core, self.core.writer, self.general
        writer.line("// The first block: nothing is in flight yet.")
        sent = core.fragment("sent", self.keys.rows)
        self._wait_keys()
        self._start_scores(consumer, sent)
        self._send(consumer, sent)
        with core.scope(""):
            writer.line("const int n = 0;")
            self.position(general)
            scores = core.fragment("s", self.keys.rows)
            with writer.unrolled("c", scores.registers):
                writer.line(f"{scores.name}[c] = {sent.name}[c];")
            self._receive(general, scores)
            with core.scope("if (1 < key_blocks)"):
                self._wait_keys()
                self._start_scores(consumer, sent)
                self._send(consumer, sent)
            self.weigh(consumer, general, packed, carried, accumulator, first=True)
        self.sent = sent
        self.loop(consumer, general, "int n = 1; n < min(partial_blocks, key_blocks - 1); ++n", packed, carried, accumulator)
        if self.inner is not None:
            self.loop(consumer, self.inner, "int n = max(1, partial_blocks); n < key_blocks - 1; ++n", packed, carried, accumulator)
        writer.line("// The last block: no scores are left to multiply.")
        with core.scope("if (1 < key_blocks)"):
            writer.line("const int n = key_blocks - 1;")
            self.position(general)
            self.sums(consumer, general, packed, accumulator)
            self.dropout(consumer, general)
            self._receive(general, sent)
            self.weigh(consumer, general, packed, carried, accumulator)

    def loop(self, consumer: Consumer, step: KvStep, head: str, packed: str, carried: list, accumulator: RegTile) -> None:
        """The steady state."""
        core, writer = self.core, self.core.writer
        with core.scope(f"for ({head})"):
            self.position(step)
            self._wait_keys()
            mine, following = self.turns()
            writer.all(mine)
            scores = core.fragment("next", self.keys.rows)
            if self.early:
                self._start_scores(consumer, scores)
            self.sums(consumer, step, packed, accumulator)
            if not self.early:
                self._start_scores(consumer, scores)
            writer.all(following)
            self.dropout(consumer, step)
            self._receive(step, self.sent)
            if self.early:
                self._send(consumer, scores, 1)
            self.pending = 0 if self.early else 1
            self.weigh(consumer, step, packed, carried, accumulator)
            self.pending = 0
            if not self.early:
                self._send(consumer, scores)
            with writer.unrolled("c", scores.registers):
                writer.line(f"{self.sent.name}[c] = {scores.name}[c];")

    def _wait_keys(self) -> None:
        self._tile = self.memory.wait(self.keys)

    def _start_scores(self, consumer: Consumer, scores: RegTile) -> None:
        """Starts the product of queries and the keys that were waited for."""
        products, keys = consumer.products, self._tile
        with printing(self.general.scores):
            products.begin()
            left = products.left(consumer.shared(self.general.scores.operands[0]))
            products.start(scores, left, keys, keys.depth, True, True, keys.element)
            products.commit()

    def _send(self, consumer: Consumer, scores: RegTile, after: int = 0) -> None:
        """Waits for the scores, but for so many products after them, and sends them to the other thread blocks."""
        consumer.products.wait(after, scores)
        self.memory.free(self.keys)
        self.core.writer.line(f"++{self.keys.iteration};")
        self._of_cluster().send(scores)

    def _receive(self, step: KvStep, scores: RegTile) -> None:
        """Adds what the others sent of this block."""
        self._of_cluster().receive(scores)
        self.core.tiles[step.scores.results[0]] = scores

    def _of_cluster(self) -> ScoreExchange:
        if self.exchange is None:
            raise UnsupportedError("hopper: scores are sent a block ahead where thread blocks of a cluster share columns")
        return self.exchange
