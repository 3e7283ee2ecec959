"""Bits of dropout that the producer's idle warps make, a block of keys ahead of the consumers, who only make packed weights 0.

The bits have a ring of stages beside that of the keys. The warp that loads tells where a block of keys is, once the consumers have read the
bits that its stage held before; so the other warps need not look at anything else. See `attn_dropout.cuh` for the bits.
"""

from collections.abc import Callable

from attn_mlir.backends.gpu.structure import body, operations
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.dropout import dropped_when_packed, head_row, kept_in, keys_along_columns, print_seeds, seed_words
from attn_mlir.backends.nvidia.hopper.memory import SharedAllocator, of_warps
from attn_mlir.backends.nvidia.hopper.steps import KvStep
from attn_mlir.mlir import ir

HEADER = "attn_dropout.cuh"
MAKERS = 3
"""Warps of the producer beside the one that loads; with 4, that one takes a share, too."""
_PART = 64
"""Keys of a row whose bits are stored together."""


def kept_ops(step: KvStep) -> list[ir.Operation]:
    """Every `attn.kept` of a step."""
    return [op for map_ in step.rest if map_.name == "tile.map" for op in operations(body(map_)) if op.name == "attn.kept"]


def possible(steps: list[KvStep] | None) -> bool:
    """Whether each step of a chain has one `attn.kept`, which only makes packed weights 0."""
    if not steps:
        return False
    found = [kept_ops(step) for step in steps]
    return all(len(ops) == 1 and keys_along_columns(ops[0]) and kept_in(ops[0].block) == ops[0] for ops in found) and all(
        dropped_when_packed(ops[0]) for ops in found
    )


def print_places(core: Core, step: KvStep, op: ir.Operation) -> str:
    """Prints `of`, what all bits of the block at `kv` 0 are made of, and `query_of`, the query of a row; its first key."""
    writer = core.writer
    seed, offset, drop, heads, b, h, query, key = op.operands
    core.scalars.bind(step.position, "kv")
    core.scalars.bind(op.block.arguments[1], "0")
    first = core.scalars.emit(key)
    numbers = (*seed_words(core, seed), seed_words(core, offset)[0], f"(unsigned)({core.scalars.emit(drop)})")
    writer.line(f"const attn::Dropout of = {{{', '.join(numbers)}, (unsigned)({head_row(core, b, heads, h)})}};")
    with writer.block("const auto query_of = [&](int row)"), core.scope(None):
        core.scalars.bind(op.block.arguments[0], "row")
        writer.line(f"return (unsigned)({core.scalars.emit(query)});")
    writer.lines[-1] += ";"
    return first


class AheadBits:
    """Prints what each role does about them."""

    def __init__(
        self, core: Core, layout: SharedAllocator, step: KvStep, size: tuple[int, int], stages: int, warps: int, makers: int
    ) -> None:
        """`size`: rows of the kernel's block and keys of a step; `warps` of consumers; `makers`: warps that share the work."""
        self.core, self.step, self.stages, self.makers = core, step, stages, makers
        self.rows, self.keys = size
        self.kept = kept_ops(step)[0]
        parts = -(-self.keys // _PART)
        self.bytes, self.table = parts * self.rows * 16, parts * 4 * 16
        layout.barrier("kToldFull", stages, 1)
        layout.barrier("kBitsFull", stages, of_warps(self.makers))
        layout.barrier("kBitsFree", stages, of_warps(warps))
        layout.slot("kTold", 16 * stages)
        layout.slot("kTable", self.makers * self.table)
        layout.slot("kBits", stages * self.bytes)

    def _at(self, name: str, size: int, turn: str) -> str:
        return f"shared + {name}" if self.stages == 1 else f"shared + {name} + {turn} % {self.stages} * {size}"

    def _parity(self, turn: str) -> str:
        return f"{turn} & 1" if self.stages == 1 else f"{turn} / {self.stages} & 1"

    # ---- the warp that loads

    def make(self, turn: str) -> None:
        """Says where the block of keys of this turn is: at `kv`, for this program (`block`, `head`, `batch`). Makes its share, if any."""
        self._tell(turn, "kv, block, head, batch")
        if self.makers == MAKERS:
            return
        with self.core.scope(""):
            print_seeds(self.core, [self.kept], again=True)
            self._block(str(MAKERS), turn, 1)
            self.core.seeds = {}

    def end(self, turn: str) -> None:
        """Says that there are no more."""
        self._tell(turn, "0, -1, 0, 0")

    def _tell(self, turn: str, message: str) -> None:
        writer = self.core.writer
        if self.stages & (self.stages - 1):  # its rests are computed again, so that they need no registers in between
            turn = f"(uint32_t)attn::opaque({turn})"
        writer.line(f"attn::barrier_wait({self._at('kBitsFree', 8, turn)}, ({self._parity(turn)}) ^ 1);")
        with writer.block("if (lane == 0)"):
            writer.line(f"attn::store_shared_int4({self._at('kTold', 16, turn)}, {message});")
            writer.line(f"attn::barrier_arrive({self._at('kToldFull', 8, turn)});")
        writer.line("__syncwarp();")

    # ---- the warps that make them

    def workers(self, first_warp: int, before: Callable[[], None] | None) -> None:
        """Their loop; `before` prints what places are made of. Warp `first_warp` of the kernel is the first of them."""
        core, writer = self.core, self.core.writer
        if before is not None:
            before()
        print_seeds(core, [self.kept])
        with core.scope("for (uint32_t turn = 0;; ++turn)"):
            writer.line(f"attn::barrier_wait({self._at('kToldFull', 8, 'turn')}, {self._parity('turn')});")
            writer.line(f"const int4 message = attn::load_shared_int4({self._at('kTold', 16, 'turn')});")
            writer.line("const int kv = attn::uniform(message.x), block = attn::uniform(message.y);")
            writer.line("const int head = attn::uniform(message.z), batch = attn::uniform(message.w);", "if (block < 0) break;")
            self._block(f"attn::warp_index() - {first_warp}", "turn", 2)
        core.seeds = {}

    def _block(self, worker: str, turn: str, calls: int) -> None:
        """One share of the bits of a turn."""
        writer, first = self.core.writer, print_places(self.core, self.step, self.kept)
        table = f"shared + kTable + ({worker}) * {self.table}"
        size = f"{self.rows}, {self.keys}, {self.makers}, {calls}, false"
        writer.line(f"attn::dropout_block<{size}>(of, {worker}, {first}, {self._at('kBits', self.bytes, turn)}, {table}, query_of);")
        writer.line("__syncwarp();", f"attn::warp_arrive({self._at('kBitsFull', 8, turn)}, lane == 0);")

    # ---- the consumers

    def drop(self, packed: str, turn: str) -> None:
        """Makes the packed weights of this turn's block 0 that are dropped, and gives the bits back."""
        self.core.writer.line(f"attn::barrier_wait({self._at('kBitsFull', 8, turn)}, {self._parity(turn)});")
        places = f"{self._at('kBits', self.bytes, turn)}, {self._at('kBitsFree', 8, turn)}"
        self.core.writer.line(f"attn::drop<{self.rows}>({packed}, {places});")
