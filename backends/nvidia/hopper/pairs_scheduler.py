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
    pieces: str = ""
    """Where shared memory tells how programs are shared (`pairs_pieces`); a unit of work is a piece of one then. Empty: they are not."""

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
            writer.line("int program = blockIdx.x;")
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

    @property
    def count(self) -> str:
        return f"attn::load_shared_int({self.pieces} + 16)" if self.pieces else super().count

    @property
    def last_draw(self) -> str:
        return f"attn::load_shared_int({self.pieces} + 20)" if self.pieces else super().last_draw

    def follow(self) -> None:
        """Asks for the next program and goes on to it, or to a second piece of work that comes with the first."""
        if not self.pieces:
            super().draw()
            super().follow()
            return
        with self.core.scope(f"if (attn::has_second_piece(program, attn::load_shared_int4({self.pieces})))"):
            self.core.writer.line("++program;")
        with self.core.scope("else"):
            super().draw()
            super().follow()
            self.core.writer.line(f"program = attn::unit_of_draw(program, attn::load_shared_int({self.pieces}));")

    def decode(self) -> None:
        """Which block, head and batch the program is."""
        if self.order == "tiles":
            super().decode()
            return
        writer, program = self.core.writer, "program"
        if self.pieces:
            writer.line(f"const attn::Piece piece = attn::piece_at(program, {self.pieces});")
            program = "piece.program"
        blocks = self.core.blocks()
        place = f"{blocks} - 1 - inside / width" if self.reverse and not self.core.packed else "inside / width"
        writer.line(
            f"const int first = {program} / ({blocks} * together) * together, inside = {program} % ({blocks} * together);",
            "const int width = min(together, pairs - first), pair = first + inside % width;",
            f"const int block = {place}, {self.pair()};",
        )
