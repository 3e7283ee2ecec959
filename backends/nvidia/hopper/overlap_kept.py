"""The overlapped loop in which whole blocks keep the old maxima: weights that get too large are noticed, and the step is done again."""

from attn_mlir.backends.gpu.structure import yielded
from attn_mlir.backends.nvidia.hopper import stale_maximum
from attn_mlir.backends.nvidia.hopper.consumer import Consumer
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.memory import SharedMemory
from attn_mlir.backends.nvidia.hopper.overlap import Overlap
from attn_mlir.backends.nvidia.hopper.stale_maximum import Needed
from attn_mlir.backends.nvidia.hopper.steps import KvStep
from attn_mlir.backends.nvidia.hopper.tiles import ROWS, RegRow, RegTile, SharedTile, Tile
from attn_mlir.backends.nvidia.hopper.wgmma import ROW_BYTES
from attn_mlir.errors import UnsupportedError


class KeptOverlap(Overlap):
    """`Overlap` with that step in the loop over whole blocks; see docs/nvidia-hopper.md, `lazy_rescale`."""

    def __init__(self, core: Core, memory: SharedMemory, steps: list[KvStep], stages: int, warpgroups: int, **asked: bool) -> None:
        super().__init__(core, memory, steps, stages, warpgroups, **asked)
        kept = stale_maximum.keeps_reference(self.inner) if self.inner is not None else None
        if kept is None:
            raise UnsupportedError("hopper: this program has no whole blocks whose maximum may stay (lazy_rescale = 1)")
        self.kept: Needed = kept

    def loop(self, consumer: Consumer, step: KvStep, head: str, packed: str, carried: list[Tile], accumulator: RegTile) -> None:
        """The steady state. The stage of keys is given back at the end, because the exact step reads it again."""
        if step != self.inner:
            super().loop(consumer, step, head, packed, carried, accumulator)
            return
        core, writer, products = self.core, self.core.writer, consumer.products
        with core.scope(f"for ({head})"):
            scores = self.start(consumer, step, packed, accumulator)
            keys = self.core.tiles[step.keys.results[0]]
            self.dropout(consumer, step)
            products.wait(1, scores)
            self.wait_windows()
            self._kept_maps(consumer, step)
            products.wait(0, accumulator)
            self.memory.free(self.values, self.before)
            products.pack(self.weights(step), packed)
            new = {value: core.tiles[value] for value in yielded(step.block) if value in core.tiles}
            writer.line("// Rare: a warp finds that its old maxima are too small.")
            with core.scope(f"if (attn::any_reaches<{stale_maximum.limit_of(step):#x}>({packed}))"):
                self._exact(consumer, step, scores, keys, packed, accumulator)
                core.tiles[step.sums.results[0]] = accumulator
                consumer.assign(carried, yielded(step.block))
            with core.scope("else"):
                core.tiles.update(new)
                core.tiles[step.sums.results[0]] = accumulator
                consumer.assign(carried, yielded(step.block))
            consumer.maps.ready.clear()
            self.memory.free(self.keys)
            self.free_windows()
            self.count()

    def _kept_maps(self, consumer: Consumer, step: KvStep) -> None:
        """From scores to weights with the old maxima."""
        core, kept = self.core, self.kept
        for op in step.rest:
            if op.name == "tile.map":
                core.tiles.update({result: core.tiles[kept.same[result]] for result in op.results if result in kept.same})
                consumer.map(op, kept.results - kept.same.keys(), kept.fixed)
            else:
                consumer.operation(op, [])

    def _exact(self, consumer: Consumer, step: KvStep, scores: RegTile, keys: Tile, packed: str, accumulator: RegTile) -> None:
        """The scores once more, by this warp alone, and the exact step for them."""
        queries = consumer.shared(step.scores.operands[0])
        if not isinstance(keys, SharedTile):
            raise UnsupportedError("hopper: keys are in shared memory")
        own = f"{queries.address} + warpgroup * {ROWS * ROW_BYTES}"
        depth = f"{keys.depth}, {'true' if keys.element == 'bf16' else 'false'}"
        self.core.writer.line(
            f"attn::scores_of_warp<{depth}>({scores.name}, {own}, {queries.atom_bytes}, {keys.address}, {keys.atom_bytes});"
        )
        for op in step.rest:
            consumer.operation(op, [])
        consumer.products.pack(self.weights(step), packed)
        factor = self.core.tiles[step.sums.operands[1]]
        if isinstance(factor, RegRow):
            consumer.products.rescale(accumulator, factor, self.vote)
