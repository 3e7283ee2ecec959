"""The order in which thread blocks run the programs of a kernel over pairs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from attn_mlir.backends.nvidia.hopper.pairs_loop import STEP
from attn_mlir.backends.nvidia.hopper.tile_scheduler import TileScheduler


@dataclass
class PairTileScheduler(TileScheduler):
    """Programs differ in length under a mask: the next one is asked for when all tiles of the one before are on their way.

    `group` is a number of programs here: as many heads run together as have so many, at least one and no more than `most_heads` (0: any
    number), the blocks of all of them in turn.
    """

    most_heads: int = 0
    waits: bool = False
    """Whether programs wait for those of lower numbers. Then thread blocks draw all of them, the first ones too: whichever thread blocks
    the GPU has begun, the lowest program that is not done belongs to one that runs it. `blockIdx` says nothing about who has begun.
    """

    @contextmanager
    def each(self, producer: bool) -> Iterator[None]:
        """The loop; steps are counted through all programs.

        So that programs need no register of their own, their number is kept above the 28 bits of the number of steps.
        """
        writer = self.core.writer
        writer.line(f"uint32_t {STEP} = 0;")
        if self.order != "dynamic":
            with super().each(producer):
                yield
            return
        if producer:
            writer.line(f"int program = {self._drawn() if self.waits else 'blockIdx.x'};")
        with self.core.scope(f"for (;; {STEP} += 1u << 28)"):
            writer.line(f"const uint32_t round = {STEP} >> 28;")
            self._exchange(producer)
            self.decode()
            yield
            if producer:
                self.follow()

    def declare(self) -> None:
        super().declare()
        if self.order != "tiles":
            blocks = "max(1, items)" if self.core.packed else self.core.blocks()
            least = self.core.arguments.size(self.over, 0) if self.shared_batches else "1"
            heads = f"{self.group} / {blocks}"
            heads = f"min({self.most_heads}, {heads})" if self.most_heads else heads
            self.core.writer.line(f"const int together = min(pairs, max({least}, {heads}));")

    def draw(self) -> None:
        """Nothing yet."""

    def follow(self) -> None:
        """Asks for the next program and goes on to it."""
        if self.waits:
            self.core.writer.line(f"program = {self._drawn()};")
            return
        super().draw()
        super().follow()

    def _drawn(self) -> str:
        """The next number, whose draw leaves the counter zero if it is the last one: each thread block draws one that is no program."""
        counter = f"reinterpret_cast<unsigned *>({self.core.arguments.counter()})"
        blocks = "min((int)gridDim.x, programs)" if self.core.packed else "(int)gridDim.x"  # of packed sequences `declare` lets others end
        return f"__shfl_sync(0xffffffffu, lane == 0 ? (int)atomicInc({counter}, programs - 1 + {blocks}) : 0, 0)"

    def decode(self) -> None:
        """Which block, head and batch the program is."""
        if self.order == "tiles":
            super().decode()
            return
        writer = self.core.writer
        blocks = self.core.blocks()
        place = f"{blocks} - 1 - inside / width" if self.reverse and not self.core.packed else "inside / width"
        writer.line(
            f"const int first = program / ({blocks} * together) * together, inside = program % ({blocks} * together);",
            "const int width = min(together, pairs - first), pair = first + inside % width;",
            f"const int block = {place}, {self.pair()};",
        )
