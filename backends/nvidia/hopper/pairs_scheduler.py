"""The order in which thread blocks run the programs of a kernel over pairs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout, head_columns
from attn_mlir.backends.nvidia.hopper.pairs_loop import STEP
from attn_mlir.backends.nvidia.hopper.tile_scheduler import TileScheduler

ROUND = f"(attn::opaque({STEP}) >> 28 & {BackwardLayout.PIECE_SLOTS - 1})"
"""This round's number among them, which needs no register."""


def programs_together(layout: BackwardLayout, choices: Mapping[str, int | str], way: tuple[bool, bool, bool]) -> Fields:
    """The part of a schedule that says which programs run at a time, and which way steps go.

    `way`: whether programs differ in length, as under a mask, add in a fixed order, and may go from the last queries to the first ones.
    Under a mask several heads run together, the longest programs first. In a fixed order each program waits for others of its head, which
    should have begun long before.
    """
    masked, ordered, descends = way
    descends = bool(choices.get("descending", descends))
    found: Fields = {"descending": 1} if descends else {}
    if ordered:
        kind = "descending" if descends else "masked" if masked else "even"
        narrow = max(map(head_columns, (*layout.keys, *layout.queries))) <= thresholds.NARROW_COLUMNS
        usual: Fields = dict(zip(("group", "heads", "least"), thresholds.ORDERED_TOGETHER[kind, narrow], strict=True))
    elif masked:
        usual = {"group": thresholds.PROGRAMS_TOGETHER, "heads": thresholds.BACKWARD_HEADS, "last": thresholds.LAST_PROGRAMS}
    else:
        usual = {"group": 1}
    return found | {name: int(choices.get(name, value)) for name, value in usual.items()}


@dataclass
class PairTileScheduler(TileScheduler):
    """Programs differ in length under a mask: the next one is asked for when all tiles of the one before are on their way.

    `group` is a number of programs here: as many heads run together as have so many, at least `least_heads` and no more than `most_heads`
    (0: any number), the blocks of all of them in turn. At the end as many run together as have `last` programs, so that only short ones
    are left when there is nothing to draw any more.
    """

    most_heads: int = 0
    least_heads: int = 1
    waits: bool = False
    """Whether programs wait for those of lower numbers. Then thread blocks draw all of them, the first ones too: whichever thread blocks
    the GPU has begun, the lowest program that is not done belongs to one that runs it. `blockIdx` says nothing about who has begun.
    """
    last: int = 0
    queries: int = 0
    pieces: str = ""
    """Where shared memory tells how programs are shared (`pairs_pieces`). The producer then goes through units of work, and tells the
    others which piece of which program they are. Empty: programs are whole."""

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
            writer.line(f"int {'unit' if self.pieces else 'program'} = {self._drawn() if self.waits else 'blockIdx.x'};")
        with self.core.scope(f"for (;; {STEP} += 1u << 28)"):
            writer.line(f"const uint32_t round = {STEP} >> 28;")
            self._exchange(producer)
            self.decode()
            yield
            if producer:
                self.follow()

    @property
    def slot(self) -> str:
        """Where the piece of this round is: first row, end, program, and what is waited for (`attn::store_piece`)."""
        return f"{self.pieces} + 32 + 16 * {ROUND}"

    def _exchange(self, producer: bool) -> None:
        if not self.pieces:
            super()._exchange(producer)
            return
        writer = self.core.writer
        if producer:
            writer.line(f"const attn::Piece piece = attn::piece_at(unit, {self.pieces});", "const int program = piece.program;")
            writer.line("attn::barrier_wait(shared + kNextFree + round % 2 * 8, (round / 2 & 1) ^ 1);")
            with writer.block("if (lane == 0)"):
                told = f"{self.pieces} + 32 + 16 * (round % {BackwardLayout.PIECE_SLOTS}), piece, attn::load_shared_int({self.pieces} + 4)"
                writer.line(f"attn::store_piece({told}, {self.queries});")
                writer.line("attn::barrier_arrive(shared + kNextFull + round % 2 * 8);")
        else:
            writer.line("attn::barrier_wait(shared + kNextFull + round % 2 * 8, round / 2 & 1);")
            told = f"{self.pieces} + 40 + 16 * (round % {BackwardLayout.PIECE_SLOTS})"
            writer.line(f"const int program = attn::uniform(attn::load_shared_int({told}));")
            writer.line("attn::warp_arrive(shared + kNextFree + round % 2 * 8, lane == 0);")
        writer.line("if (program >= programs) break;")

    def declare(self) -> None:
        super().declare()
        if self.order != "tiles":
            blocks = "max(1, items)" if self.core.packed else self.core.blocks()
            least = str(self.least_heads)
            if self.shared_batches:
                batches = self.core.arguments.size(self.over, 0)
                least = batches if self.least_heads == 1 else f"max({least}, {batches})"
            heads = f"{self.group} / {blocks}"
            heads = f"min({self.most_heads}, {heads})" if self.most_heads else heads
            self.core.writer.line(f"const int together = min(pairs, max({least}, {heads}));")
            if self.last and not self.core.packed:
                before = f"max(0, pairs - max(together, {self.last} / {blocks}))"
                self.core.writer.line(f"const int apart = ({before} + together - 1) / together * together; // heads before the end's")

    def draw(self) -> None:
        """Nothing yet."""

    def follow(self) -> None:
        """Asks for the next program and goes on to it, or to a second piece that comes with the first."""
        if self.waits:
            self.core.writer.line(f"program = {self._drawn()};")
            return
        if not self.pieces:
            super().draw()
            super().follow()
            return
        writer = self.core.writer
        with self.core.scope(f"if (attn::has_second_piece(unit, attn::load_shared_int4({self.pieces})))"):
            writer.line("++unit;")
        with self.core.scope("else"):
            super().draw()
            writer.line(f"if (lane == 0 && drawn == attn::load_shared_int({self.pieces} + 20)) *counter = 0;")
            drawn = "gridDim.x + __shfl_sync(0xffffffffu, drawn, 0)"
            writer.line(f"unit = attn::unit_of_draw({drawn}, attn::load_shared_int({self.pieces}));")

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
        if self.last and not self.core.packed:
            writer.line(
                f"const bool at_end = program >= apart * {blocks};",
                f"const int first = at_end ? apart : program / ({blocks} * together) * together, inside = program - first * {blocks};",
                "const int width = at_end ? pairs - apart : together, pair = first + inside % width;",
            )
        else:
            writer.line(
                f"const int first = program / ({blocks} * together) * together, inside = program % ({blocks} * together);",
                "const int width = min(together, pairs - first), pair = first + inside % width;",
            )
        writer.line(f"const int block = {place}, {self.pair()};")
