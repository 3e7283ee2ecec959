"""The overlapped loop of thread blocks that share columns: each leaves its part of the scores of the next block of keys for the others,
and takes theirs of this one, which they left a block ago. So nobody waits for memory of another multiprocessor.
"""

from typing import Any

from attn_mlir.backends.gpu.origins import printing
from attn_mlir.backends.nvidia.hopper.consumer import Consumer
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.memory import SharedMemory
from attn_mlir.backends.nvidia.hopper.overlap import Overlap
from attn_mlir.backends.nvidia.hopper.score_exchange import ScoreExchange
from attn_mlir.backends.nvidia.hopper.steps import KvStep
from attn_mlir.backends.nvidia.hopper.tiles import RegTile
from attn_mlir.errors import UnsupportedError


class ClusterOverlap(Overlap):
    """`Overlap` with these scores; `exchange` is set before it is printed."""

    def __init__(self, core: Core, memory: SharedMemory, steps: list[KvStep], stages: int, warpgroups: int, **asked: bool) -> None:
        super().__init__(core, memory, steps, stages, warpgroups, **asked)
        if stages < 2:
            raise UnsupportedError("hopper: keys of the next block need a stage beside those of values of this one")
        self.exchange: ScoreExchange | None = None

    def blocks(self, consumer: Consumer, packed: str, carried: list[Any], accumulator: RegTile) -> None:
        """All blocks but the sums of the last one."""
        core, writer = self.core, self.core.writer
        writer.line("// The first block, and the scores of the second one: nothing is in flight yet.")
        with core.scope(""):
            self._leave(consumer, self._product(consumer, self._iteration(0)), 0, self._iteration(0))
        with core.scope(""):
            writer.line("const int n = 0;")
            self.position(self.general)
            self._take(self.general)
            with core.scope("if (key_blocks > 1)"):
                self._leave(consumer, self._product(consumer, self._iteration(1)), 0, self._iteration(1))
            self.weigh(consumer, self.general, packed, carried, accumulator, first=True)
        self.loop(consumer, self.general, "int n = 1; n < min(partial_blocks, key_blocks - 1); ++n", packed, carried, accumulator)
        if self.inner is not None:
            self.loop(consumer, self.inner, "int n = max(1, partial_blocks); n < key_blocks - 1; ++n", packed, carried, accumulator)
        with core.scope("if (key_blocks > 1)"):
            writer.line("const int n = key_blocks - 1;")
            self.position(self.general)
            self.sums(consumer, self.general, packed, accumulator)
            self.dropout(consumer, self.general)
            self._take(self.general)
            self.weigh(consumer, self.general, packed, carried, accumulator)

    def loop(self, consumer: Consumer, step: KvStep, head: str, packed: str, carried: list[Any], accumulator: RegTile) -> None:
        """The steady state."""
        core = self.core
        with core.scope(f"for ({head})"):
            self.position(step)
            following = self._iteration(1)
            mine, next_ = self.turns()
            part = self._product(consumer, following, mine)
            self.sums(consumer, step, packed, accumulator)
            core.writer.all(next_)
            self.dropout(consumer, step)
            self._take(step)
            self._leave(consumer, part, 1, following)
            self.weigh(consumer, step, packed, carried, accumulator)

    def _iteration(self, ahead: int) -> str:
        return f"({self.keys.iteration} + {ahead})" if ahead else self.keys.iteration

    def _product(self, consumer: Consumer, iteration: str, before: list[str] | None = None) -> RegTile:
        """Starts the product of queries and keys of an iteration."""
        core, products, step = self.core, consumer.products, self.general
        keys = self.memory.wait(self.keys, iteration)
        core.writer.all(before or [])
        part = core.fragment("part", self.keys.rows)
        with printing(step.scores):
            products.begin()
            products.start(part, products.left(consumer.shared(step.scores.operands[0])), keys, keys.depth, True, True, keys.element)
            products.commit()
        return part

    def _leave(self, consumer: Consumer, part: RegTile, pending: int, iteration: str) -> None:
        consumer.products.wait(pending, part)
        self.memory.free(self.keys, iteration)
        self._exchange.leave(part)

    def _take(self, step: KvStep) -> None:
        self.core.tiles[step.scores.results[0]] = self._exchange.take(self.core.fragment("s", self.keys.rows))

    @property
    def _exchange(self) -> ScoreExchange:
        if self.exchange is None:
            raise UnsupportedError("hopper: scores are left where a cluster shares columns")
        return self.exchange
